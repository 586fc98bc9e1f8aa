"""The pure parts of `ops/chaos`: its requests, its schedule, its judgement, its figures and its words."""

import asyncio
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from pillion.ops.chaos import report, schedule
from pillion.ops.chaos.__main__ import main
from pillion.ops.chaos.compare import Answer, Choice, compare
from pillion.ops.chaos.report import Record, Struck
from pillion.ops.chaos.run import judge
from pillion.ops.chaos.schedule import Blow
from pillion.ops.chaos.streams import Stream, play, take
from pillion.ops.chaos.victims import wake
from pillion.ops.chaos.words import table, words
from pillion.ops.chaos.workload import Sizes, Work, requests
from pillion.ops.rig import Line

SIZES = Sizes(vocab_size=32000, max_model_len=4096)


def answer(*tokens: int, text: str = "t", finish: str | None = "length", count: int | None = None) -> Answer:
    usage = {"prompt_tokens": 5, "completion_tokens": len(tokens) if count is None else count}
    return Answer({0: Choice([*tokens], text, finish)}, usage)


def test_requests_follow_from_the_seed_and_are_of_all_kinds() -> None:
    works = requests(7, 100, SIZES)
    assert works == requests(7, 100, SIZES) != requests(8, 100, SIZES)
    bodies = [work.body for work in works]
    assert {work.path for work in works} == {"/v1/completions", "/v1/chat/completions"}
    assert {body["temperature"] for body in bodies} == {0.0, 0.7, 1.0}
    assert all(any(field in body for body in bodies) for field in ("n", "stop", "guided_regex", "tools"))
    lengths = [len(body["prompt"]) for body in bodies if "prompt" in body]
    assert max(lengths) > 1000 and min(lengths) < 200
    assert all(length + 120 < SIZES.max_model_len for length in lengths)
    assert all("seed" in body for body in bodies)


def test_blows_fall_evenly_on_the_roles_and_follow_from_the_seed() -> None:
    blows = schedule.blows(3, 50, schedule.ROLES)
    assert blows == schedule.blows(3, 50, schedule.ROLES) != schedule.blows(4, 50, schedule.ROLES)
    assert {role: sum(blow.role == role for blow in blows) for role in schedule.ROLES} == dict.fromkeys(
        schedule.ROLES, 10
    )
    assert {(blow.role == "valkey", blow.kind) for blow in blows} == {
        (False, "kill"), (False, "stop"), (True, "kill"), (True, "stop"), (True, "flush"),
    }  # fmt: skip
    assert all((blow.seconds > 0) == (blow.kind == "stop") for blow in blows)
    assert not blows[0].at_once and any(blow.at_once for blow in blows)
    assert min(blow.which for blow in blows) < 0.5 <= max(blow.which for blow in blows) < 1
    rolling = schedule.rolling(("a", "b"))
    assert [(blow.role, blow.kind) for blow in rolling] == [("a", "term"), ("b", "term")]
    # Every process of a role has its turn, once.
    turns = schedule.each([*rolling, Blow("b", "kill", 0.0)], {"a": 1, "b": 3})
    assert [(blow.role, blow.kind, int(blow.which * 3)) for blow in turns] == [
        ("a", "term", 1), ("b", "term", 0), ("b", "term", 1), ("b", "term", 2), ("b", "kill", 0),
    ]  # fmt: skip


def test_only_the_kinds_that_are_asked_for_are_drawn_and_only_where_they_can_be() -> None:
    assert {blow.kind for blow in schedule.blows(1, 40, schedule.ROLES, ["stop"])} == {"stop"}
    flushes = schedule.blows(1, 10, schedule.ROLES, schedule.kinds(" flush,"))
    assert [(blow.role, blow.kind) for blow in flushes] == [("valkey", "flush")] * 10
    with pytest.raises(ValueError, match="nothing of flush can be done to scheduler"):
        schedule.blows(1, 10, ["scheduler"], ["flush"])
    told = CliRunner().invoke(main, ["--blows", "kill,burn"])
    assert told.exit_code == 2 and "--blows: burn; there is kill, stop, flush" in told.output


def test_redis_is_not_emptied_at_the_moment_that_a_gateway_is_struck() -> None:
    """No other pair of blows is spared."""
    pairs: set[tuple[str, str]] = set()
    for seed in range(40):
        together: set[str] = set()
        for blow in schedule.blows(seed, 50, schedule.ROLES):
            what = blow.role if blow.kind != "flush" else "data"
            together = together | {what} if blow.at_once else {what}
            pairs |= {(one, other) for one in together for other in together}
    roles = {*schedule.ROLES, "data"}
    assert {(one, other) for one in roles for other in roles} - pairs == {
        ("gateway", "data"),
        ("data", "gateway"),
    }


