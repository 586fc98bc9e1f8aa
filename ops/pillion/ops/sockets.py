"""Where a stack's sockets are: in its state folder, or a short one where a socket's path would be too long.

A short one has a link, `state`, to the state folder that it is of. It goes with its stack; where that was
killed, with the next start of any stack.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from pillion.ops.stack import private_folder

_LONGEST_SOCKET = 107  # bytes, sun_path less its terminating zero
_LONGEST_NAME = 40  # bytes kept for a socket's name
_OWNER = "state"


def folder(state: Path) -> Path:
    """Makes it; the same for the same state folder. Raises StackError."""
    state = state.absolute()
    place = _place(state)
    if place != state:
        _reclaim(place.parent)
        with suppress(FileExistsError):
            (private_folder(place) / _OWNER).symlink_to(state)
    return private_folder(place)


def leave(state: Path) -> None:
    """Removes a folder that is there for sockets only, once none is left."""
    place = _place(state.absolute())
    with suppress(OSError):
        if place != state.absolute() and os.listdir(place) == [_OWNER]:
            shutil.rmtree(place)


def _reclaim(parent: Path) -> None:
    """Removes what is there of this user's stacks that were killed."""
    for place in parent.glob("pillion-*"):
        owner = place / _OWNER
        # What another user has there, or another start removes meanwhile, is left alone.
        with suppress(OSError):
            if place.is_symlink() or place.stat().st_uid != os.getuid() or not owner.is_symlink():
                continue
            if not owner.exists():
                shutil.rmtree(place)
                continue
            # Held meanwhile, for the stack may start again. Without a lock it lives as long as its folder.
            with (owner / "up").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                shutil.rmtree(place)


def _place(state: Path) -> Path:
    if _has_room(state):
        return state
    name = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere", f"pillion-{name}")
    if runtime.parent.is_dir() and _has_room(runtime):
        return runtime
    return Path(tempfile.gettempdir()) / f"pillion-{os.getuid()}-{name}"


def _has_room(folder: Path) -> bool:
    """Whether a socket in it can have a name."""
    return len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= _LONGEST_SOCKET
