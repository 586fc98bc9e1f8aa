"""What a dead replica leaves in Redis comes back to `submit`, each request once, with what it has brought."""

from typing import Any

from opentelemetry import trace

from pillion.admission.desk import METRICS, Desk, TakenBack
from pillion.admission.policy import Heard, Policy
from pillion.admission.spans import Spans
from pillion.admission.takeover import TakeOver
from pillion.bus import Group, Lease, append
from pillion.bus.journal import read_record
from pillion.config import load
from pillion.contracts.entries import Record, Request, decode
from pillion.telemetry import Metrics
from tests.admission.conftest import make_beat, make_facts
from tests.bus_client import KEYS, READ, RECORDS, Client, client, leave_behind, request


def take_over(one: Client) -> tuple[TakeOver, Desk]:
    """Admission's, which has heard of replica 0."""
    policy = Policy(100, 10.0)
    policy.handle(Heard(make_beat("0", facts=make_facts(fingerprint="bits"))), 0.0)
    lease = Lease(one.connection, KEYS, "admission", 60.0)
    metrics = Metrics("admission", "0", METRICS)
    desk = Desk(policy, one.connection, KEYS, lease, metrics, Spans(trace.get_tracer("test")), "me")
    return TakeOver(one.connection, KEYS, load({}, environ={}).config.scheduler, desk, READ), desk


async def test_each_comes_back_once_with_record_and_journal(valkey: Any) -> None:
    async with client(valkey.url) as one:
        redis = one.connection
        await leave_behind(redis)
        await one.send(*map(request, ("ran", "parked", "both", "ended", "new")))
        assert len(await Group(redis, KEYS.run("0"), "scheduler", "dead").read(count=4)) == 4
        unreadable = await append(redis, KEYS.run("0"), b"\xc1 no entry")
        taking, desk = take_over(one)
        await taking.take("0")
        assert await desk.mailbox.get() == TakenBack("0")
        rows = await redis.call("XRANGE", KEYS.submit, "-", "+")
        again = [decode(row[1][1], Request) for row in rows]
        assert [(each.id, each.resumed, each.fingerprint) for each in again] == [
            ("ran", True, "bits"), ("parked", True, "bits"), ("both", True, "bits"), ("new", True, ""),
        ]  # fmt: skip
        brought = {"ran": (40, 41, 42), "parked": (10, 11), "both": (20, 21, 22)}
        for name, tokens in brought.items():
            record = await read_record(redis, KEYS, name, READ)
            assert record is not None and not record.finished
            assert record.choices[0].tokens == tokens
        assert await read_record(redis, KEYS, "new", READ) is None
        assert await read_record(redis, KEYS, "ended", READ) == Record("ended", (RECORDS["ended"],))
        # A successor finds what nobody else may end, and nothing to run.
        left = [row[0].decode() for row in await redis.call("XRANGE", KEYS.run("0"), "-", "+")]
        assert len(left) == 2 and left[1] == unreadable
        assert await redis.call("EXISTS", KEYS.holder("parked"), KEYS.holder("both")) == 0
        assert await redis.call("EXISTS", KEYS.lease("replica:0")) == 0
        await taking.take("0")
        assert await redis.call("XLEN", KEYS.submit) == 4


async def test_what_a_living_replica_holds_is_left_to_it(valkey: Any) -> None:
    async with client(valkey.url) as one:
        await one.send(request("runs"))
        await Lease(one.connection, KEYS, "replica:0", 60.0).acquire()
        taking, desk = take_over(one)
        await taking.take("0")
        assert await one.connection.call("EXISTS", KEYS.submit) == 0
        assert not len(desk.mailbox)
