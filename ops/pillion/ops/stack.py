"""A stack on this machine: its folders, its lock, and the resolved settings that its services read.

state folder/up           held by `pillion up` alone, so that a held one means that it lives; holds its pid
state folder/lock         held by `pillion up` and the Valkey that it started, which ends a moment after it
state folder/format       what the folder is written in, see `claim_format`
state folder/stack.toml   the resolved settings, 0600 since they hold keys; there while the stack runs
"""

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from pillion.config import Config, ConfigError, load

FORMAT = "1"
ANY_HOST = ("", "0.0.0.0", "::")
_GLANCE_SECONDS = 0.2  # `held` takes the lock for a moment, to look


class StackError(Exception):
    """The stack cannot run here. One line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and what it lets in."""

    url: str
    key: str | None
    certificate: str | None  # of a stack on this machine


def private_folder(path: Path) -> Path:
    """The folder, made if needed, of this user and closed to others. Raises StackError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise StackError(f"{path} is no folder; remove it, or name another with --state-dir")
        if found.st_uid != os.getuid():
            raise StackError(f"{path} belongs to another user; name another folder with --state-dir")
        if found.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise StackError(f"cannot use the folder {path}: {reason(error)}") from None
    return path


def claim_format(state: Path) -> None:
    """Marks a new folder with the format of this release. Raises StackError for one that it does not
    know, of which nothing is touched."""
    path = state / "format"
    try:
        written = path.read_text().strip() if path.exists() else ""
        if not written:
            path.write_text(FORMAT + "\n")
    except OSError as error:
        raise StackError(f"cannot use {path}: {reason(error)}") from None
    if written not in ("", FORMAT):
        raise StackError(
            f"{state} was written by a release with format {written[:40]!r}, this one reads {FORMAT}; start"
            " that release again, or name another folder with --state-dir"
        )


def url(config: Config) -> str:
    """Where a client on this machine reaches the gateway."""
    host = config.gateway.host
    host = "127.0.0.1" if host in ANY_HOST else host
    scheme = "https" if config.gateway.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def redis_url(socket: Path) -> str:
    """A socket's URL as redis-py reads it."""
    return f"unix://{quote(str(socket))}"


def reason(error: OSError) -> str:
    """What the system says, with the remedy where there is one."""
    if error.errno == errno.ENOSPC:
        return "the disk is full; free some space, or name a folder on another disk with --state-dir"
    return (error.strerror or str(error)).lower()


class Lock:
    """The stack's locks: who takes both may start its processes."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._up = -1
        self.descriptor = -1  # of `lock`; children that outlive a killed parent for a moment inherit it

    def take(self, patience: float = 4.0) -> None:
        """Refuses at once where the stack runs; waits up to `patience` seconds for what a killed one left
        behind to end. Raises StackError."""
        up, lock = self.state / "up", self.state / "lock"
        try:
            self._up = _open(up)
            if not _flock(self._up, _GLANCE_SECONDS):
                raise StackError(self._runs())
            os.ftruncate(self._up, 0)
            os.pwrite(self._up, str(os.getpid()).encode(), 0)
            self.descriptor = _open(lock)
            if not _flock(self.descriptor, patience):
                raise StackError(f"something of an earlier stack still holds {lock}; see `fuser {lock}`")
        except OSError as error:
            raise StackError(f"cannot lock {error.filename or self.state}: {reason(error)}") from None

    def holder(self) -> int | None:
        """The pid of the `pillion up` that took it last."""
        try:
            return int((self.state / "up").read_text() or 0) or None
        except (OSError, ValueError):
            return None

    def held(self) -> bool:
        """Whether a `pillion up` holds it now."""
        try:
            with (self.state / "up").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def release(self) -> None:
        for descriptor in (self._up, self.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._up = self.descriptor = -1

    def _runs(self) -> str:
        try:
            at = f" at {url(load(environ={}, file=settings_file(self.state)).config)}"
        except ConfigError:  # it has not written them yet
            at = ""
        return (
            f"the stack {self.state.name!r} already runs{at} (pid {self.holder()}); end it, or start another "
            "with --stack NAME --port PORT"
        )


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _flock(descriptor: int, patience: float) -> bool:
    """Whether the lock could be had within `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        else:
            return True


def write_settings(config: Config) -> Path:
    """Writes the resolved settings for the children and gives the file. Raises StackError."""
    path = settings_file(config.state_path)
    fresh = path.with_suffix(".new")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(to_toml(config))
        fresh.replace(path)
    except OSError as error:
        raise StackError(f"cannot write {path}: {reason(error)}") from None
    return path


def settings_file(state: Path) -> Path:
    return state / "stack.toml"


def to_toml(config: Config) -> str:
    """The tree as TOML; what is None is left out."""
    lines = []
    for section, fields in msgspec.structs.asdict(config).items():
        lines.append(f"[{section}]")
        values = msgspec.structs.asdict(fields).items()
        lines += [f"{name} = {_toml(value)}" for name, value in values if value is not None]
    return "\n".join(lines) + "\n"


def running(config: Config) -> Config | None:
    """The settings of this stack as it runs now, or None where it does not."""
    if not Lock(config.state_path).held():
        return None
    try:
        # The file is complete; the caller's own environment has no say in what runs.
        return load(environ={}, file=settings_file(config.state_path)).config
    except ConfigError:
        return None


def address(config: Config, given: str | None = None) -> Address:
    """Of the server at a URL, else of the stack of this name. Raises StackError where that does not run."""
    keys, certificate = config.gateway.api_key, None
    if given is None:
        here = running(config)
        if here is None:
            raise StackError(absent(config))
        given, keys, certificate = url(here), keys or here.gateway.api_key, here.gateway.ssl_certfile
    return Address(given.rstrip("/").removesuffix("/v1"), keys[0] if keys else None, certificate)


def all_running(config: Config) -> Iterator[tuple[int, Config]]:
    """Every stack that runs with this state folder, and the pid of its `pillion up`."""
    for file in sorted(config.state_path.parent.glob("*/stack.toml")):
        stack = msgspec.structs.replace(config.stack, stack=file.parent.name)
        found = running(msgspec.structs.replace(config, stack=stack))
        if found is not None:
            yield Lock(file.parent).holder() or 0, found


def absent(config: Config) -> str:
    """What to tell who looks for this stack where it does not run."""
    name = config.stack.stack
    others = ", ".join(f"{here.stack.stack} at {url(here)}" for _, here in all_running(config))
    return (
        f"no stack {name!r} runs here ({config.state_path} holds no address); "
        + (f"those that run: {others}; " if others else "")
        + f"start it with `pillion up --stack {name}`, or name a server with --url"
    )


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # TOML's basic strings take JSON's escapes, but no surrogate pairs and no bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
