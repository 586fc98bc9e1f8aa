"""What `ops/chaos` sees of a stack's Redis and does to it, on a real Valkey."""

from collections.abc import AsyncIterator

import pytest

from pillion.bus import Connection, Keys
from pillion.bus.loss import generation
from pillion.config import Stack
from pillion.contracts.entries import Heartbeat, encode
from pillion.ops.chaos.data import Data
from tests.servers import Valkey

KEYS = Keys("s")


@pytest.fixture
async def data(valkey: Valkey) -> AsyncIterator[Data]:
    made = Data(Stack(redis=valkey.url, stack="s"))
    yield made
    await made.close()


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Connection]:
    made = Connection(valkey.url, "test")
    yield made
    await made.close()


async def test_it_is_whole_again_when_all_replicas_have_told_and_every_head_is_there(
    data: Data, redis: Connection
) -> None:
    async def tell(replica: str) -> None:
        beat = Heartbeat(replica, 1, "ready", generation=await generation(redis, KEYS.marker))
        await redis.call("HSET", KEYS.replicas, replica, encode(beat))

    for replica in ("0", "1"):
        await tell(replica)
    assert await data.whole([], 2)
    assert await data.empty()
    assert not await redis.call("DBSIZE")
    assert not await data.whole([], 2)
    await tell("0")
    assert not await data.whole([], 2)
    await tell("1")
    assert await data.whole([], 2) and not await data.whole(["a"], 2)
    await redis.call("HSET", KEYS.stream("a"), "life", 0)
    assert await data.whole(["a"], 2)
    await redis.call("DEL", KEYS.marker)
    assert not await data.whole(["a"], 2)


async def test_what_is_left_of_requests_is_named_once_it_had_the_time_to_go(
    data: Data, redis: Connection
) -> None:
    assert await data.left() == []
    for key in (KEYS.submit, KEYS.run("0"), KEYS.run("1")):
        entry = await redis.call("XADD", key, "*", "e", b"")
    await redis.call("XDEL", KEYS.run("1"), entry)
    await redis.call("HSET", KEYS.reserved, "a", 1, "b", 1)
    for request in ("a", "b", "c"):
        await redis.call("SET", KEYS.holder(request), "0")
    assert sorted(await data.left(seconds=0.0)) == sorted(
        [f"1 left in {KEYS.submit}", f"1 left in {KEYS.run('0')}", f"2 left in {KEYS.reserved}",
         f"3 left in {KEYS.holder('*')}"]
    )  # fmt: skip
    assert await data.holders(["c", "x"]) == {"c": "0"}


async def test_where_redis_is_away_nothing_is_known(valkey: Valkey, data: Data) -> None:
    assert await data.there()
    valkey.kill()
    assert not await data.there() and not await data.whole([], 0)
    assert await data.holders(["a"]) == {} == await data.holders([])
    valkey.start()
    assert await data.there()
