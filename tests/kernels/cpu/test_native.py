"""How the kernels are built, and what is said where they cannot be."""

import pytest
import torch

from pillion.kernels.cpu import NoKernels, native
from pillion.kernels.select import NoBackend, select
from tests.cpu_kernels import cpu_backend

CPU = torch.device("cpu")


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


def test_what_cannot_be_loaded_is_named(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "CXX", compiler(tmp_path / "cc", '[ "$1" = --version ] || { shift 7; echo x > "$2"; }')
    )
    with pytest.raises(NoKernels, match=r"cannot load .*cpu-.*\.so .*delete it"):
        native.library()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    native.library.cache_clear()
    with pytest.raises(NoKernels, match=r"cannot keep them in .*Not a directory"):
        native.library()


def test_float32_is_left_to_torch():
    selected = select("auto", torch.float32, CPU)
    assert (selected.backend.name, selected.reason) == ("torch", "the best that runs float32 on cpu")
    with pytest.raises(NoBackend, match="cpu does not run float32; choose another"):
        select("cpu", torch.float32, CPU)
