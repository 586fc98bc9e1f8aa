"""Gaps, slow readers, a Redis that goes away: a stream goes on from the journal, or says that it cannot."""

import asyncio
import json
import socket
from collections import Counter
from typing import Any

import msgspec
import psutil
import pytest

from pillion.actors import Exit, Stop
from pillion.bus import Connection, Durable, append
from pillion.contracts.entries import ChoiceRecord, Record, StepOutput, TokenLogprob, Tokens, encode
from pillion.gateway import call, reply
from pillion.gateway.streams import AT_ONCE, CAPACITY, Inbox

PATH = "/v1/chat/completions"
STREAM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 1500,
    "stream": True,
    "return_token_ids": True,
}


def ids(events: list[Any]) -> list[int]:
    return [token for e in events[:-1] for token in e["choices"][0].get("token_ids", ())]


async def test_a_gap_is_filled_from_the_journal(start: Any, parse_sse: Any, caplog: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
    for position in (1, 2):  # trimmed from `out` before the gateway came to read it
        await stack.driver.journal(Tokens(request.id, 0, position, (100 + position,)))
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 3, (103,), "length"))
    assert ids(parse_sse((await answer)[1])) == [100, 101, 102, 103]
    assert "reading the journal" in caplog.text


async def test_a_gap_of_a_finished_request_is_filled_from_its_record(start: Any, parse_sse: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    await stack.driver.record(Record(request.id, (ChoiceRecord((100, 101, 102), "length"),)))
    output = StepOutput("0", 1, 9, (Tokens(request.id, 0, 2, (102,), "length"),))
    await stack.driver.connection.call(
        "XADD", stack.driver.keys.out(request.gateway), "*", "e", encode(output)
    )
    assert ids(parse_sse((await answer)[1])) == [100, 101, 102]


async def test_a_gap_is_filled_when_what_redis_lost_is_put_back(
    start: Any, parse_sse: Any, until: Any, caplog: Any
) -> None:
    """Killed before its last words were written, it has neither what was published nor its journal."""
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
    output = StepOutput("0", 1, 9, (Tokens(request.id, 0, 3, (103,), "length"),))
    await append(stack.driver.connection, stack.driver.keys.out(request.gateway), encode(output))
    await until(lambda: "reading the journal" in caplog.text)
    await stack.driver.journal(Tokens(request.id, 0, 0, (100, 101, 102, 103), "length"))
    assert ids(parse_sse((await answer)[1])) == [100, 101, 102, 103]


async def test_a_redis_that_is_frozen_while_a_gap_is_filled_is_a_pause(
    start: Any, valkey: Any, parse_sse: Any, until: Any, monkeypatch: Any, caplog: Any
) -> None:
    """However long: what can be missed only shows once it answers."""
    monkeypatch.setattr(call, "CATCH_UP_PATIENCE", 0.1)
    monkeypatch.setattr(reply, "KEEPALIVE", 0.2)
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:
        request = await stack.driver.request()
        await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
        text = (await response.content.readuntil(b"\n\n")).decode()
        await stack.driver.journal(Tokens(request.id, 0, 1, (101,)))
        process = psutil.Process(valkey.process.pid)
        process.suspend()
        inbox = stack.gateway.state.calls[request.id]._inbox
        inbox.put(Tokens(request.id, 0, 2, (102,)), "0")
        inbox.wake()
        await until(lambda: "reading the journal" in caplog.text)
        async for line in response.content:
            text += line.decode()
            if text.count(": keepalive\n") == 3:
                break
        process.resume()
        await stack.driver.publish(request.gateway, Tokens(request.id, 0, 2, (102, 103), "length"))
        text += await response.text()
    assert ids(parse_sse(text)) == [100, 101, 102, 103]


async def test_two_histories_are_never_joined(start: Any, parse_sse: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(call, "CATCH_UP_PATIENCE", 0.3)
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:  # the headers are here
        request = await stack.driver.request()
        output = StepOutput("0", 1, 9, (Tokens(request.id, 0, 2, (102,), "length"),))
        await stack.driver.connection.call(
            "XADD", stack.driver.keys.out(request.gateway), "*", "e", encode(output)
        )
        frame, done = parse_sse(await response.text())
    assert frame["error"]["code"] == "stream_gap" and done == "[DONE]"
    assert (await stack.driver.cancel()).request == request.id


async def test_items_that_come_again_are_dropped(start: Any, parse_sse: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    for position, tokens in ((0, (100, 101)), (0, (100,)), (1, (101, 102)), (0, (100, 101, 102))):
        await stack.driver.publish(request.gateway, Tokens(request.id, 0, position, tokens))
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 2, (102, 103), "length"))
    assert ids(parse_sse((await answer)[1])) == [100, 101, 102, 103]


async def test_a_lost_end_is_found_in_the_record(start: Any, parse_sse: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(reply, "KEEPALIVE", 0.2)
    stack = await start()
    async with stack.session.post(stack.url + PATH, json=STREAM) as response:
        request = await stack.driver.request()
        await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
        text = ""
        while ": keepalive\n" not in text:
            text += (await response.content.readline()).decode()
        await stack.driver.record(Record(request.id, (ChoiceRecord((100, 101), "stop"),)))
        text += await response.text()
    assert ids(parse_sse(text)) == [100, 101]
    assert ": keepalive\n" in text and ": keepalive\n\n" not in text


async def test_a_slow_reader_holds_nobody_and_gets_all(start: Any, parse_sse: Any, until: Any) -> None:
    stack = await start()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", stack.gateway.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 12)
    body = json.dumps(STREAM | {"logprobs": True, "top_logprobs": 20}).encode()
    # HTTP/1.0: the body is not chunked and ends with the connection.
    head = b"POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (PATH.encode(), len(body)) + body)
    slow = await stack.driver.request()
    quick = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    inbox = stack.gateway.state.calls[slow.id]._inbox
    tokens = [100 + number % 7 for number in range(3000)]
    logprob = TokenLogprob(-1.0, 1, tuple((200 + k, -2.0) for k in range(20)))
    for position, token in enumerate(tokens):
        final = "length" if position == len(tokens) - 1 else None
        await stack.driver.publish(
            slow.gateway, Tokens(slow.id, 0, position, (token,), final, logprobs=(logprob,))
        )
        if position % 200 == 0:
            at = position // 200
            await stack.driver.publish(
                request.gateway, Tokens(request.id, 0, at, (100,), "length" if at == 14 else None)
            )
    assert (await quick)[0] == 200, "the other stream ended while the slow one was not read"
    await until(lambda: inbox.lost)  # the condition: there was no room for all
    received = await reader.read(-1)
    writer.close()
    assert ids(parse_sse(received.partition(b"\r\n\r\n")[2].decode())) == tokens


async def test_a_full_inbox_says_that_it_lost_something() -> None:
    inbox = Inbox("r")
    for position in range(CAPACITY + 5):
        inbox.put(Tokens("r", 0, position, (1,)), "0")
    assert inbox.lost and len(await inbox.take(0.0)) == CAPACITY


async def test_tokens_of_many_streams_leave_turns_for_others_and_first_ones_go_first(start: Any) -> None:
    stack = await start()
    streams, loop = stack.gateway.state.streams, asyncio.get_running_loop()
    inboxes = [streams.open(f"r{number}") for number in range(10 * AT_ONCE)]
    came: list[tuple[int, str]] = []  # the loop's turn, and whose tokens
    turn = 0

    def count() -> None:
        nonlocal turn, counting
        turn, counting = turn + 1, loop.call_soon(count)

    async def take(inbox: Inbox) -> None:
        assert await inbox.take(10.0)
        came.append((turn, inbox.request))

    async def publish(position: int) -> None:
        items = [Tokens(inbox.request, 0, position, (100,)) for inbox in inboxes]
        await stack.driver.publish(stack.gateway.state.id, *items)

    takers = [asyncio.create_task(take(inbox)) for inbox in inboxes]
    counting = loop.call_soon(count)
    await publish(0)
    await asyncio.gather(*takers)
    assert max(Counter(at for at, _ in came).values()) <= AT_ONCE
    came.clear()
    inboxes.append(streams.open("new"))
    takers = [asyncio.create_task(take(inbox)) for inbox in inboxes]
    await publish(1)
    await asyncio.gather(*takers)
    counting.cancel()
    assert "new" in [request for _, request in came[:AT_ONCE]]
    for inbox in inboxes:
        streams.close(inbox)


async def test_what_came_before_its_turn_is_not_overlooked_when_patience_ends() -> None:
    inbox = Inbox("r")
    taker = asyncio.create_task(inbox.take(0.01))
    await asyncio.sleep(0)
    inbox.put(Tokens("r", 0, 0, (1,)), "0")
    assert [item.position for item in await taker] == [0]


async def test_an_inbox_that_was_emptied_before_its_turn_wakes_nobody() -> None:
    inbox = Inbox("r")
    inbox.put(Tokens("r", 0, 0, (1,)), "0")
    assert len(await inbox.take(0.0)) == 1
    taker = asyncio.create_task(inbox.take(10.0))
    await asyncio.sleep(0)
    inbox.wake()
    await asyncio.sleep(0)
    inbox.put(Tokens("r", 0, 1, (2,)), "0")
    inbox.wake()
    assert [item.position for item in await taker] == [1]


async def test_what_redis_lost_is_submitted_again_under_the_same_id(start: Any, parse_sse: Any) -> None:
    stack = await start()
    driver = stack.driver
    await driver.tell(generation="before")
    waiting, heard, over = (stack.post(PATH, STREAM) for _ in range(3))
    requests = {request.id: request for request in [await driver.request() for _ in range(3)]}
    by_answer = {}
    for request in requests.values():
        await driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
    first, second, third = requests.values()
    for request, tokens in ((first, [100, 200]), (second, [100, 201]), (third, [100, 202])):
        by_answer[request.id] = tokens
    await driver.play(third, by_answer[third.id])
    done, _ = await asyncio.wait({waiting, heard, over}, return_when=asyncio.FIRST_COMPLETED)
    assert ids(parse_sse(done.pop().result()[1])) == [100, 202]
    alive, stream = driver.keys.lease(f"gateway:{first.gateway}"), driver.keys.stream(second.id)
    head = await driver.connection.call("HGET", stream, "head")
    await driver.connection.call("FLUSHALL")
    again = [await driver.request() for _ in range(2)]
    assert {request.id for request in again} == {first.id, second.id}, "what has ended is over"
    for request in again:
        assert request.resumed
        assert msgspec.structs.replace(request, resumed=False, fingerprint="") == requests[request.id]
    assert await driver.connection.call("HGET", stream, "head") == head
    assert await driver.connection.call("EXISTS", alive) == 1
    # The last items were lost with `out`; the replica has put its journal back, and tells so.
    for request in again:
        await driver.journal(Tokens(request.id, 0, 0, tuple(by_answer[request.id]), "length"))
    await driver.tell(generation="after")
    ends = [ids(parse_sse((await answer)[1])) for answer in (waiting, heard, over)]
    assert sorted(ends) == sorted(by_answer.values())


async def test_a_cancel_that_redis_lost_is_sent_again(start: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    answer.cancel()
    sent = await stack.driver.cancel()
    await stack.driver.connection.call("FLUSHALL")
    assert await stack.driver.cancel() == sent
    assert (sent.request, sent.park) == (request.id, True)
    assert await stack.driver.connection.call("EXISTS", stack.driver.keys.parking(request.id)) == 1


async def test_a_restart_that_lost_nothing_adds_nothing(start: Any, valkey: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    stack.driver.silent()
    known = stack.gateway.watch.generation
    valkey.kill()
    valkey.start()
    async with asyncio.timeout(20):
        while stack.gateway.watch.generation == known:
            await asyncio.sleep(0.05)
    assert not await stack.driver.submitted.read(count=1, block=0.3)
    await stack.driver.play(request, [100])
    assert (await answer)[0] == 200


async def test_an_accepted_request_is_on_disk_where_that_is_asked_for(start: Any) -> None:
    stack = await start(durability="disk")

    async def waits() -> int:
        text = (await stack.driver.connection.call("INFO", "commandstats")).decode()
        line = next((line for line in text.splitlines() if line.startswith("cmdstat_waitaof:")), "calls=0,")
        return int(line.split("calls=")[1].split(",")[0])

    before = await waits()
    answers = [stack.post(PATH, STREAM) for _ in range(8)]
    for _ in answers:
        await stack.driver.play(await stack.driver.request(), [100])
    for answer in answers:
        assert (await answer)[0] == 200
    assert 1 <= await waits() - before <= 8


async def test_what_cannot_be_brought_to_disk_is_said_at_the_start(valkey: Any) -> None:
    connection = Connection(valkey.url, "test")
    await connection.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(Stop, match="with `appendonly yes`") as stop:
        await Durable(connection).check()
    assert stop.value.code is Exit.USAGE
    await connection.close()


async def test_s40_redis_restarts_in_mid_stream(start: Any, valkey: Any, parse_sse: Any) -> None:
    stack = await start()
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    await stack.driver.publish(request.gateway, Tokens(request.id, 0, 0, (100,)))
    await stack.driver.connection.call("WAITAOF", 1, 0, 5000)
    stack.driver.silent()
    valkey.kill()
    valkey.start()
    item = Tokens(request.id, 0, 1, (101,), "length")
    for _ in range(100):
        try:
            await stack.driver.publish(request.gateway, item)
            break
        except Exception:  # noqa: BLE001
            await asyncio.sleep(0.1)
    assert ids(parse_sse((await answer)[1])) == [100, 101]


async def test_no_redis_no_request(start: Any, valkey: Any, monkeypatch: Any) -> None:
    from pillion.gateway import outbox

    monkeypatch.setattr(outbox, "SUBMIT_PATIENCE", 0.3)
    stack = await start()
    stack.driver.silent()
    valkey.kill()
    status, body, headers = await stack.fetch("POST", PATH, json=STREAM)
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "bus_unavailable", "2")
    valkey.start()


async def test_a_request_that_takes_too_long_is_ended(start: Any, parse_sse: Any) -> None:
    stack = await start(request_timeout=1.2)
    answer = stack.post(PATH, STREAM)
    request = await stack.driver.request()
    assert request.deadline is not None and 1.1 < request.deadline - request.arrival < 1.3
    frame, done = parse_sse((await answer)[1])
    assert (frame["error"]["code"], done) == ("request_timeout", "[DONE]")
    assert (await stack.driver.cancel()).request == request.id


async def test_more_than_may_wait_are_refused_before_they_are_written(start: Any) -> None:
    stack = await start(max_waiting=1)  # twice as many may be under way
    answers = [stack.post(PATH, STREAM) for _ in range(2)]
    for _ in answers:
        await stack.driver.request()
    status, body, headers = await stack.fetch("POST", PATH, json=STREAM)
    assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "queue_full", "1")
    head = stack.driver.keys.stream(headers["x-request-id"])
    assert await stack.driver.connection.call("EXISTS", head) == 0
    for answer in answers:
        answer.cancel()
