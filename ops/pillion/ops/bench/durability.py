"""What `--durability disk` costs: `python -m pillion.ops.bench.durability`.

A Valkey of its own for each case, in a folder of the disk that is asked about. Timed is what a gateway does
for a request before it counts as accepted, and what a scheduler does for a step: one entry added, with the
wait.
"""

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import click

from pillion.bus import Connection, Durable, append
from pillion.ops import valkey
from pillion.ops.stack import redis_url

PAYLOAD = bytes(2000)  # a request with a prompt of some hundred tokens


@click.command()
@click.option("--requests", default=500, show_default=True, help="measured requests a case")
@click.option("--together", default=16, show_default=True, help="requests that wait at the same time")
@click.option("--folder", default=None, help="where the log is written  [a temporary folder]")
def main(requests: int, together: int, folder: str | None) -> None:
    """Prints median and p99 of the time to accept a request, and to journal a step."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for durability in ("process", "disk"):
            for count in (1, together):
                accepted = asyncio.run(_accept(Path(name), durability, requests, count))
                click.echo(
                    f"{durability:>8}, {count:2} at a time: a request is accepted in {_words(accepted)}"
                )
            steps = asyncio.run(_journal(Path(name), durability, requests))
            click.echo(f"{durability:>8}: a step is journalled in {_words(steps)}")


@asynccontextmanager
async def _server(folder: Path, durability: str) -> AsyncIterator[Connection]:
    socket = folder / "valkey.sock"
    command = valkey.configure(folder, socket, durability)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    connection = Connection(redis_url(socket), "bench")
    try:
        while not await valkey.ping(socket):
            await asyncio.sleep(0.01)
        yield connection
    finally:
        await connection.close()
        process.terminate()
        await process.wait()


async def _accept(folder: Path, durability: str, requests: int, together: int) -> list[float]:
    async with _server(folder, durability) as connection:
        durable = Durable(connection) if durability == "disk" else None

        async def accept() -> None:
            await append(connection, "submit", PAYLOAD)
            if durable is not None:
                await durable.synced()

        return await _timed(accept, requests, together)


async def _journal(folder: Path, durability: str, steps: int) -> list[float]:
    async with _server(folder, durability) as connection:

        async def journal() -> None:
            await append(connection, "journal", PAYLOAD)

        return await _timed(journal, steps, 1)


async def _timed(action: Callable[[], Awaitable[None]], count: int, together: int) -> list[float]:
    """Seconds of each, `together` at the same time."""
    seconds: list[float] = []

    async def some() -> None:
        for _ in range(count // together):
            start = time.perf_counter()
            await action()
            seconds.append(time.perf_counter() - start)

    await asyncio.gather(*(some() for _ in range(together)))
    return seconds


def _words(seconds: list[float]) -> str:
    p99 = statistics.quantiles(seconds, n=100)[98]
    return f"{statistics.median(seconds) * 1e3:.2f} ms (median), {p99 * 1e3:.2f} ms (p99)"


if __name__ == "__main__":
    main()
