"""Through scheduler and executor in bf16: preemption and prefix hits change the work, never the tokens."""

import asyncio

import httpx
import pytest

from tests.bus_client import client, request
from tests.servers import free_port

BLOCK = 16


class Replica:
    """One scheduler and executor with a metrics port."""

    def __init__(self, valkey, processes, model, blocks: int) -> None:
        self.url = valkey.url
        self.port = free_port()
        stack = processes(model=model, dtype="bfloat16", block_size=BLOCK, num_kv_blocks=blocks)
        stack.start("executor")
        stack.start("scheduler", metrics_port=self.port)

    def metric(self, name: str, labels: str = "") -> float:
        lines = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text.splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(name + labels + " ")))

    async def run(self, *requests) -> tuple[list[list[int]], list[int]]:
        """Tokens and cached prompt tokens of each."""
        async with client(self.url) as one:
            await one.ready()
            await one.send(*requests)
            await one.until(lambda: all(one.finish(r.id) for r in requests))
            return [one.tokens(r.id) for r in requests], [
                next(i.cached for i in one.items if i.request == r.id) for r in requests
            ]


async def test_preemption_changes_no_token(valkey, processes, tiny_model):
    """S7, S8: eight long outputs in a pool of 40 blocks, against one after the other."""
    replica = Replica(valkey, processes, tiny_model("llama3"), 41)
    wanted = [request(f"p{index}", length=30 + index, output=120) for index in range(8)]
    alone = [
        (await replica.run(request(f"{one.id}-alone", prompts=one.prompts, output=120)))[0][0]
        for one in wanted
    ]
    assert replica.metric("pillion_preemptions_total") == 0
    together, _ = await replica.run(*wanted)
    assert together == alone
    async with asyncio.timeout(20):  # counted up to the last heartbeat
        while not replica.metric("pillion_recomputed_tokens_total"):
            await asyncio.sleep(0.02)
    preemptions = replica.metric("pillion_preemptions_total")
    assert 0 < preemptions <= 8 * 4  # bounded a request


@pytest.mark.parametrize("extra", [-1, 0, 1, 3 * BLOCK])
async def test_a_prefix_hit_changes_no_token(valkey, processes, tiny_model, extra):
    """S18: prompts that share block-1, block, block+1 and more tokens; the cached count is exact."""
    replica = Replica(valkey, processes, tiny_model("llama3"), 64)
    shared = tuple(range(40, 40 + BLOCK + extra))
    own = tuple(range(130, 150))
    cold, cached = await replica.run(request("cold", prompts=(shared + own,), output=30, cache_salt="other"))
    assert cached == [0]
    await replica.run(request("first", prompts=(shared + own[::-1],), output=5))
    before = replica.metric("pillion_step_tokens_total", '{kind="prefill"}')
    hit, cached = await replica.run(request("second", prompts=(shared + own,), output=30))
    computed = replica.metric("pillion_step_tokens_total", '{kind="prefill"}') - before
    assert hit == cold
    assert cached == [len(shared) // BLOCK * BLOCK]
    assert computed == len(shared) + len(own) - cached[0]


async def test_a_prompt_cached_whole_still_computes_its_last_token(valkey, processes, tiny_model):
    replica = Replica(valkey, processes, tiny_model("llama3"), 64)
    prompt = tuple(range(40, 40 + 4 * BLOCK))
    first, _ = await replica.run(request("first", prompts=(prompt,), output=30))
    second, cached = await replica.run(request("second", prompts=(prompt,), output=30))
    assert second == first
    assert cached == [3 * BLOCK]  # the block of the last token is computed again, for its logits


async def test_a_seeded_request_is_deaf_to_its_neighbours(valkey, processes, tiny_model):
    """S30, S49."""
    Replica(valkey, processes, tiny_model("llama3"), 256)
    one = request("one", length=70, output=60, n=4)
    async with client(valkey.url) as alone:
        await alone.ready()
        await alone.send(one)
        await alone.until(lambda: sum(1 for item in alone.items if item.finish) == 4)
        quiet = [alone.tokens("one", choice) for choice in range(4)]
        assert len({tuple(tokens) for tokens in quiet}) == 4
        again = request("again", length=70, output=60, n=4, prompts=one.prompts)
        await alone.send(
            *(request(f"n{index}", length=11 * index + 1, output=90) for index in range(12)), again
        )
        await alone.until(lambda: sum(1 for i in alone.items if i.finish and i.request == "again") == 4)
        assert [alone.tokens("again", choice) for choice in range(4)] == quiet
