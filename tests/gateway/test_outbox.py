"""The scripts that begin a life of a request: run twice, where an answer was lost, they have one effect."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pillion import clock
from pillion.bus import Connection, Keys
from pillion.contracts.entries import Cancel, Request, Sampling, StepOutput, decode
from pillion.gateway import outbox as module
from pillion.gateway.heads import Heads, Once, Standing, StreamHead
from pillion.gateway.outbox import Outbox
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Output
from tests.bus_client import READ

KEYS = Keys("default")
ONCE = Once("name", "body")


@pytest.fixture
async def redis(valkey: Any) -> AsyncIterator[Connection]:
    connection = Connection(valkey.url, "test")
    yield connection
    await connection.close()


@pytest.fixture
def outbox(redis: Connection) -> Outbox:
    return Outbox(redis, KEYS, "g", bound=3, retention=600.0)


def request(id: str = "r", **fields: Any) -> Request:
    values = {"deadline": clock.wall() + 60, "tenant": "t"} | fields
    return Request(id, "g", "m", ((1, 2),), Sampling(seed=1), clock.wall(), **values)


def head(one: Request) -> StreamHead:
    return StreamHead(
        one, 7, "fp", Output("chat", stream=True, stop=("x",), logprobs=3), ("echo",), "body", "label"
    )


async def submitted(redis: Connection) -> list[tuple[str, int]]:
    rows = await redis.call("XRANGE", KEYS.submit, "-", "+")
    return [(one.id, one.life) for one in (decode(row[1][1], Request) for row in rows)]


async def parked(redis: Connection, life: int) -> Standing:
    await redis.call("HSET", KEYS.stream("r"), "parked", life)
    standing = await Heads(redis, KEYS, READ).find("r")
    assert standing is not None and standing.parked
    return standing


async def test_a_submit_whose_answer_got_lost_is_one(redis: Connection, outbox: Outbox) -> None:
    one = request()
    assert await outbox.submit(one, head(one), "c", ONCE) != ""
    assert await outbox.submit(one, head(one), "c", ONCE) == ""
    assert await submitted(redis) == [("r", 0)]
    standing = await Heads(redis, KEYS, READ).find("r")
    assert standing is not None
    assert standing == Standing(head(one), "g", 0, False, False, None)
    assert await Heads(redis, KEYS, READ).named("t", ONCE) == "r"
    for key in (KEYS.stream("r"), KEYS.once("t", "name")):
        assert 655 < await redis.call("TTL", key) <= 661, "as long as it may run, and then as its record"


async def test_a_key_has_one_request_until_that_is_forgotten(redis: Connection, outbox: Outbox) -> None:
    one, two = request(), request("s")
    await outbox.submit(one, head(one), "c", ONCE)
    with pytest.raises(ApiError) as error:
        await outbox.submit(two, head(two), "d", ONCE)
    assert (error.value.status, error.value.code) == (409, "idempotency_key_in_use")
    await outbox.submit(two, head(two), "d", replace(ONCE, former="r"))
    assert await submitted(redis) == [("r", 0), ("s", 0)]
    outbox.forget(one, "c", ONCE)  # it has the key no longer
    await outbox.flush()
    assert await Heads(redis, KEYS, READ).named("t", ONCE) == "s"
    outbox.forget(two, "not mine", None)
    await outbox.flush()
    assert (
        await Heads(redis, KEYS, READ).find("r") is None
        and await Heads(redis, KEYS, READ).find("s") is not None
    )


async def test_the_next_life_is_one_connections(redis: Connection, outbox: Outbox) -> None:
    one = request()
    await outbox.submit(one, head(one), "c")
    await redis.call("HSET", KEYS.stream("r"), "owner", "other")
    await redis.call("XADD", KEYS.out("other"), "*", "e", b"")
    await redis.call("SET", KEYS.parking("r"), 0)
    standing = await parked(redis, 0)
    two = msgspec.structs.replace(one, life=1)
    assert await outbox.take_up(two, standing, "d") != ""
    assert await outbox.take_up(two, standing, "d") == "", "an answer got lost"
    with pytest.raises(ApiError) as error:
        await outbox.take_up(two, standing, "e")
    assert (error.value.status, error.value.code) == (409, "stream_moved")
    assert await submitted(redis) == [("r", 0), ("r", 1)]
    assert await redis.call("EXISTS", KEYS.parking("r")) == 0, "it was the former life's"
    *_, (_, fields) = await redis.call("XRANGE", KEYS.out("other"), "-", "+")
    (word,) = decode(fields[1], StepOutput).refusals
    assert (word.request, word.life, word.code) == ("r", 0, "stream_moved")
    assert await redis.call("XLEN", KEYS.out("other")) == 2, "it is told once"
    # A gateway that is gone is not told: nobody would take its stream away again.
    await redis.call("DEL", KEYS.out("other"))
    await redis.call("HSET", KEYS.stream("r"), "owner", "other")
    await outbox.take_up(msgspec.structs.replace(one, life=2), await parked(redis, 1), "f")
    assert await redis.call("EXISTS", KEYS.out("other")) == 0


async def test_what_runs_is_not_taken_up(redis: Connection, outbox: Outbox) -> None:
    one = request()
    await outbox.submit(one, head(one), "c")
    standing = await Heads(redis, KEYS, READ).find("r")
    assert standing is not None and not standing.parked
    with pytest.raises(ApiError):
        await outbox.take_up(msgspec.structs.replace(one, life=1), standing, "d")
    assert await submitted(redis) == [("r", 0)]


async def test_a_later_life_waits_for_room_like_everyone(redis: Connection, outbox: Outbox) -> None:
    one = request()
    await outbox.submit(one, head(one), "c")
    standing = await parked(redis, 0)
    for name in "st":
        await outbox.submit(request(name), head(request(name)), name)
    for attempt in (
        outbox.take_up(msgspec.structs.replace(one, life=1), standing, "d"),
        outbox.submit(request("u"), head(request("u")), "u"),
    ):
        with pytest.raises(ApiError) as error:
            await attempt
        assert (error.value.status, error.value.code) == (429, "queue_full")
    assert await parked(redis, 0) == standing, "and stays parked"
    assert await Heads(redis, KEYS, READ).find("u") is None


async def test_while_redis_is_away_the_oldest_words_give_way_and_nobody_fails(
    redis: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAITING", 8)
    outbox = Outbox(redis, KEYS, "g", bound=3)
    await outbox.submit(request("r"), head(request("r")), "c", ONCE)
    for number in range(5):
        outbox.park(f"early{number}", 0, "the client is gone")
    for number in range(7):
        outbox.cancel(f"late{number}", None, "the client is gone")
    outbox.forget(request("r"), "c", ONCE)
    await outbox.flush()
    rows = await redis.call("XRANGE", KEYS.cancel, "-", "+")
    assert [decode(row[1][1], Cancel).request for row in rows] == [f"late{number}" for number in range(7)]
    assert await redis.call("EXISTS", KEYS.stream("r"), KEYS.once("t", ONCE.name)) == 0
    assert "5 cancels found no room while Redis was away" in caplog.text
    caplog.clear()
    outbox.cancel("more", None, "the client is gone")
    await outbox.flush()
    assert not caplog.records
