"""An executor process of its own, for as long as it is measured."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from pillion.config import Config
from pillion.contracts.access import Access
from pillion.modelfiles import locate
from pillion.ops.child import die_with_parent, last_words, role_command
from pillion.ops.profile.drive import Driver, ProfileError
from pillion.ops.stack import to_toml

_END_SECONDS = 20.0


@contextlib.asynccontextmanager
async def executor(config: Config) -> AsyncIterator[Driver]:
    """Starts one with these settings and attaches to it. Raises ModelFileError, ProfileError."""
    model = config.model
    await asyncio.to_thread(locate, model.model, model.revision, config.cache_path)  # shows a download
    with tempfile.TemporaryDirectory(prefix="pillion-") as folder:
        address = f"unix:{folder}/executor.sock"
        replaced = msgspec.structs.replace(config.executor, executor=address)
        settings = Path(folder) / "settings.toml"
        settings.write_text(to_toml(msgspec.structs.replace(config, executor=replaced)))
        log = Path(folder) / "log"
        process = _start(settings, log)
        driver = Driver(address, Access(replaced))
        try:
            await _attach(driver, process)
            yield driver
        except ProfileError as error:
            if process.poll() is None:
                raise
            said = log.read_text(errors="replace").splitlines()
            raise ProfileError(f"the executor ended: {last_words(said)}") from error
        finally:
            await driver.close()
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(settings: Path, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen(
            role_command("executor", settings),
            env={name: value for name, value in os.environ.items() if not name.startswith("PILLION_")},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it only calls prctl
        )


async def _attach(driver: Driver, process: "subprocess.Popen[bytes]") -> None:
    """An executor that dies while it loads is not waited for. Raises ProfileError."""
    attaching = asyncio.create_task(driver.attach())
    while not attaching.done():
        await asyncio.wait([attaching], timeout=0.2)
        if process.poll() is not None and not attaching.done():
            attaching.cancel()
            raise ProfileError(f"the executor ended with code {process.returncode}")
    attaching.result()
