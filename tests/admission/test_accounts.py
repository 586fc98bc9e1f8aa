"""Tenants' limits and shares in the real process, with the accounts in a real Valkey."""

import asyncio
import re
import time
import urllib.request
from typing import Any

import msgspec
import pytest

from pillion.admission.tenants import Account
from pillion.bus import append
from pillion.contracts.entries import Refusal, Request, Spent, Usage, encode
from tests.admission.test_service import ended, held, until, until_count


async def told(neighbours: Any, count: int = 1) -> list[Refusal]:
    return [refusal for output in await neighbours.said(count=count) for refusal in output.refusals]


async def report(neighbours: Any, *spent: Spent, first: tuple[tuple[str, float], ...] = ()) -> None:
    """What a scheduler writes with a step."""
    await append(neighbours.connection, neighbours.keys.usage, encode(Usage("0", first, spent)))


async def reserved(neighbours: Any) -> int:
    return int(await neighbours.connection.call("HLEN", neighbours.keys.reserved))


async def account(neighbours: Any, tenant: str) -> Account | None:
    payload = await neighbours.connection.call("HGET", neighbours.keys.tenants, tenant)
    return None if payload is None else msgspec.msgpack.decode(payload, type=Account)


async def until_reserved(neighbours: Any, count: int) -> None:
    async def reached() -> bool:
        return await reserved(neighbours) == count

    await until(reached)


@pytest.fixture
def limited(processes: Any) -> Any:
    """Two sequences a tenant; alice has two requests a minute, bob 100 tokens, both more sequences."""
    return processes(
        lease_seconds=0.6,
        tenant_concurrency=2,
        tenant_limits="alice rpm=2 concurrency=50,bob tpm=100 concurrency=50",
    )


async def test_each_limit_is_a_429_that_names_it_and_says_when(neighbours: Any, limited: Any, make: Any):
    limited.start("admission")
    neighbours.replica(make.beat(credit=10_000))
    for _ in range(3):
        await neighbours.submit(make.request(10, tenant="alice"))
    (alice,) = await told(neighbours)
    assert (alice.status, alice.code, alice.type) == (429, "tenant_rpm", "rate_limit_error")
    assert "2 requests a minute" in alice.message
    assert [(rate.kind, rate.limit, rate.left) for rate in alice.rates] == [("requests", 2, 0)]
    assert alice.retry_after is not None and 25 <= alice.retry_after <= 30
    # 60 + 5 of 100: the next such has to wait for 30 more, at 100 a minute.
    for start in (0, 100):
        await neighbours.submit(make.request(tuple(range(start, start + 60)), tenant="bob"))
    (bob,) = await told(neighbours)
    assert (bob.status, bob.code) == (429, "tenant_tpm")
    assert bob.retry_after is not None and 16 <= bob.retry_after <= 19
    for n in (1, 1, 1):
        await neighbours.submit(make.request(10, tenant="carol", n=n))
    (carol,) = await told(neighbours)
    assert (carol.status, carol.code) == (429, "tenant_concurrency")
    assert len(await until_count(neighbours.ran, 5)) == 2 + 1 + 2


async def test_what_ended_makes_room_and_what_was_not_used_comes_back(
    neighbours: Any, limited: Any, make: Any
):
    limited.start("admission")
    neighbours.replica(make.beat(credit=10_000))
    carol = [make.request(tenant="carol") for _ in range(3)]
    for request in carol[:2]:
        await neighbours.submit(request)
    bob = make.request(tuple(range(60)), tenant="bob", max_tokens=30)
    await neighbours.submit(bob)
    await until_count(neighbours.ran, 3)
    await report(neighbours, Spent(carol[0].id, 10, 5), Spent(bob.id, 4, 6))  # 56 of bob's were cached
    await until_reserved(neighbours, 1)
    kept = await account(neighbours, "bob")
    assert kept is not None and 90 <= kept.tokens <= 100 and kept.output == 6
    again = make.request(60, tenant="bob", max_tokens=30)
    for request in (carol[2], again):
        await neighbours.submit(request)
    ran = await until_count(neighbours.ran, 5)
    assert {request.id for request in ran[3:]} == {carol[2].id, again.id}
    assert await neighbours.refused() == 0


async def test_a_successor_knows_who_has_used_what(neighbours: Any, limited: Any, make: Any):
    first = limited.start("admission")
    neighbours.replica(make.beat(credit=10_000))
    carol = [make.request(tenant="carol") for _ in range(4)]
    for request in (*carol[:2], make.request(tenant="alice"), make.request(tenant="alice")):
        await neighbours.submit(request)
    await until_count(neighbours.ran, 4)
    first.kill()
    await ended(first)
    # One ends while nobody is there to hear it.
    await report(neighbours, Spent(carol[0].id, 10, 5))
    limited.start("admission")
    await until_reserved(neighbours, 3)
    for request in (*carol[2:], make.request(tenant="alice")):
        await neighbours.submit(request)
    refusals = {refusal.code for refusal in await told(neighbours, 2)}
    assert refusals == {"tenant_rpm", "tenant_concurrency"}
    assert len(await until_count(neighbours.ran, 5)) == 5


