"""`pillion bench load`: the cases of `pillion.ops.bench.cases` against one server or several in turn.

With several, each repeat of a case runs at one after the other, so that all see the same hours of a machine
that drifts. The same seed draws the same requests; cases and repeats share no prompts, so that nothing hits a
prefix cache by chance.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from pillion.ops.bench.cases import CASES, Case, Failed, Result
from pillion.ops.bench.client import session
from pillion.ops.bench.report import headline, told
from pillion.ops.bench.server import Server
from pillion.words import counted

_BUSY = 0.2  # cores; from there on the client may be what is measured


@dataclass(frozen=True, slots=True)
class Options:
    urls: tuple[str, ...]
    cases: tuple[str, ...] = tuple(CASES)
    seed: int = 1
    repeats: int = 1
    model: str | None = None  # the first that the server names
    api_key: str | None = None


def run(options: Options, output: Path | None) -> None:
    """Measures, shows a table, and keeps the raw result as JSON. Raises NoServer, Failed."""
    result = uvloop.run(measure(options))
    if output:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    told(result)


async def measure(options: Options) -> dict[str, Any]:
    """The raw result. Raises NoServer, Failed."""
    async with session(options.api_key) as http:
        servers = [Server(http, url, options.model) for url in options.urls]
        for server in servers:
            await server.meet()
        results = [{case: list[Result]() for case in options.cases} for _ in servers]
        for repeat in range(options.repeats):
            for name in options.cases:
                for server, seen in zip(servers, results, strict=True):
                    random_ = random.Random(f"{name} {options.seed + repeat}")
                    try:
                        seen[name].append(await observed(CASES[name], server, random_))
                    except Failed as error:
                        raise Failed(f"case {name} at {server.url}: {error}") from None
                    click.echo(f"{server.url} {headline(name, seen[name][-1])}", err=True)
    return {
        "seed": options.seed,
        "servers": [
            {"url": server.url, "model": server.model, "notes": server.notes + notes(seen), "cases": seen}
            for server, seen in zip(servers, results, strict=True)
        ],
    }


def notes(cases: Mapping[str, Sequence[Result]]) -> list[str]:
    """What the figures of one server are not, or not quite."""
    said = []
    for name, results in cases.items():
        hit = sum(result.get("cached_tokens", 0) for result in results)
        if hit and name != "E":
            said.append(
                f"{name}: {hit} prompt tokens came from a prefix cache; give a --seed not used before"
            )
        if early := sum(result.get("ended_early", 0) for result in results):
            said.append(
                f"{name}: {counted(early, 'request')} ended early: the server does not heed ignore_eos"
            )
        if (busy := max(result["client_cores"] for result in results)) > _BUSY:
            said.append(f"{name}: this client took {busy:.1f} cores, the server's perhaps")
    return said


async def observed(case: Case, server: Server, random_: random.Random) -> Result:
    """The case's own figures, and what this client took to make them."""
    start, cpu = time.perf_counter(), time.process_time()
    result = await case(server, random_)
    seconds = time.perf_counter() - start
    return result | {"wall_s": seconds, "client_cores": (time.process_time() - cpu) / seconds}
