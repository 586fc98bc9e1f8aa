"""How the kernels are built, and what is said where they cannot be."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pillion.kernels.cpu import NoKernels, native
from pillion.kernels.select import NoBackend, select
from tests.cpu_kernels import cpu_backend

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def built():
    """The kernels of this machine, as files."""
    cpu_backend()
    return Path(native.library()._name)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A cache of its own, where nothing is built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path / "pillion/kernels"
    native.library.cache_clear()


def compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_built_once_and_then_found(elsewhere, monkeypatch):
    cpu_backend()
    (built,) = elsewhere.glob("cpu-*.so")
    before = built.stat().st_mtime_ns
    native.library.cache_clear()
    monkeypatch.setattr(native, "_build", lambda *_: pytest.fail("built again"))
    native.library()
    assert built.stat().st_mtime_ns == before


def test_without_a_compiler_torch_serves_and_says_why(elsewhere, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    selected = select("auto", torch.bfloat16, CPU)
    assert selected.backend.name == "torch"
    assert "the cpu kernels: there is no C++ compiler (Debian, Ubuntu: apt install g++)" in selected.reason
    with pytest.raises(NoBackend, match=r"no C\+\+ compiler"):
        select("cpu", torch.bfloat16, CPU)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "CXX", compiler(tmp_path / "cc", '[ "$1" = --version ] || { echo "a.cpp:1: error: no" >&2; exit 1; }')
    )
    with pytest.raises(NoKernels, match=r"cc cannot build them \(a.cpp:1: error: no\)"):
        native.library()
    assert [path.name for path in elsewhere.iterdir()] == [".lock"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoKernels, match="CXX names no-such-compiler, which is not there"):
        native.library()


@pytest.mark.parametrize("harm", [lambda data: data[:4096], lambda data: data[:-100] + bytes(100)])
def test_a_damaged_file_is_not_loaded_but_built_again(built, elsewhere, monkeypatch, harm):
    """To load one may end the process."""
    elsewhere.mkdir(parents=True)
    shutil.copy(built.with_suffix(".sha256"), elsewhere)
    damaged = elsewhere / built.name
    damaged.write_bytes(harm(built.read_bytes()))
    again = []
    monkeypatch.setattr(native, "_build", lambda path, march: again.append(path))
    monkeypatch.setattr(
        native.ctypes, "CDLL", lambda path: pytest.fail("loaded") if not again else ctypes.PyDLL(None)
    )
    with pytest.raises(NoKernels, match="undefined symbol"):  # of what stands in for it
        native.library()
    assert again == [damaged]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo x > "${@: -2:1}"', "cannot build or load them as .*invalid ELF header|file too short"),
        ("exit 0", r"cannot build them \(it ended with 0 and made nothing\)"),
        ("kill -9 $$", r"cannot build them \(it ended with -9 and made nothing\)"),
    ],
)
def test_a_compiler_that_makes_no_kernels_is_no_reason_to_fall(
    elsewhere, tmp_path, monkeypatch, script, message
):
    cxx = tmp_path / "cc"
    cxx.write_text(f'#!/bin/bash\n[ "$1" = --version ] && exit 0\n{script}\n')
    cxx.chmod(0o755)
    monkeypatch.setenv("CXX", str(cxx))
    with pytest.raises(NoKernels, match=message):
        native.library()


def test_more_threads_than_the_system_gives_are_an_error_and_no_end():
    cpu_backend()
    script = (
        "import resource\n"
        "from pillion.kernels.cpu import NoKernels, native\n"
        "from pillion.kernels.cpu.backend import Pool\n"
        "library = native.library()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))\n"
        "Pool(library, 2)\n"
        "try:\n"
        "    Pool(library, 30000)\n"
        "except NoKernels as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the system does not give 30000 threads; lower --threads\n")


def test_cxx_may_have_arguments(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "CXX", compiler(tmp_path / "cc", 'echo "$@"; [ "$2" = --version ] || exit 1') + " -m64"
    )
    with pytest.raises(NoKernels, match=r"cc cannot build them \(it ended with 1"):
        native.library()
    (tmp_path / "cc").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NoKernels, match=r"cannot run .*cc: Exec format error"):
        native.library()


def test_float32_is_left_to_torch():
    selected = select("auto", torch.float32, CPU)
    assert (selected.backend.name, selected.reason) == ("torch", "the best that runs float32 on cpu")
    with pytest.raises(NoBackend, match="cpu does not run float32; choose another"):
        select("cpu", torch.float32, CPU)
    with pytest.raises(NoBackend, match="torch does not run int8 weights"):
        select("torch", torch.bfloat16, CPU, "int8")
