"""Rates tried at a running server."""

from collections.abc import Mapping, Sequence

from pillion.config import Config
from pillion.ops.bench import delays, traffic
from pillion.ops.bench.client import session
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.server import Server
from pillion.ops.report import Report

from .find import Asked, Tried, find
from .told import report


async def live(
    config: Config,
    url: str,
    offered: Offered,
    asked: Asked,
    *,
    model: str | None = None,
    api_key: str | None = None,
    certificate: str | None = None,
    metrics: Sequence[str] = (),
    keys: Mapping[str, str] | None = None,
) -> Report:
    """Of the server at `url`; `keys` are of tenants. Raises NoServer, NoLoad, NoCapacity."""
    async with session(api_key, certificate) as http:
        server = Server(http, url, model, keys)
        await server.meet()
        metrics = metrics or await delays.find(http, config, server.url)
        run = traffic.Live(server, http, metrics, asked.slo, asked.drain).run

        async def attempt(rate: float, repeat: int, number: int) -> Tried:
            seen = await run(offered, rate, repeat, number)
            notes = tuple(traffic.notes([(f"{rate:.4g}/s", seen)]))
            return Tried(seen.tally, seen.seconds, seen.delay, notes)

        found = await find(attempt, asked)
    title = f"Capacity of {server.model or 'a model'} at {server.url}"
    return report(title, traffic.provenance(server, offered, asked.slo), *found, asked, server.notes)