@pytest.mark.parametrize(
    ("got", "lost", "doubled", "words"),
    [
        (answer(1, 2, 3, 4), 0, 0, None),
        (answer(1, 2, 4), 1, 0, "3 tokens where 4 are right, other from token 2 on"),
        (answer(1, 2, 2, 3, 4), 0, 1, "5 tokens where 4 are right"),
        (answer(1, 9, 3, 4), 1, 1, "other from token 1 on: [9, 3, 4] for [2, 3, 4]"),
        (answer(1, 2, 3), 1, 0, "other from token 3 on: [] for [4]"),
        (answer(1, 2, 3, 4, text="tt"), 0, 0, "the same tokens, but text of 2 characters where 1"),
        (answer(1, 2, 3, 4, finish="stop"), 0, 0, "it ended by stop where length is right"),
        (answer(1, 2, 3, 4, count=5), 0, 0, "usage"),
        (Answer({}, answer(1, 2, 3, 4).usage), 4, 0, "0 tokens where 4 are right"),
    ],
)
def test_whatever_differs_is_seen(got: Answer, lost: int, doubled: int, words: str | None) -> None:
    found = compare(answer(1, 2, 3, 4), got)
    if words is None:
        assert found is None
    else:
        assert found is not None and (found.lost, found.doubled) == (lost, doubled)
        assert words in found.words


def stream(*times: float, sent: float = 0.0, ended: float | None = 100.0, index: int = 0) -> Stream:
    made = Stream(Work(index, "/v1/completions", {}), "s", sent=sent)
    made.times, made.ended = [*times], ended
    made.answer.choices[0] = Choice([*range(len(times))], "", "length")
    return made


def test_events_are_added_by_choice() -> None:
    made = stream()
    parts = [{"index": 0, "text": "a", "token_ids": [7, 8], "finish_reason": None}]
    take(made, {"choices": parts, "usage": None}, 1.0)
    parts = [{"index": 1, "delta": {"content": "b"}, "token_ids": [9], "finish_reason": "stop"}]
    take(made, {"choices": parts}, 2.0)
    for call in (
        {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}},
        {"function": {"arguments": "{}"}},
    ):
        take(made, {"choices": [{"index": 1, "delta": {"tool_calls": [call]}, "finish_reason": None}]}, 2.5)
    take(made, {"choices": [], "usage": {"completion_tokens": 3}}, 3.0)
    assert {index: asdict(choice) for index, choice in made.answer.choices.items()} == {
        0: {"tokens": [7, 8], "text": "a", "finish": "length"},
        1: {"tokens": [9], "text": "bf{}", "finish": "stop"},
    }
    assert made.times == [1.0, 1.0, 2.0] and made.answer.usage == {"completion_tokens": 3}


def piece(number: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": "x", "token_ids": [number], "finish_reason": finish}
    return b"id: %d\ndata: %s\n\n" % (number, json.dumps({"id": "cmpl-1", "choices": [choice]}).encode())


def failure(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"message": "m", "code": code}}, status=status)


