"""`pillion bench traffic`: what is due is sent when it is due, and every request counts."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from pillion.config import load
from pillion.ops.bench import delays
from pillion.ops.bench.client import Timeline
from pillion.ops.bench.keys import tenant_keys
from pillion.ops.bench.offered import NoLoad, Offered, offered
from pillion.ops.bench.sending import Sent, seen
from pillion.ops.bench.server import Job, NoServer
from pillion.ops.bench.traffic import LATE, Seen, measure, notes
from pillion.ops.cli import main
from pillion.ops.measure import Outcome, Slo, Tally
from pillion.ops.traces import Arrival

TRACE = [Arrival(0.0, 40, 3, 7, 32), Arrival(0.05, 50, 3, 7, 32, 2, "alice"), Arrival(0.1, 20, 3)]
NOTHING: dict[str, Any] = {
    "cv": 1.0,
    "scale": 1.0,
    "requests": None,
    "seconds": None,
    "longest": None,
    "seed": 1,
}


@asynccontextmanager
async def peer(keys: list[str] | None = None) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that streams what it is asked for: prompts of 50 are refused, of 20 hang after a token."""
    asked: list[Any] = []
    keys = [] if keys is None else keys
    waited = 0

    async def complete(request: web.Request) -> web.StreamResponse:
        nonlocal waited
        body = await request.json()
        asked.append(body)
        keys.append(request.headers.get("Authorization", ""))
        waited += 1
        length = len(body["prompt"])
        if length == 50:
            return web.json_response({"error": {"code": "queue_full", "message": "no"}}, status=429)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(body["max_tokens"]):
            event: dict[str, Any] = {"choices": [{"text": "a", "token_ids": [number]}]}
            if number == body["max_tokens"] - 1:
                event["choices"][0]["finish_reason"] = "length"
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(0.002 if length != 20 else 30)
        usage = {"prompt_tokens": length, "completion_tokens": body["max_tokens"]}
        await answer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        return answer

    async def metrics(_: web.Request) -> web.Response:
        name = "pillion_scheduling_delay_seconds"
        rows = [f'{name}_bucket{{le="{edge}"}} {waited}' for edge in ("0.1", "0.2", "+Inf")]
        rows += [f'{name}_bucket{{le="0.05"}} 0', f"{name}_count {waited}", f"{name}_sum 1"]
        return web.Response(text="\n".join([f"# TYPE {name} histogram", *rows]) + "\n")

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_all_that_was_due_is_counted_by_what_became_of_it(tmp_path: Path) -> None:
    config = load({"state_dir": str(tmp_path)}, environ={}).config
    async with peer() as (url, asked):
        how: dict[str, Any] = {"repeats": 2, "drain": 2.0, "metrics": [f"{url}/metrics"]}
        report = await measure(config, url, offered_of(), [], slo=Slo(30.0, 30.0), **how)
    first, second = report.raw["runs"][0]["repeats"]
    for told in (first, second):
        assert (told["sent"], told["finished"], told["failed"], told["unfinished"]) == (3, 1, 0, 1)
        assert told["results"] == {"finished": 1, "queue_full": 1, "unfinished": 1}
        assert (told["good"], told["output_tokens"]) == (1, 4)  # three, and one of what hung
        assert told["delay_s"]["median"] == pytest.approx(0.075)
    # The requests are the same in both; prompts of a group begin alike, others and other repeats' do not.
    bodies = [body for body in asked if body["max_tokens"] == 3]
    assert [len(body["prompt"]) for body in bodies] == [40, 50, 20] * 2
    heads = [tuple(body["prompt"][:32]) for body in bodies]
    assert heads[0] == heads[1] != heads[3] == heads[4] and heads[0][:20] != heads[2]
    assert [body.get("priority") for body in bodies[:3]] == [None, 2, None]
    (figure,) = [each for each in report.summary if each.name == "unfinished"]
    assert figure.values == [1.0, 1.0]
    for table in report.tables[:3]:
        assert {"rejected", "unfinished"} <= set(table.columns) and len(table.rows) == 3
    assert any("1 request of tenants without a key of their own" in note for note in report.notes)


async def test_tenants_of_a_trace_come_with_their_own_keys(tmp_path: Path) -> None:
    config = load({"state_dir": str(tmp_path)}, environ={}).config
    file = tmp_path / "keys.toml"
    file.write_text('alice = "sk-alice"\nbob = "sk-bob"\n')
    seen_keys: list[str] = []
    async with peer(seen_keys) as (url, _):
        how: dict[str, Any] = {"drain": 0.5, "metrics": [f"{url}/metrics"], "api_key": "sk-common"}
        how["keys"] = tenant_keys(str(file))
        report = await measure(config, url, offered_of(), [], slo=Slo(30.0, 30.0), **how)
    assert seen_keys[-3:] == ["Bearer sk-common", "Bearer sk-alice", "Bearer sk-common"]
    assert not any("--tenant-keys" in note for note in report.notes)
    assert "sk-" not in json.dumps(report.provenance | report.raw)


