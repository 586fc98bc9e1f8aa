"""`pillion bench load`: the cases of `pillion.ops.bench.cases` against one server or several in turn.

With several, each repeat of a case runs at one after the other, so that all see the same hours of a machine
that drifts. The same seed draws the same requests; cases and repeats share no prompts, so that nothing hits a
prefix cache by chance.
"""

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import uvloop

from pillion.config import Config
from pillion.ops.bench.cases import CASES, Failed, Result
from pillion.ops.bench.ceilings import Ceilings, best, ceilings_of
from pillion.ops.bench.client import session
from pillion.ops.bench.floor import floor
from pillion.ops.bench.inside import Inside, find
from pillion.ops.bench.load_report import report
from pillion.ops.bench.report import headline, told
from pillion.ops.bench.server import Server
from pillion.ops.report import write
from pillion.words import counted

_GAPS = ("gap_ms", "gap_during_ms")
_TOGETHER = 0.05  # share of gaps that are nothing
_BUSY = 0.2  # cores; from there on the client may be what is measured


@dataclass(frozen=True, slots=True)
class Options:
    urls: tuple[str, ...]
    cases: tuple[str, ...] = tuple(CASES)
    seed: int = 1
    repeats: int = 1
    model: str | None = None  # the first that the server names
    api_key: str | None = None
    metrics: tuple[str, ...] = ()  # of each URL's executor; found where the stack is on this machine
    threads: int | None = None  # of the ceilings; else the executors'
    certificate: str | None = None  # of a stack on this machine


def run(config: Config, options: Options, output: Path | None, page: str | None = None) -> None:
    """Measures, shows a table, keeps the raw result as JSON and a report.

    `config` tells where the stacks of this machine are. Raises NoServer, Failed, NoCeilings, NoReport.
    """
    result = uvloop.run(measure(config, options))
    if output:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    told(result)
    for path in write(report(result), page) if page else ():
        click.echo(f"written: {path}")


@dataclass(slots=True)
class Subject:
    """A server, what can be seen of its inside, and its results, by case and repeat."""

    server: Server
    inside: Inside
    results: dict[str, list[Result]]

    def raw(self) -> dict[str, Any]:
        return {
            "url": self.server.url,
            "model": self.server.model,
            "quantization": self.inside.quantization,
            "notes": [*self.server.notes, *notes(self.results), *self._of_the_floor()],
            "cases": self.results,
        }

    def _of_the_floor(self) -> list[str]:
        if not self.inside.metrics:
            return [NO_FLOOR]
        return [] if self.inside.quantization else ["the floor takes all products to be of bfloat16"]


async def measure(config: Config, options: Options) -> dict[str, Any]:
    """The raw result. Raises NoServer, Failed, NoCeilings."""
    async with session(options.api_key, options.certificate) as http:
        subjects = []
        for url, metrics in zip_longest(options.urls, options.metrics):
            server = Server(http, url, options.model)
            await server.meet()
            inside = await find(http, config, server.url)
            inside.metrics = [metrics] if metrics else inside.metrics
            await inside.look(http)  # what cannot be read is told before anything is measured
            subjects.append(Subject(server, inside, {case: [] for case in options.cases}))
        theirs = max(subject.inside.threads for subject in subjects)
        threads = options.threads or theirs or len(os.sched_getaffinity(0))
        with_floor = any(subject.inside.metrics for subject in subjects)
        ceilings = [await asyncio.to_thread(ceilings_of, threads, SECONDS)] if with_floor else []
        around: dict[int, Ceilings] = {}  # by the result's identity
        for repeat in range(options.repeats):
            for name in options.cases:
                for subject in subjects:
                    # Of the case and the repeat, so that no two share prompts.
                    result = await observed(
                        http, name, subject, random.Random(f"{name} {options.seed + repeat}")
                    )
                    subject.results[name].append(result)
                    click.echo(f"{subject.server.url} {headline(name, result)}", err=True)
                if with_floor:
                    # The machine drifts: what holds for a case is what was there just before and after it.
                    ceilings.append(await asyncio.to_thread(ceilings_of, threads, SECONDS))
                    around |= {id(each.results[name][-1]): best(*ceilings[-2:]) for each in subjects}
    for subject in subjects:
        for name, results in subject.results.items():
            for result in results:
                if "executor" in result:
                    rate = result.get(RATES.get(name, ""))
                    result["floor"] = floor(
                        *(result["executor"], around[id(result)], result["wall_s"], rate),
                        int8=subject.inside.quantization in ("int8", "gguf"),
                    )
    return {
        "seed": options.seed,
        "threads": threads,
        "ceilings": ceilings,
        "servers": [subject.raw() for subject in subjects],
    }


SECONDS = 0.7
"""Of the measurement of each ceiling."""

RATES: dict[str, str] = {"A": "decode_tokens_per_s"} | dict.fromkeys("BCE", "total_tokens_per_s")
"""The figure of a case that the floor bounds."""

NO_FLOOR = (
    "no floor, since no metrics of its executor are known; give `pillion up` a --metrics-port, or their URL "
    "with --metrics"
)


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
        gaps = [gaps for result in results for key in _GAPS if (gaps := result.get(key))]
        if (together := max((each["coalesced_share"] for each in gaps), default=0.0)) > _TOGETHER:
            said.append(
                f"{name}: {together:.0%} of tokens came together with the one before; those of one plan do "
                "(--multi-step-seconds), else gaps mean little: somebody on the way had no core"
            )
        if (busy := max(result["client_cores"] for result in results)) > _BUSY:
            said.append(f"{name}: this client took {busy:.1f} cores, the server's perhaps")
    return said


async def observed(
    http: aiohttp.ClientSession, name: str, subject: Subject, random_: random.Random
) -> Result:
    """A case's own figures, what this client took to make them, and what happened in the server.

    Raises NoServer, Failed.
    """
    try:
        before = await subject.inside.look(http)
        start, cpu = time.perf_counter(), time.process_time()
        result = await CASES[name](subject.server, random_)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        seen = await subject.inside.since(http, before, seconds)
    except Failed as error:
        raise Failed(f"case {name} at {subject.server.url}: {error}") from None
    return result | {"wall_s": seconds, "client_cores": cpu / seconds} | seen
