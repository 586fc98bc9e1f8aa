"""Files that are read again when they change: keys that come and go, certificates that run out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from pillion.config import ConfigError

log = logging.getLogger(__name__)

EVERY = 2.0  # seconds between two looks


async def renew(files: Sequence[Path], read: Callable[[], None]) -> None:
    """An actor: calls `read` whenever one of the files is another one or has changed."""
    seen = _stamps(files)
    while True:
        await asyncio.sleep(EVERY)
        now = _stamps(files)
        if now == seen:
            continue
        seen = now
        try:
            read()
        except ConfigError as error:
            log.error("what was read before stays in use: %s", error)
        else:
            log.info("read %s again", ", ".join(sorted({str(path) for path in files})))


def _stamps(files: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """Identity, time of change and size of each; None where it is away, as in the middle of a replacement."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            found = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
    return stamps