def test_keys_that_are_none_are_said(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    assert tenant_keys(None) == {}
    for text, said in (("alice = 5", 'alice must be a key, as `alice = "sk-..."`'), ("alice", "is no TOML")):
        file.write_text(text)
        with pytest.raises(NoLoad, match=said):
            tenant_keys(str(file))
    with pytest.raises(NoLoad, match="cannot be read"):
        tenant_keys(str(tmp_path / "none.toml"))


def offered_of(**changes: Any) -> Offered:
    return Offered(TRACE, "chats", **({"seed": 5} | changes))


def test_the_same_requests_come_at_every_rate() -> None:
    drawn = Offered(None, "chats", requests=50, seed=3)
    slow, fast = drawn.due(1.0), drawn.due(4.0)
    assert [(each.prompt, each.output) for each in slow] == [(each.prompt, each.output) for each in fast]
    assert [each.at for each in slow] == pytest.approx([each.at * 4 for each in fast])
    assert drawn.due(1.0, repeat=1) != slow == drawn.due(1.0)
    rows = offered_of(requests=20, longest=45).due(2.0)
    assert {(each.prompt, each.group) for each in rows} == {(40, 7), (20, None)}


def test_what_is_too_long_or_too_late_is_left_out() -> None:
    assert [each.prompt for each in offered_of(longest=45).due(None)] == [40, 20]
    assert [each.at for each in offered_of(scale=2.0, seconds=0.04).due(None)] == [0.0, 0.025]
    short = Offered(None, "chats", requests=200, longest=100, seed=3).due(5.0)
    assert max(each.prompt + each.output for each in short) <= 100 and len(short) == 200
    for wrong, said in (
        (offered_of(longest=5), "no request of the trace has at most 5 tokens"),
        (Offered(None, "chats", longest=5), "give a higher --longest"),
        (Offered(None, "chats", seconds=1e-9), "no request is due within --seconds"),
    ):
        with pytest.raises(NoLoad, match=said):
            wrong.due(1.0)


def test_what_was_asked_for_must_go_together(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n10,2\n30,2\n")
    for rates, given, said in (
        ((), {}, "give --rate or a --trace"),
        ((), {"trace": str(trace)}, "has no arrived_at: give --rate"),
        ((1.0,), {"trace": str(trace), "lengths": "chats"}, "not both"),
        ((1.0,), {"lengths": "talks"}, "there is .*chats"),
    ):
        with pytest.raises(NoLoad, match=said):
            offered(given.get("trace"), given.get("lengths"), rates, limits=NOTHING)  # type: ignore[attr-defined]
    assert offered(str(trace), None, (1.0,), limits=NOTHING).requests == 2
    assert offered(None, None, (1.0,), limits=NOTHING).seconds == 60.0


def test_how_a_request_ended_is_told() -> None:
    def result(**changes: Any) -> str:
        line = Timeline(100.0, **({"finish": "length", "status": 200} | changes))
        return seen(Job([1, 2], 3), 100.0, line)[0].result

    assert result() == "finished" and result(cut=True, finish=None) == "unfinished"
    refused = {"status": 429, "finish": None, "error": "429"}
    assert result(**refused, code="predicted_ttft") == "predicted_ttft" and result(**refused) == "429"
    assert (
        result(error="gone") == result(status=0, finish=None) == result(status=503, finish=None) == "failed"
    )


def test_the_median_delay_is_within_its_bucket() -> None:
    before = {0.1: 5.0, 0.2: 5.0, float("inf"): 5.0}
    assert delays.median(before, before) is None and delays.median({}, {}) is None
    after = {0.1: 6.0, 0.2: 14.0, float("inf"): 15.0}
    assert delays.median(before, after) == pytest.approx(0.15)
    assert delays.median(before, {0.1: 5.0, 0.2: 6.0, float("inf"): 15.0}) == 0.2


def test_what_spoils_a_figure_is_noted() -> None:
    def run(
        lag: float = 0.001, cores: float = 0.01, gaps: tuple[float, ...] = (0.1,), **changes: Any
    ) -> Seen:
        tally = Tally(Slo(1.0, 1.0))
        tally.add(Outcome(0.0, 10, 2, "finished", lag=lag, ttft=0.1), gaps)
        return Seen(tally, 1.0, Sent(1.0, cores), None, 0)

    assert notes([("1/s", run())]) == []
    spoilt = notes([("1/s", run(lag=LATE * 2, cores=0.5, gaps=(0.0, 0.1)))])
    assert [note.partition(":")[2].split(",")[0].split("(")[0].strip() for note in spoilt] == [
        "50% of tokens came together with the one before",
        "this client took 0.5 cores",
        "this client sent late",
    ]


def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{free.getsockname()[1]}"
        here = ["--state-dir", str(tmp_path)]
        for arguments, said in (
            (["--rate", "1", "--url", away], f"no server answers at {away}"),
            (["--rate", "1"], "no stack 'default' runs here"),
            (["--url", away], "say how requests arrive"),
            (["--trace", str(tmp_path / "none.csv")], "none.csv cannot be read"),
        ):
            done = CliRunner().invoke(main, ["bench", "traffic", *here, *arguments])
            assert done.exit_code == 1 and said in done.output, done.output
            assert done.output.startswith("pillion: ") and done.output.count("\n") == 1


async def test_metrics_that_do_not_tell_are_refused() -> None:
    import aiohttp

    async with peer() as (url, _), aiohttp.ClientSession() as http:
        with pytest.raises(NoServer, match="has no scheduling delays"):
            await delays.look(http, [f"{url}/nowhere"])
        assert delays.median({}, await delays.look(http, [f"{url}/metrics"])) is None


def test_a_key_is_not_in_the_report() -> None:
    from pillion.ops.report.origin import command

    given = ["bench", "traffic", "--api-key", "swordfish", "--rate", "1", "--api-key=other"]
    assert command(given) == "pillion bench traffic --api-key *** --rate 1 --api-key=***"