@pytest.mark.parametrize(
    ("code", "final"), [("stream_moved", False), ("idempotency_key_in_use", False), ("other", True)]
)
async def test_a_client_tries_again_where_its_own_attempts_met(code: str, final: bool) -> None:
    asked: list[tuple[str, str | None]] = []

    async def serve(http: web.Request) -> web.StreamResponse:
        asked.append((http.method, http.headers.get("Last-Event-ID")))
        if len(asked) in (1, 3):
            return failure(409, code)
        response = web.StreamResponse()
        await response.prepare(http)
        if len(asked) == 2:
            moved = json.dumps({"error": {"message": "m", "code": "stream_moved"}}).encode()
            await response.write(piece(1) + b"data: " + moved + b"\n\ndata: [DONE]\n\n")
        else:
            await response.write(piece(2, "stop") + b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    made = Stream(Work(0, "/v1/completions", {}), "s")
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        await play(session, (str(server.make_url("")).rstrip("/"),), made)
    if final:
        assert made.error is not None and made.error.startswith("HTTP 409") and len(asked) == 1
        return
    assert made.error is None
    assert asked == [("POST", None), ("POST", None), ("GET", "1"), ("GET", "1")]
    assert (made.refused, made.connections, made.answer.choices[0].tokens) == (2, 2, [1, 2])


async def test_a_client_that_loses_a_gateway_goes_on_at_the_next() -> None:
    """Requests begin at the one or the other, by their number."""
    asked: list[tuple[str, str, str | None]] = []

    def app(name: str) -> web.Application:
        async def serve(http: web.Request) -> web.StreamResponse:
            asked.append((name, http.method, http.headers.get("Last-Event-ID")))
            response = web.StreamResponse()
            await response.prepare(http)
            if len(asked) == 1:
                await response.write(piece(1))
            else:
                await response.write(piece(2, "stop") + b"data: [DONE]\n\n")
            return response

        made = web.Application()
        made.router.add_route("*", "/{path:.*}", serve)
        return made

    made = Stream(Work(1, "/v1/completions", {}), "s")
    async with TestServer(app("a")) as a, TestServer(app("b")) as b, aiohttp.ClientSession() as session:
        await play(session, [str(each.make_url("")).rstrip("/") for each in (a, b)], made)
    assert made.error is None and made.answer.choices[0].tokens == [1, 2]
    assert asked == [("b", "POST", None), ("a", "GET", "1")]


def test_a_pause_is_the_gap_that_the_blow_began() -> None:
    streams = [
        stream(1.0, 9.9, 10.1, 15.0, 15.1),  # one token was on its way
        stream(9.0, 12.0),
        stream(12.0),  # before its first token
        stream(1.0, 5.0, ended=6.0),  # over by then
        stream(9.0, 9.5),  # no token afterwards
    ]
    struck = Struck(Blow("executor", "term", 0.0), 1, at=10.0)
    assert report.pauses(struck, streams) == [pytest.approx((4.9, 15.0)), pytest.approx((3.0, 12.0))]
    draining = [stream(9.0, 10.4, 10.8, 15.0)]
    assert report.pauses(struck, draining) == [pytest.approx((1.4, 10.4))]
    struck.gone = 10.7  # it was asked to end, and took its time
    assert report.pauses(struck, draining) == [pytest.approx((4.2, 15.0))]


def test_a_pause_is_taken_apart_by_the_lines_of_the_log() -> None:
    struck = Struck(Blow("executor", "kill", 0.0), 1, at=10.0, died=True)
    lines = [
        Line(9.0, "executor", 1, "INFO ready; 100 MiB resident"),
        Line(10.2, "up", 0, "starting executor again in 0.1 s"),
        Line(12.0, "executor", 2, "INFO looking for the model demo"),
        Line(13.5, "executor", 2, "INFO ready; 100 MiB resident"),
        Line(13.6, "scheduler-0", 3, "INFO executor attached: demo"),
    ]
    parts = report.phases(struck, lines, resumed=14.0)
    assert {name: round(seconds, 3) for name, seconds in parts.items()} == {
        "noticed and started again": 0.2,
        "process start and imports": 1.8,
        "model load": 1.5,
        "attach": 0.1,
        "prefill again, first token": 0.4,
    }


def test_a_line_that_comes_after_its_token_ends_its_part_with_the_pause() -> None:
    struck = Struck(Blow("executor", "kill", 0.0), 1, at=10.0, back=15.0)
    lines = [
        Line(10.2, "up", 0, "starting executor again in 0.1 s"),
        Line(14.5, "executor", 2, "INFO ready; 100 MiB resident"),
        Line(15.5, "scheduler", 3, "INFO executor attached: demo"),  # to another one
    ]
    parts = report.phases(struck, lines, resumed=14.0)
    assert {name: round(seconds, 3) for name, seconds in parts.items()} == {
        "noticed and started again": 0.2, "model load": 3.8, "prefill again, first token": 0.0,
    }  # fmt: skip


def test_the_parts_of_a_pause_are_those_of_the_replica_that_was_struck() -> None:
    blow = Blow("scheduler", "kill", 0.0)
    struck = Struck(blow, 1, at=10.0, replica="1")
    lines = [
        Line(10.1, "scheduler-0", 5, "INFO replica 0: lease held, epoch 3"),
        Line(10.2, "up", 0, "starting scheduler-1 again in 0.1 s"),
        Line(12.2, "scheduler-1", 6, "INFO replica 1: lease held, epoch 4"),
    ]
    parts = report.phases(struck, lines, resumed=13.0)
    assert {name: round(seconds, 3) for name, seconds in parts.items()} == {
        "noticed and started again": 0.2, "lease wait": 2.0, "prefill again, first token": 0.8,
    }  # fmt: skip
    emptied = Struck(Blow("valkey", "flush", 0.0), 1, at=10.0)
    lines = [Line(10.3, "scheduler-0", 5, "WARNING put back 4 running requests and 2 records; 0 older")]
    assert report.phases(emptied, lines, 11.0) == pytest.approx(
        {"found out and put back": 0.3, "prefill again, first token": 0.7}
    )
    stopped = Struck(Blow("valkey", "stop", 0.0, seconds=2.0), 1, at=10.0)
    assert report.phases(stopped, [], 12.5) == {"stopped": 2.0, "prefill again, first token": 0.5}


def test_a_replica_hits_what_it_held_and_nothing_else() -> None:
    record = Record({}, 0.0)
    record.streams = [stream(1.0, 9.0, 12.0), stream(1.0, 9.0, 12.0), stream(11.0)]
    for made, name in zip(record.streams, ("cmpl-a", "cmpl-b", "cmpl-c"), strict=True):
        made.identity = name
    record.streams[2].identity, record.streams[2].accepted = None, "c"
    struck = Struck(Blow("executor", "kill", 0.0), 1, at=10.0, replica="0", requests=frozenset("ac"))
    struck.prefilling = 5
    record.struck = [struck]
    assert struck.running(record.streams) == [record.streams[0], record.streams[2]]
    total = report.totals(record)
    assert (total["hit_in_prefill"], total["hit_in_decode"], total["streams_hit"]) == (1, 1, 2)
    assert report.raw(record, [])["blows"][0]["pauses"] == [3.0]
    struck.requests = None
    assert report.totals(record)["hit_in_decode"] == 2


def test_blows_that_overlap_are_counted_and_not_measured() -> None:
    record = Record({}, 0.0)
    record.streams = [stream(1.0, 10.0, 14.0, 30.0, 33.0)]
    kill = Blow("executor", "kill", 0.0)
    record.struck = [
        Struck(kill, 1, at=10.1, back=13.0), Struck(kill, 2, at=12.0, back=13.0),
        Struck(kill, 3, at=30.1, back=32.0),
    ]  # fmt: skip
    raw = report.raw(record, [])
    assert [blow["overlaps"] for blow in raw["blows"]] == [True, True, False]
    found = raw["by_kind"]["kill executor"]
    assert (found["blows"], found["measured"], found["hit_in_decode"], found["pauses"]) == (3, 1, 3, 1)
    assert found["pause_median"] == found["pause_worst"] == 3.0


def test_the_record_counts_what_was_hit_and_what_was_lost() -> None:
    record = Record({}, 0.0)
    record.streams = [stream(1.0, 9.0, 12.0), stream(11.0, 12.0), stream(3.0, ended=None, index=0)]
    record.streams[0].answer.usage = record.streams[1].answer.usage = None
    record.streams[1].error = "gone"
    blow = Blow("scheduler", "kill", 0.0)
    record.struck = [Struck(blow, 7, at=10.0, died=True, prefilling=3, decoding=1)]
    judge(record, [Answer({0: Choice([0, 1, 2, 3], "", "length")})])
    total = report.totals(record)
    assert (total["hit_in_prefill"], total["hit_in_decode"]) == (1, 2)  # one stream had no token yet
    assert (total["lost_tokens"], total["doubled_tokens"]) == (1, 0)
    assert total["streams_that_differ"] == 1 and total["faults"] == 2  # one in error, one without an end
    assert report.missed(record) == []
    record.struck[0].prefilling = 0
    assert [words[:29] for words in report.missed(record)] == ["no stream was hit in prefill;"]
    said = words(report.raw(record, []))
    assert "DIFFERENT: request 0" in said and "FAULT: request 0, s: gone" in said
    assert "| scheduler |       1 |" in said and "| kill scheduler |     1 |" in said


def test_a_table_is_markdown_with_its_figures_at_the_right() -> None:
    assert table(["who", "n", "of which"], [["a", "10", "x 1"], ["bb", "-", ""]]) == [
        "| who |  n | of which |",
        "| --- | -: | -------- |",
        "| a   | 10 | x 1      |",
        "| bb  |  - |          |",
    ]


@pytest.mark.parametrize("in_time", [True, False])
async def test_what_was_stopped_goes_on_when_its_time_has_come_and_when_the_storm_breaks_off(
    in_time: bool,
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            watched = psutil.Process(process.pid)

            async def stopped(wanted: bool) -> None:
                async with asyncio.timeout(30):
                    while (watched.status() == psutil.STATUS_STOPPED) is not wanted:
                        await asyncio.sleep(0.001)

            await stopped(True)
            blow = Blow("valkey", "stop", after=0.0, seconds=0.05 if in_time else 600.0)
            struck = Struck(blow, process.pid, at=time.monotonic())
            waking = asyncio.create_task(wake(struck))
            await asyncio.sleep(0)
            if not in_time:
                assert watched.status() == psutil.STATUS_STOPPED
                waking.cancel()
            await asyncio.wait([waking], timeout=30)
            assert waking.cancelled() is not in_time
            assert not in_time or time.monotonic() - struck.at >= 0.05
            await stopped(False)
        finally:
            process.kill()
