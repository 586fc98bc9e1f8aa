"""Loads against any OpenAI-compatible server that streams token ids: `python -m pillion.ops.bench.load`.

Gaps are between consecutive tokens at the client (TBT), TTFT is from sending, total tokens are prompt and
output. Prompts are random token ids from the seed, so nothing hits a prefix cache by chance.
"""

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import click

from pillion.ops.bench.client import Timeline, stream

Session = aiohttp.ClientSession
IDS = range(1000, 40_000)  # ordinary tokens of every model that is tried here


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def lengths(random_: random.Random, median: float, p90: float, low: int, high: int) -> int:
    """Lognormal with this median and 90th percentile, clipped."""
    sigma = math.log(p90 / median) / 1.2816
    return int(min(max(random_.lognormvariate(math.log(median), sigma), low), high))


class Load:
    """One server, one seed."""

    def __init__(self, session: Session, url: str, seed: int) -> None:
        self.session = session
        self.url = url
        self.random = random.Random(seed)

    def prompt(self, length: int) -> list[int]:
        return self.random.choices(IDS, k=length)

    async def complete(self, prompt: list[int], output: int) -> Timeline:
        body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
        return await stream(self.session, self.url, "/v1/completions", body)

    async def one_stream(self) -> dict[str, Any]:
        """A: one stream, 64 tokens in, 128 out."""
        line = await self.complete(self.prompt(64), 128)
        check([line])
        return {
            "ttft_s": line.ttft,
            "decode_tokens_per_s": (len(line.tokens) - 1) / (line.tokens[-1] - line.tokens[0]),
            "gap_ms": gap_summary(line.gaps),
        }

    async def many_chats(self) -> dict[str, Any]:
        """B: 48 requests at once; prompts median 170, P90 500; outputs median 60, P90 150."""
        sizes = [
            (lengths(self.random, 170, 500, 8, 1500), lengths(self.random, 60, 150, 4, 400))
            for _ in range(48)
        ]
        start = time.perf_counter()
        lines = await asyncio.gather(*(self.complete(self.prompt(size), out) for size, out in sizes))
        seconds = time.perf_counter() - start
        check(lines)
        total = sum(line.prompt_tokens + len(line.tokens) for line in lines)
        return {
            "requests": len(lines),
            "prompt_tokens": sum(line.prompt_tokens for line in lines),
            "output_tokens": sum(len(line.tokens) for line in lines),
            "seconds": seconds,
            "total_tokens_per_s": total / seconds,
            "ttft_s": {"median": statistics.median([line.ttft for line in lines])},
            "gap_ms": gap_summary([gap for line in lines for gap in line.gaps]),
        }

    async def three_long_prompts(self) -> tuple[float, list[Timeline]]:
        """Three prompts of 1500 tokens, a second apart; when the first was sent."""
        start = time.perf_counter()
        tasks = []
        for index in range(3):
            await asyncio.sleep(max(0.0, start + index - time.perf_counter()))
            tasks.append(asyncio.create_task(self.complete(self.prompt(1500), 8)))
        return start, await asyncio.gather(*tasks)

    async def stalls(self) -> dict[str, Any]:
        """D: eight streams decode while three 1500-token prompts arrive a second apart.

        For comparison three others of that length first arrive a second apart at the idle server, and three
        more one after the other.
        """
        after_each_other = [await self.complete(self.prompt(1500), 8) for _ in range(3)]
        _, idle = await self.three_long_prompts()
        streams = [asyncio.create_task(self.complete(self.prompt(64), 400)) for _ in range(8)]
        await asyncio.sleep(3.0)  # all eight decode
        arrived, long_lines = await self.three_long_prompts()
        lines = await asyncio.gather(*streams)
        check([*after_each_other, *idle])
        check([*lines, *long_lines])
        end = max(line.tokens[0] for line in long_lines)
        before = [
            gap for line in lines for gap, at in zip(line.gaps, line.tokens[1:], strict=True) if at < arrived
        ]
        during = [
            gap for line in lines for gap, at in zip(line.gaps, line.tokens[1:], strict=True)
            if arrived <= at <= end + 0.5
        ]  # fmt: skip
        streaming = min(line.tokens[-1] for line in lines)
        return {
            "median_gap_before_ms": statistics.median(before) * 1000,
            "worst_gap_ms": max(during) * 1000,
            "worst_gap_over_median_before": max(during) / statistics.median(before),
            "gap_during_ms": gap_summary(during),
            "ttft_s": [line.ttft for line in long_lines],
            "ttft_idle_s": [line.ttft for line in idle],
            "ttft_over_idle": [line.ttft / one.ttft for line, one in zip(long_lines, idle, strict=True)],
            "ttft_one_after_the_other_s": [line.ttft for line in after_each_other],
            "streams_outlived_the_prompts": streaming > end,
        }


def gap_summary(gaps: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(gaps) * 1000,
        "p99": percentile(gaps, 0.99) * 1000,
        "worst": max(gaps) * 1000,
        "coalesced_share": sum(gap == 0 for gap in gaps) / len(gaps),
    }


def check(lines: list[Timeline]) -> None:
    """A figure over requests that failed is none."""
    errors = [line.error for line in lines if line.error or not line.tokens]
    if errors:
        raise click.ClickException(f"{len(errors)} of {len(lines)} requests failed: {errors[0]}")


CASES: dict[str, Callable[[Load], Awaitable[dict[str, Any]]]] = {
    "A": Load.one_stream,
    "B": Load.many_chats,
    "D": Load.stalls,
}


async def measure(url: str, cases: list[str], seed: int, repeats: int) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    connector = aiohttp.TCPConnector(limit=0)
    results: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    async with Session(timeout=timeout, connector=connector) as session:
        await Load(session, url, seed - 1).complete([*IDS[:32]], 8)  # the first request warms up
        for repeat in range(repeats):
            for case in cases:
                results[case].append(await CASES[case](Load(session, url, seed + repeat)))
                click.echo(f"{case}: {json.dumps(results[case][-1])}", err=True)
    return {"url": url, "seed": seed, "cases": results}


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True)
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="default: all")
@click.option("--seed", default=1, show_default=True)
@click.option("--repeats", default=1, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="keep the raw result here, as JSON")
def main(url: str, cases: tuple[str, ...], seed: int, repeats: int, output: Path | None) -> None:
    """Measures a running server."""
    result = asyncio.run(measure(url, list(cases) or list(CASES), seed, repeats))
    text = json.dumps(result, indent=1)
    if output:
        output.write_text(text + "\n")
    click.echo(text)


if __name__ == "__main__":
    main()
