"""The gateway's benchmark against its real processes, and the executor that computes nothing."""

import asyncio
import random
import struct
import time

import pytest

from pillion.contracts import executor_pb2 as pb
from pillion.contracts.entries import Facts
from pillion.ops.bench import gateway
from pillion.ops.bench.costless import Costless
from pillion.ops.bench.gateway import limit
from pillion.ops.bench.gateway_report import report
from pillion.ops.bench.tap import Tap
from pillion.ops.traces import prompt

FACTS = Facts(
    model="m",
    fingerprint="f",
    max_model_len=64,
    vocab_size=800,
    end_tokens=(2,),
    block_size=16,
    num_blocks=9,
    max_num_seqs=2,
    max_step_tokens=64,
    tile=16,
    dtype="none",
    backend="none",
)


async def test_requests_streams_and_their_pace() -> None:
    random_ = random.Random(1)
    async with gateway.running("demo", 1) as costless:
        paced = await gateway.streams(costless, 3, 0.05, 1.0, random_)
        assert paced["tokens"] > 0
        assert paced["ttft_ms"]["median"] >= 50  # no token comes before the end of a step
        short = await gateway.requests(costless, 0.1, random_)
        assert short["requests"] > 0
        processes = {"valkey", "executor", "scheduler", "admission", "gateway", "client", "others"}
        assert set(short["cores"]) == set(paced["cores"]) == processes

        tap = Tap(costless.address, {"prompt": prompt(random_, 4), "max_tokens": 3, "stream": True})
        async with asyncio.timeout(60):
            await tap.open()
            await tap.ended.wait()
        assert (tap.line().output_tokens, tap.line().finish, tap.line().error) == (3, "length", None)

    options = {"model": "demo", "seed": 1, "seconds": 1.0, "paced": [(3, 50.0)]}
    made = report({"options": options, "cpus": 2, "requests": short, "paced": [paced], "saturated": paced})
    _, streams, cores = made.tables
    assert [row[0] for row in streams.rows] == ["3 streams, step 50 ms", "3 streams, no step time"]
    assert set(cores.columns) == {"", *processes, "at the limit"} and len(cores.rows) == 3


def answers(seed: int, step: float = 0.0) -> list[tuple[list[int], list[int]]]:
    """Tokens and finish of each of three plans, the second of two steps, for one sequence of four tokens."""
    engine = Costless(FACTS, seed)
    engine.step_seconds = step
    take = pb.Take(
        slot=0, incarnation=1, tokens=struct.pack("<4i", 5, 6, 7, 8), prompt_length=4, blocks=[1],
        max_tokens=4, sampling=pb.Sampling(seed=1, ignore_eos=True),
    )  # fmt: skip
    plans = [
        pb.Plan(step=1, take=[take], slot=[0], start=[0], count=[4], sample=[1]),
        pb.Plan(step=2, slot=[0], start=[4], count=[1], sample=[2]),
        pb.Plan(step=3, slot=[0], start=[6], count=[1], sample=[2]),
    ]
    results = [engine.run(plan) for plan in plans]
    assert [result.steps for result in results] == [1, 2, 1]
    return [(list(result.tokens), list(result.finish)) for result in results]


def test_the_executor_answers_from_its_table() -> None:
    first, second, third = answers(1)
    assert [len(tokens) for tokens, _ in (first, second, third)] == [1, 2, 1]
    assert [finish for _, finish in (first, second, third)] == [[pb.RUNNING], [pb.RUNNING], [pb.LENGTH]]
    assert answers(1) == [first, second, third] != answers(2)


def test_each_step_takes_its_time() -> None:
    began = time.perf_counter()
    answers(1, step=0.005)
    assert time.perf_counter() - began >= 4 * 0.005


@pytest.mark.parametrize(
    ("gateway_", "client", "cores", "told_"),
    [
        (0.95, 0.5, 4, "gateway"),
        (0.3, 0.91, 4, "client"),
        (0.89, 0.89, 4, "none"),
        (0.89, 0.88, 2, "none"),
        (0.899, 0.899, 1, "machine"),
    ],
)
def test_who_was_at_the_limit(gateway_: float, client: float, cores: int, told_: str) -> None:
    assert limit({"gateway": gateway_, "client": client, "others": 0.0}, cores) == told_


def test_what_others_use_counts_for_the_machine() -> None:
    shares = {"gateway": 0.5, "client": 0.1}
    assert limit(shares | {"others": 1.25}, 2) == "machine"
    assert limit(shares | {"others": 1.1}, 2) == "none"
