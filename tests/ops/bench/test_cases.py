"""What is told of a load, from requests that a server of this test times."""

import asyncio
import random
import time
from typing import Any

import pytest

from pillion.ops.bench.cases import (
    CASES,
    Batch,
    CommonPrefix,
    Failed,
    Goodput,
    OneStream,
    Stalls,
    batch,
    gap_summary,
)
from pillion.ops.bench.client import Timeline
from pillion.ops.bench.server import Job
from pillion.ops.traces import Lengths, Shape
from pillion.ops.traces.lengths import SUMMARIES


class Timed:
    """A server's place: every request takes `seconds` on the loop's clock, and a token a millisecond."""

    def __init__(self, seconds: float = 0.0, **changes: Any) -> None:
        self.jobs: list[Job] = []
        self.most = self.now = 0
        self._seconds, self._changes = seconds, changes

    async def complete(self, job: Job, within: float | None = None) -> Timeline:
        self.jobs.append(job)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._seconds)
        self.now -= 1
        values = {
            "prompt_tokens": len(job.prompt),
            "output_tokens": job.output,
            "finish": "length",
            "status": 200,
        }
        tokens = [0.5 + number / 1000 for number in range(job.output)]
        return Timeline(0.0, **({"tokens": tokens} | values | self._changes))


async def test_one_stream() -> None:
    server = Timed()
    told = await OneStream()(server, random.Random(1))  # type: ignore[arg-type]
    assert [(len(job.prompt), job.output) for job in server.jobs] == [(64, 128)]
    assert told["ttft_s"] == 0.5 and told["decode_tokens_per_s"] == pytest.approx(1000)
    at_once = await OneStream()(Timed(tokens=[0.5] * 128), random.Random(1))  # type: ignore[arg-type]
    assert at_once["decode_tokens_per_s"] is None and at_once["gap_ms"]["coalesced_share"] == 1


async def test_a_closed_loop_has_so_many_at_a_time_and_counts_prompts_and_outputs() -> None:
    server = Timed(0.001)
    told = await batch(server, [Job([1] * 10, 5)] * 7, 3)  # type: ignore[arg-type]
    assert (server.most, len(server.jobs), told["requests"]) == (3, 7, 7)
    assert (told["prompt_tokens"], told["output_tokens"], told["ended_early"]) == (70, 35, 0)
    assert told["total_tokens_per_s"] == pytest.approx(105 / told["seconds"])
    early = await batch(Timed(output_tokens=4), [Job([1], 5)] * 2, 2)  # type: ignore[arg-type]
    assert early["ended_early"] == 2


async def test_the_cases_are_what_the_table_says() -> None:
    sent = {}
    for name in "BCE":
        server = Timed(0.001)
        await CASES[name](server, random.Random(1))  # type: ignore[arg-type]
        sent[name] = (len(server.jobs), server.most)
    assert sent == {"B": (48, 48), "C": (24, 8), "E": (24, 8)}
    assert CASES["G"] == Goodput(rate=0.5, seconds=60.0, ttft=2.0, tbt=0.15, shape=SUMMARIES)


async def test_a_prefix_is_common_to_a_run_and_to_no_other() -> None:
    prefixes = []
    for seed in (1, 2):
        server = Timed()
        await CommonPrefix()(server, random.Random(seed))  # type: ignore[arg-type]
        assert {(len(job.prompt), job.output) for job in server.jobs} == {(660, 40)}
        prefixes.append({tuple(job.prompt[:600]) for job in server.jobs})
        assert len({tuple(job.prompt) for job in server.jobs}) == 24
    assert [len(each) for each in prefixes] == [1, 1] and prefixes[0] != prefixes[1]


async def test_goodput_is_the_share_that_met_both_targets() -> None:
    case = Goodput(rate=200.0, seconds=0.1, shape=Shape(Lengths(4, 8, 1, 9), Lengths(3, 5, 2, 6)))
    good = await case(Timed(), random.Random(3))  # type: ignore[arg-type]
    assert good["requests"] > 5 and (good["good_share"], good["failed"]) == (1.0, 0)
    after = time.perf_counter() + 2.4  # arrivals end 0.2 s after the start: two seconds late for each
    late = await case(Timed(tokens=[after, after]), random.Random(3))  # type: ignore[arg-type]
    assert (late["good_share"], late["missed_ttft"]) == (0.0, late["requests"])
    stalled = await case(Timed(tokens=[0.0, 0.2]), random.Random(3))  # type: ignore[arg-type]
    assert (stalled["good_share"], stalled["missed_tbt"]) == (0.0, stalled["requests"])
    refused = await case(Timed(finish=None, tokens=[0.0, 0.0]), random.Random(3))  # type: ignore[arg-type]
    assert (refused["good_share"], refused["failed"]) == (0.0, refused["requests"])


async def test_a_figure_over_requests_that_failed_is_none() -> None:
    for changes, said in (
        ({"error": "500 no"}, "2 of 2 requests failed: 500 no"),
        ({"tokens": []}, "no token came"),
    ):
        with pytest.raises(Failed, match=said):
            await Batch(2, 2, SUMMARIES)(Timed(**changes), random.Random(1))  # type: ignore[arg-type]
    with pytest.raises(Failed, match="two tokens"):
        await OneStream(output=1)(Timed(), random.Random(1))  # type: ignore[arg-type]
    with pytest.raises(Failed, match="had ended before"):
        await Stalls(apart=0.0, until=0.0)(Timed(tokens=[0.0]), random.Random(1))  # type: ignore[arg-type]


def test_gaps_in_milliseconds() -> None:
    told = gap_summary([0.0] + [0.01] * 97 + [0.02, 0.03])
    assert told == {"median": 10.0, "p99": 20.0, "worst": 30.0, "coalesced_share": 0.01}
