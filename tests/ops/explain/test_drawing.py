"""An explanation as a report: what is drawn is what was told, in its place on the time axis."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pillion.contracts.timeline import (
    PREEMPTED,
    TAKEN,
    ChoiceSeen,
    Delivery,
    GapSeen,
    SpanSeen,
    StepSeen,
    Timeline,
)
from pillion.gateway.explanation import explanation
from pillion.ops.cli import main
from pillion.ops.explain.drawing import BETWEEN, report
from pillion.ops.report import NoReport, read

LONG = StepSeen(7, 95.3, 95.9, 0.5, 0.02, 0.1, 512, 3, (200, 56), waiting=2, own=1)
SHORT = StepSeen(6, 95.2, 95.35, 0.03, 0.0, 0.03, 512, 4, own=1)
CHUNKS = (
    StepSeen(3, 92.0, 93.0, 0.9, 0.0, 0.9, 512, 1, (256,), own=256),
    StepSeen(4, 93.0, 95.0, 1.9, 0.0, 1.0, 512, 1, (44,), own=44),
)
CHOICE = ChoiceSeen(
    0, 344, 0, 5, planned=92.0, first=95.0, ahead=4, running=2, no_slot=9, cached=44, chunks=CHUNKS,
    preemptions=1, recomputed=300,
    gaps=(
        GapSeen(4, 96.0, 2.0, (), marks=((PREEMPTED, 96.5), (TAKEN, 97.5))),
        GapSeen(2, 95.3, 0.6, (SHORT, LONG)),
    ),
    spans=(SpanSeen(95.9, 2, 0.6), SpanSeen(98.0, 2, 2.0), SpanSeen(98.1, 1, 0.1)),
)  # fmt: skip
DELIVERY = Delivery(submitted=90.1, first=95.25, choice=0, position=2, began=95.4, seconds=0.7)


def told(choice: ChoiceSeen = CHOICE, delivery: Delivery | None = DELIVERY, status: str = "finished") -> Any:
    timeline = Timeline("r" * 32, "0", 90.0, 90.5, 90.6, 80.0, (choice,))
    return explanation(status, timeline, delivery)


def test_each_wait_is_where_it_was_and_as_high_as_it_was_long() -> None:
    waits, gaps, chunks, _ = report(told()).plots
    drawn = [
        (
            pytest.approx(at),
            {name: pytest.approx(high) for name, high in zip(waits.names, row, strict=True) if high},
        )
        for at, row in waits.rows
    ]
    first = 5.25
    assert drawn == [
        (0.0, {"preparation at the gateway": first}),
        (0.1, {"admission": first}),
        (0.5, {"way to the scheduler": first}),
        (0.6, {"queue at the scheduler": first}),
        (2.0, {"prefill": first}),
        (5.0, {"delivery": first}),
        (5.25, {BETWEEN: 0.6}),
        # The gap of the preemption stands apart from the other in its span.
        (5.9, {BETWEEN: 0.1}),
        (6.0, {BETWEEN: 2.0}),
        (6.5, {"preempted": 2.0}),
        (7.5, {"prefill anew": 2.0}),
        (8.0, {BETWEEN: 0.1}),
    ]
    assert waits.end == pytest.approx(8.1)
    longest, mean = gaps.series
    assert longest.points == [(pytest.approx(at), long) for at, long in ((5.9, 0.6), (8.0, 2.0), (8.1, 0.1))]
    assert [value for _, value in mean.points] == [pytest.approx(each) for each in (0.45, 1.05, 0.1)]
    assert chunks.bars == [
        (pytest.approx(2.1), pytest.approx(3.0), 256.0), (pytest.approx(3.1), pytest.approx(5.0), 44.0)
    ]  # fmt: skip


def test_the_longest_gap_and_its_longest_step_are_marked_with_what_it_carried() -> None:
    made = report(told())
    _, gaps, _, steps = made.plots
    (mark,) = gaps.marks
    assert (mark.axis, mark.value, mark.label) == ("x", pytest.approx(6.1), "longest gap, step 7")
    took, predicted = steps.series
    assert [long for _, long in took.points] == [0.03, 0.5] and [long for _, long in predicted.points] == [
        0.03,
        0.1,
    ]
    assert took.labels == ["", "step 7: 3 decodes and 200 + 56 prompt tokens"]
    tables = {table.title: table.rows for table in made.tables}
    rode = ["7", pytest.approx(0.5), 0.5, 0.1, 0.02, 3, "200 + 56", 1, 512, 2]
    assert tables["Steps in the longest gap"][1] == rode
    assert [row[0] for row in tables["The longest gaps at the replica"]] == ["4", "2"]
    whole = tables["Until the first token"]
    assert sum(row[1] for row in whole[:-1]) == pytest.approx(whole[-1][1]) == pytest.approx(5.25)
    assert made.notes[0].startswith(
        "Longest gap: 700 ms before token 2 of choice 0: step 7 took 500 ms, 100 ms"
    )
    assert {one.name: one.values for one in made.summary}["tokens computed again"] == [300]


def test_a_request_of_one_token_and_one_of_a_later_life() -> None:
    once = msgspec.structs.replace(CHOICE, gaps=(), spans=())
    made = report(told(once, Delivery(submitted=90.1, first=95.25)))
    assert [plot.title for plot in made.plots] == ["How long each token let wait", "Chunks of the prompt"]
    assert made.notes[0] == "There is no gap between tokens yet."
    # Its first token came in another life: times begin with what is known of this one.
    waits, _, chunks, _ = report(told(msgspec.structs.replace(CHOICE, before=7))).plots
    assert waits.rows[0][0] == pytest.approx(95.0 - 92.1) and chunks.bars[0][0] == 0.0


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """What it answers for each path."""
    answers: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path]).encode()
            self.send_response(404 if "error" in answers[self.path] else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", answers
        serving.shutdown()
        thread.join()


def test_the_command_writes_it_and_says_in_a_line_why_there_is_none(
    server: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, answers = server

    def run(identity: str, *more: str) -> Any:
        return CliRunner().invoke(
            main, ["explain", identity, "--url", url, "--report", str(tmp_path / identity), *more]
        )

    answers["/v1/requests/a/explain"] = told()
    done = run("a", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == read(tmp_path / "a").raw == msgspec.json.decode(json.dumps(told()))
    assert done.stderr.splitlines() == [f"written: {tmp_path / 'a'}.{end}" for end in ("html", "json", "csv")]
    answers["/v1/requests/w/explain"] = {
        "id": "w", "status": "waiting", "replica": None, "seconds": 0.5, "why": "it waits in admission",
    }  # fmt: skip
    answers["/v1/requests/x/explain"] = {"error": {"message": "Nothing was kept of how it ran."}}
    queued = ChoiceSeen(0, 300, 0, 0, ahead=2, running=1)
    answers["/v1/requests/q/explain"] = told(queued, None, "running")
    for identity, said in (
        ("w", "nothing of the request has run yet: it waits in admission"),
        ("q", "nothing of the request has run yet: the step that ran had to end first"),
        ("x", "Nothing was kept of how it ran."),
    ):
        done = run(identity)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1) and said in done.stderr
        assert not (tmp_path / f"{identity}.html").exists()
    with pytest.raises(NoReport):
        report(told(queued, None, "running"))