async def test_what_was_let_in_is_not_judged_again(neighbours: Any, limited: Any, make: Any):
    first = limited.start("admission")
    waiting = [make.request(tenant="alice", arrival=float(number)) for number in range(2)]
    for request in waiting:
        await neighbours.submit(request)
    await held(neighbours, 2)
    await until_reserved(neighbours, 2)
    first.kill()
    await ended(first)
    limited.start("admission")
    await neighbours.submit(waiting[0])  # its gateway submits it again
    neighbours.replica(make.beat(credit=10_000))
    ran = await until_count(neighbours.ran, 2)
    assert {request.id for request in ran} == {request.id for request in waiting}
    await until(lambda: empty(neighbours))
    assert await neighbours.refused() == 0
    kept = await account(neighbours, "alice")
    assert kept is not None and -0.001 <= kept.requests < 0.5  # both were counted, once


async def empty(neighbours: Any) -> bool:
    return await neighbours.submitted() == 0


async def test_flushall_takes_no_account_away(neighbours: Any, limited: Any, make: Any):
    admission = limited.start("admission")
    neighbours.replica(make.beat(credit=10_000))
    for tenant in ("alice", "alice", "carol"):
        await neighbours.submit(make.request(tenant=tenant))
    await until_count(neighbours.ran, 3)
    await neighbours.connection.call("FLUSHALL")
    await neighbours.submit(make.request(tenant="carol"))
    await until_reserved(neighbours, 4)
    await neighbours.submit(make.request(tenant="alice"))
    (refusal,) = await told(neighbours)
    assert refusal.code == "tenant_rpm"
    assert admission.poll() is None
    assert await neighbours.connection.call("HLEN", neighbours.keys.tenants) == 2


async def test_a_flood_of_one_tenant_does_not_hold_up_another(neighbours: Any, processes: Any, make: Any):
    processes().start("admission")
    replica = neighbours.replica(make.beat(credit=40))

    def one(name: str, number: int, tenant: str, arrival: float) -> Request:
        prompt = tuple(range(100 * number + 50 * (tenant == "b"), 100 * number + 50 * (tenant == "b") + 40))
        return make.request(prompt, id=f"{name}{number}", tenant=tenant, arrival=arrival, max_tokens=1)

    flood = [one("flood", number, "a", float(number)) for number in range(20)]
    for request in flood:
        await neighbours.submit(request)
    await held(neighbours, 19)
    light = [one("light", number, "b", time.time()) for number in range(5)]
    for request in light:
        await neighbours.submit(request)
    await held(neighbours, 24)
    for count in range(2, 13):
        last = (await neighbours.run_entries())[-1].id
        await replica.tell(last_entry=last, uncomputed=0)
        await until_count(neighbours.ran, count)
    ran = [request.id[:5] for request in await neighbours.ran()]
    # They alternate until the light one has no more, though it came last.
    assert ran[1:11] in (["light", "flood"] * 5, ["flood", "light"] * 5)
    assert ran[11] == "flood"


async def test_early_refusal_says_why_and_when(neighbours: Any, processes: Any, make: Any):
    stack = processes(slo_ttft=2.0, metrics_port=0)
    stack.start("admission")
    replica = neighbours.replica(make.beat(credit=1000, prefill_rate=100.0, idle_rate=100.0))
    await neighbours.submit(make.request(10))
    await until_count(neighbours.ran, 1)
    await replica.tell(last_entry=(await neighbours.run_entries())[-1].id)
    long = make.request(900)  # 9 s, but no more than twice what it takes alone
    await neighbours.submit(long)
    await until_count(neighbours.ran, 2)  # by now it is idle, and known to be
    late = make.request(tuple(range(50)))
    await neighbours.submit(late)
    (refusal,) = await told(neighbours)
    assert (refusal.request, refusal.status, refusal.code) == (late.id, 429, "predicted_ttft")
    assert "after about 9.5 s, and 2 s is the target" in refusal.message
    assert refusal.retry_after == 8
    await report(neighbours, first=((long.id, 4.5),))

    async def counted() -> bool:
        url = re.search(r"http://\S+/metrics", stack.log("admission"))
        assert url is not None
        text = (await asyncio.to_thread(urllib.request.urlopen, url[0])).read().decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert lines['pillion_rejections_total{reason="predicted_ttft"}'] == "1.0"
        assert lines["pillion_queue_wait_seconds_count"] == "2.0"
        return (
            lines["pillion_ttft_over_predicted_count"] == "1.0"
            and 0.4 < float(lines["pillion_ttft_over_predicted_sum"]) < 0.51
        )

    await until(counted)


async def test_a_deadline_that_cannot_be_kept_is_refused_at_once(neighbours: Any, processes: Any, make: Any):
    processes().start("admission")
    neighbours.replica(make.beat(credit=10_000, uncomputed=3000, prefill_rate=100.0))
    fine: Request = make.request(50, deadline=time.time() + 600)
    await neighbours.submit(fine)
    assert [request.id for request in await until(neighbours.ran)] == [fine.id]
    hopeless = make.request(50, deadline=time.time() + 20)
    await neighbours.submit(hopeless)
    (refusal,) = await told(neighbours)
    assert (refusal.status, refusal.code) == (429, "predicted_deadline")
    assert time.time() < hopeless.deadline
    assert len(await neighbours.ran()) == 1
