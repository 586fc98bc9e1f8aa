"""The loads of `pillion bench load`: what is sent when, and what is told of it.

Gaps are between consecutive tokens at the client (TBT), TTFT is from sending, total tokens are prompt and
output.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pillion.ops.bench.client import Timeline
from pillion.ops.bench.sending import send
from pillion.ops.bench.server import Job, Server
from pillion.ops.measure import Outcome, Slo, Tally, percentile
from pillion.ops.traces import Shape, arrivals, poisson, prompt
from pillion.ops.traces.lengths import CHATS, SUMMARIES

Result = dict[str, Any]
Case = Callable[[Server, random.Random], Awaitable[Result]]


class Failed(Exception):
    """A figure over requests that failed is none."""


@dataclass(frozen=True, slots=True)
class OneStream:
    """A: one stream."""

    prompt: int = 64
    output: int = 128

    async def __call__(self, server: Server, random_: random.Random) -> Result:
        line = await server.complete(Job(prompt(random_, self.prompt), self.output))
        check([line])
        gaps, seconds = gap_summary(line.gaps), line.tokens[-1] - line.tokens[0]
        return {
            "ttft_s": line.ttft,
            "decode_tokens_per_s": (line.output_tokens - 1) / seconds if seconds else None,
            "gap_ms": gaps,
            "cached_tokens": line.cached_tokens,
            "ended_early": int(line.output_tokens < self.output),
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """B: chats, all at once. C: summaries, so many at a time."""

    requests: int
    at_a_time: int
    shape: Shape

    async def __call__(self, server: Server, random_: random.Random) -> Result:
        jobs = [Job.of(self.shape.draw(random_), random_) for _ in range(self.requests)]
        return await batch(server, jobs, self.at_a_time)


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """E: requests that begin with the same tokens, which no earlier run has sent."""

    requests: int = 24
    at_a_time: int = 8
    common: int = 600
    own: int = 60
    output: int = 40

    async def __call__(self, server: Server, random_: random.Random) -> Result:
        common = prompt(random_, self.common)
        jobs = [Job(common + prompt(random_, self.own), self.output) for _ in range(self.requests)]
        return await batch(server, jobs, self.at_a_time)


@dataclass(frozen=True, slots=True)
class Stalls:
    """D: streams decode while long prompts arrive a second apart.

    For comparison others of that length first arrive a second apart at the idle server, and some more one
    after the other.
    """

    streams: int = 8
    output: int = 400
    prompts: int = 3
    length: int = 1500
    apart: float = 1.0  # seconds
    until: float = 3.0  # seconds, by which all streams decode

    async def __call__(self, server: Server, random_: random.Random) -> Result:
        def long() -> Job:
            return Job(prompt(random_, self.length), 8)

        after_each_other = [await server.complete(long()) for _ in range(self.prompts)]
        _, idle = await self._arrive(server, [long() for _ in range(self.prompts)])
        streams = [
            asyncio.create_task(server.complete(Job(prompt(random_, 64), self.output)))
            for _ in range(self.streams)
        ]
        await asyncio.sleep(self.until)
        arrived, lines = await self._arrive(server, [long() for _ in range(self.prompts)])
        decoding = await asyncio.gather(*streams)
        check([*after_each_other, *idle, *decoding, *lines])
        end = max(line.tokens[0] for line in lines)
        gaps = [(at, gap) for line in decoding for gap, at in zip(line.gaps, line.tokens[1:], strict=True)]
        before = [gap for at, gap in gaps if at < arrived]
        during = [gap for at, gap in gaps if arrived <= at <= end + 0.5]
        if not before or not during:
            raise Failed(
                "the streams had ended before the long prompts came: the server is too quick for this case"
            )
        return {
            "median_gap_before_ms": statistics.median(before) * 1000,
            "worst_gap_ms": max(during) * 1000,
            "worst_gap_over_median_before": max(during) / statistics.median(before),
            "gap_during_ms": gap_summary(during),
            "ttft_s": [line.ttft for line in lines],
            "ttft_idle_s": [line.ttft for line in idle],
            "ttft_over_idle": [line.ttft / one.ttft for line, one in zip(lines, idle, strict=True)],
            "ttft_one_after_the_other_s": [line.ttft for line in after_each_other],
            "streams_outlived_the_prompts": min(line.tokens[-1] for line in decoding) > end,
        }

    async def _arrive(self, server: Server, jobs: Sequence[Job]) -> tuple[float, list[Timeline]]:
        """When the first was sent, and what became of all."""
        start = time.perf_counter()

        async def one(number: int, job: Job) -> Timeline:
            await asyncio.sleep(max(0.0, start + number * self.apart - time.perf_counter()))
            return await server.complete(job)

        return start, await asyncio.gather(*(one(number, job) for number, job in enumerate(jobs)))


@dataclass(frozen=True, slots=True)
class Goodput:
    """G: requests arrive at random, whatever the server does; latency counts from the intended time."""

    rate: float = 0.5  # requests a second
    seconds: float = 60.0
    ttft: float = 2.0  # target, seconds
    tbt: float = 0.15  # target of each request's 99th percentile, seconds
    shape: Shape = SUMMARIES

    async def __call__(self, server: Server, random_: random.Random) -> Result:
        due = arrivals(random_, self.shape, poisson(self.rate), seconds=self.seconds)
        jobs = [Job.of(arrival, random_) for arrival in due]
        tally, tails = Tally(Slo(self.ttft, self.tbt)), list[float]()

        def ended(end: Outcome, gaps: list[float]) -> None:
            tally.add(end, gaps)
            tails.extend([] if end.gap_p99 is None else [end.gap_p99])

        sent = await send(server, jobs, ended)
        if not tails:
            why = sent.errors[0] if sent.errors else "they had no time for two"
            raise Failed(f"none of {tally.sent} requests got two tokens: {why}")
        told = tally.summary(self.seconds)
        return {
            "requests": told["sent"],
            "good_share": told["good_share"],
            "failed": told["sent"] - told["finished"],
            "missed_ttft": told["missed_ttft"],
            "missed_tbt": told["missed_tbt"],
            "ttft_s": {name: told["ttft_s"][name] for name in ("median", "p90", "worst")},
            "gap_p99_ms": {"median": statistics.median(tails) * 1000, "worst": max(tails) * 1000},
            "worst_lag_s": tally.lag.most,
            "cached_tokens": told["cached_tokens"],
        }


CASES: dict[str, Case] = {
    "A": OneStream(),
    "B": Batch(48, 48, CHATS),
    "C": Batch(24, 8, SUMMARIES),
    "D": Stalls(),
    "E": CommonPrefix(),
    "G": Goodput(),
}


async def batch(server: Server, jobs: Sequence[Job], at_a_time: int) -> Result:
    """A closed loop: as many clients as may run at a time, each with one request after the other."""
    left = iter(jobs)

    async def client() -> list[tuple[Job, Timeline]]:
        return [(job, await server.complete(job)) for job in left]

    start = time.perf_counter()
    clients = await asyncio.gather(*(client() for _ in range(at_a_time)))
    seconds = time.perf_counter() - start
    done = [one for each in clients for one in each]
    lines = [line for _, line in done]
    check(lines)
    prompts, outputs = sum(line.prompt_tokens for line in lines), sum(line.output_tokens for line in lines)
    firsts = [line.ttft for line in lines]
    return {
        "requests": len(lines),
        "prompt_tokens": prompts,
        "cached_tokens": sum(line.cached_tokens for line in lines),
        "output_tokens": outputs,
        "ended_early": sum(line.output_tokens < job.output for job, line in done),
        "seconds": seconds,
        "total_tokens_per_s": (prompts + outputs) / seconds,
        "ttft_s": {"median": statistics.median(firsts), "worst": max(firsts)},
        "gap_ms": gap_summary([gap for line in lines for gap in line.gaps]),
    }


def summary(seconds: Sequence[float], lack: str) -> dict[str, float]:
    """Milliseconds. Raises Failed with `lack` for none."""
    if not seconds:
        raise Failed(lack)
    return {
        "median": statistics.median(seconds) * 1000,
        "p99": percentile(seconds, 0.99) * 1000,
        "worst": max(seconds) * 1000,
    }


def gap_summary(gaps: Sequence[float]) -> dict[str, float]:
    """Of gaps in seconds. Raises Failed for none."""
    told = summary(gaps, "no stream brought two tokens one after the other")
    return told | {"coalesced_share": sum(gap == 0 for gap in gaps) / len(gaps)}


def check(lines: Sequence[Timeline]) -> None:
    """Raises Failed where a request did."""
    wrong = [line.error or "no token came" for line in lines if line.error or not line.tokens]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(lines)} requests failed: {wrong[0]}")
