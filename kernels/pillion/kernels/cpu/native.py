"""Builds the C++ kernels for this machine, once, and loads them."""

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent
# Products and sums are joined only where the source says so: a row's bits must not depend on its neighbours.
_FLAGS = ("-O3", "-std=c++20", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
COMPILERS = ("g++", "clang++", "c++")
BUILD_SECONDS = 300.0


class NoKernels(Exception):
    """They cannot be built or loaded here; the message says why and what to do."""


class Cache(ctypes.Structure):
    """`pillion::Cache`: one layer's keys and values."""

    _fields_ = [
        ("all", ctypes.c_void_p),
        ("block_size", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_size", ctypes.c_int64),
        ("number", ctypes.c_int64),
    ]


class Batch(ctypes.Structure):
    """`pillion::Batch`: which rows are whose, and where their keys are."""

    _fields_ = [
        ("sequences", ctypes.c_int64),
        ("first_row", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("table_width", ctypes.c_int64),
    ]


class Packed(ctypes.Structure):
    """`pillion::Packed`: a weight in panels."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("lowest", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("panels", ctypes.c_int64),
        ("form", ctypes.c_int64),
    ]


class Block(ctypes.Structure):
    """`pillion::Block`: one transformer block's weights."""

    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("qkv", Packed),
        ("output", Packed),
        ("gate_up", Packed),
        ("down", Packed),
        ("window", ctypes.c_int64),
    ]


class Sizes(ctypes.Structure):
    """`pillion::Sizes`: what all blocks have in common."""

    _fields_ = [
        ("hidden", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_size", ctypes.c_int64),
        ("mlp", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    ]


_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "pillion_target": (ctypes.c_char_p, ()),
    "pillion_pool": (_POINTER, (_INT,)),
    "pillion_pool_free": (None, (_POINTER,)),
    "pillion_pack": (None, (_POINTER, _LONG, _LONG, _LONG, _POINTER, _POINTER)),
    "pillion_pack_nibbles": (None, (*(_POINTER,) * 3, *(_LONG,) * 3, *(_POINTER,) * 3)),
    "pillion_scaled_logits": (None, (_POINTER, _POINTER, _POINTER, _LONG, _POINTER, _INT)),
    "pillion_linear": (None, (_POINTER, _POINTER, _POINTER, _LONG, _POINTER)),
    "pillion_gate_up": (None, (_POINTER, _POINTER, _POINTER, _LONG, _POINTER)),
    "pillion_logits": (None, (_POINTER, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER)),
    "pillion_rms_norm": (None, (_POINTER, _INT, _POINTER, _INT, _POINTER, _LONG, _LONG, _FLOAT, _POINTER)),
    "pillion_rope": (None, (_POINTER, _INT, _POINTER, _LONG, _POINTER, _LONG, _LONG, _LONG, _POINTER)),
    "pillion_attention": (
        None,
        (
            *(_POINTER, _POINTER, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG),
            *(_FLOAT, _POINTER),
        ),
    ),
    "pillion_draw": (None, (_POINTER, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER)),
    "pillion_scratch": (_LONG, (_POINTER,)),
    "pillion_blocks": (
        None,
        (*(_POINTER,) * 4, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _POINTER),
    ),
}


@functools.cache
def library(march: str = "native") -> ctypes.CDLL:
    """The kernels for this machine, loaded; built first if need be. Raises NoKernels.

    `march` is the compiler's name of a processor; tests ask for lesser ones.
    """
    path = _folder() / f"cpu-{_key(march)}.so"
    try:
        if not _whole(path):
            _build(path, march)
        found = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NoKernels(f"cannot build or load them as {path}: {error}") from None
    return found


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pillion" / "kernels"


def _key(march: str) -> str:
    """Names the sources, how they are built, and the machine that they are built for."""
    command, version = _compiler()
    digest = hashlib.sha256(
        "\n".join((march, *_FLAGS, *command, version, platform.machine(), _cpu())).encode()
    )
    for source in sorted((*_SOURCES.glob("*.hpp"), *_SOURCES.glob("*.cpp"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """What the processor can, as the kernel tells it; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compiler() -> tuple[list[str], str]:
    """Its command and its version. `CXX` may name one with arguments."""
    named = os.environ.get("CXX")
    for candidate in (named,) if named else COMPILERS:
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            done = _run([*command, "--version"])
            return command, done.stdout.partition("\n")[0]
    what = f"CXX names {named}, which is not there" if named else "there is no C++ compiler"
    raise NoKernels(f"{what} (Debian, Ubuntu: apt install g++)")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoKernels(f"{command[0]} took longer than {BUILD_SECONDS:.0f} s") from None
    except OSError as error:
        raise NoKernels(f"cannot run {command[0]}: {error.strerror or error}") from None


def _whole(path: Path) -> bool:
    """Whether it is as it was built: to load a damaged one ends the process."""
    try:
        return path.with_suffix(".sha256").read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return False


def _build(path: Path, march: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process builds: its result is waited for
        if _whole(path):
            return
        # A folder of its own: the compiler of an executor that was killed may still write.
        with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
            part = Path(folder) / path.name
            source = str(_SOURCES / "exports.cpp")
            command = [*_compiler()[0], f"-march={march}", *_FLAGS, "-o", str(part), source]
            log.info("building the kernels for this machine, once; this takes some seconds")
            done = _run(command)
            if done.returncode or not part.is_file():
                raise NoKernels(f"{command[0]} cannot build them ({_reason(done)})")
            built = part.read_bytes()
            part.rename(path)
        path.with_suffix(".sha256").write_text(hashlib.sha256(built).hexdigest())


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in lines if "error" in line or "No space" in line] or lines[-1:]
    return told[0] if told else f"it ended with {done.returncode} and made nothing"
