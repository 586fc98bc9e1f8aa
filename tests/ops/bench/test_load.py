"""`pillion bench load` against a real stack, and what it says where there is none."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pillion.ops.bench import load
from pillion.ops.bench.ceilings import Ceilings
from pillion.ops.bench.load import notes
from pillion.ops.bench.report import cell, shown
from pillion.ops.cli import main
from pillion.ops.processes import ROLES
from pillion.ops.report import read
from pillion.ops.rig import Rig


@pytest.fixture(scope="module")
def rig(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    flags = ("--model", str(tiny_model("smollm2")), "--threads", "1", "--api-key", "swordfish")
    with Rig(tmp_path_factory.mktemp("stack"), *flags) as running:
        assert running.url
        yield running


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that they were asked for with; measuring them has its own test, and takes seconds."""
    asked: list[int] = []

    def known(threads: int, seconds: float) -> Ceilings:
        asked.append(threads)
        return Ceilings(1e12 * len(asked), 9e12, 1e11)

    monkeypatch.setattr(load, "ceilings_of", known)
    return asked


def test_a_stack_is_measured(rig: Rig, ceilings: list[int], tmp_path: Path) -> None:
    raw = tmp_path / "load.json"
    arguments = ["--case", "A", "--case", "E", "--repeats", "2", "--seed", "7", "--output", str(raw)]
    arguments += ["--report", str(tmp_path / "told")]
    done = CliRunner().invoke(
        main,
        [
            "bench",
            "load",
            "--state-dir",
            str(rig.state),
            "--url",
            rig.url,
            "--api-key",
            "swordfish",
            *arguments,
        ],
    )
    assert done.exit_code == 0, done.output
    result = json.loads(raw.read_bytes())
    assert read(tmp_path / "told").raw == result
    (server,) = result["servers"]
    assert (server["url"], server["quantization"]) == (rig.url, "none")
    assert [len(server["cases"][case]) for case in "AE"] == [2, 2]
    for one in server["cases"]["E"]:
        assert (one["requests"], one["output_tokens"], one["prompt_tokens"]) == (24, 24 * 40, 24 * 660)
        # The first eight may run at the same time; the others find the prefix. It was fresh for each repeat.
        assert 16 * 592 <= one["cached_tokens"] < 24 * 600
    for repeat, one in enumerate(server["cases"]["A"]):
        assert one["cached_tokens"] == one["ended_early"] == 0
        # The prompt's and 127 decodes; plans that were under way when it ended may bring no row more.
        assert 128 <= one["executor"]["steps"] < 140
        assert 0 < one["executor"]["step_share"] < 1
        assert sum(one["executor"]["parts_s"].values()) <= one["executor"]["step_s"]
        assert sum(flops for flops, _ in one["executor"]["work"].values()) > 1e6
        assert 0 < one["floor"]["reached"] <= one["floor"]["reached_in_steps"] < 1
        # Each result's ceiling is the higher of those just before and after it: here they rise.
        rate = 2e12 * (repeat + 1)
        assert one["floor"]["gflop_per_s"] == rate / 1e9
        least = sum(max(flops / rate, read / 1e11) for flops, read in one["executor"]["work"].values())
        assert one["floor"]["seconds"] == pytest.approx(least)
        if one["gap_ms"]["worst"] > 0:  # or all came together, where cores are short
            assert one["floor"]["tokens_per_s"] > one["decode_tokens_per_s"] > 0
        assert set(one["cpu_s"]) == {*ROLES, "up"} and 0 < one["cpu_outside_kernels"] <= 1
    assert ceilings == [1] * 5
    assert [one["flops_per_s"] / 1e12 for one in result["ceilings"]] == [1, 2, 3, 4, 5]
    assert "decode tokens/s" in done.output and "common prefix" in done.output
    assert "time in steps, share" in done.output and "at the higher beside it" in done.output
    assert "vocabulary is small" in done.output


def test_the_stack_that_runs_here_is_found_with_its_key(rig: Rig) -> None:
    done = CliRunner().invoke(main, ["bench", "load", "--state-dir", str(rig.state), "--case", "A"])
    assert done.exit_code == 0, done.output
    assert f"{rig.url} A: decode tokens/s" in done.output


def test_servers_are_measured_in_turn_with_the_same_requests(rig: Rig, tmp_path: Path) -> None:
    raw = tmp_path / "load.json"
    twice = ["--url", rig.url, "--url", f"{rig.url}/v1", "--api-key", "swordfish", "--case", "A"]
    only_first = ["--metrics", rig.metrics["executor"], "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(
        main, ["bench", "load", *twice, *only_first, "--seed", "9", "--output", str(raw)]
    )
    assert done.exit_code == 0, done.output
    first, second = json.loads(raw.read_bytes())["servers"]
    # The second is the same server here: what the first sent is in its cache, and that is said.
    assert first["cases"]["A"][0]["cached_tokens"] == 0 < second["cases"]["A"][0]["cached_tokens"]
    assert [note for note in second["notes"] if "prefix cache; give a --seed" in note]
    # One is looked into, though its stack is not of this state folder; the other is not.
    assert first["cases"]["A"][0]["floor"]["reached"] > 0 and "cpu_s" not in first["cases"]["A"][0]
    assert [
        note for note in first["notes"] if note.startswith("the floor takes all products to be of bfloat16")
    ]
    assert "executor" not in second["cases"]["A"][0]
    assert [note for note in second["notes"] if note.startswith("no floor")]


def test_what_cannot_be_measured_is_one_line(rig: Rig, ceilings: list[int], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{free.getsockname()[1]}"
        ours = ("--url", rig.url, "--api-key", "swordfish", "--case", "A")
        for arguments, said in (
            (("--url", away), f"no server answers at {away}"),
            (("--url", rig.url), "wants a key: give --api-key KEY"),
            (("--state-dir", str(tmp_path)), "no stack 'default' runs here"),
            ((*ours, "--metrics", away), f"no metrics at {away}"),
            (
                (*ours, "--metrics", rig.metrics["admission"]),
                "has no metrics of an executor; with --metrics-port",
            ),
            (
                ("--url", rig.url, "--api-key", "swordfish", "--model", "other"),
                "answers a completion with: 404",
            ),
        ):
            done = CliRunner().invoke(main, ["bench", "load", *arguments])
            assert done.exit_code == 1 and said in done.output
            assert not ceilings
            assert done.output.startswith("pillion: ") and done.output.count("\n") == 1


def test_what_spoils_a_figure_is_noted() -> None:
    fine = {"cached_tokens": 0, "ended_early": 0, "client_cores": 0.02, "gap_ms": {"coalesced_share": 0.01}}
    assert notes({"A": [fine], "E": [fine | {"cached_tokens": 9}]}) == []
    second = fine | {"ended_early": 1, "client_cores": 0.5, "gap_ms": {"coalesced_share": 0.25}}
    spoilt = notes({"B": [fine | {"cached_tokens": 9}, second]})
    assert [note.partition(";")[0] for note in spoilt] == [
        "B: 9 prompt tokens came from a prefix cache",
        "B: 1 request ended early: the server does not heed ignore_eos",
        "B: 25% of tokens came together with the one before",
        "B: this client took 0.5 cores, the server's perhaps",
    ]


def test_a_cell_has_every_repeat() -> None:
    assert [shown(value) for value in (1376.4, 77.68, 0.04191, 2, None)] == [
        "1376",
        "77.7",
        "0.0419",
        "2",
        "-",
    ]
    assert (
        cell([{"gap_ms": {"p99": 1.5}}, {"gap_ms": None}, {"gap_ms": {"p99": [1, 2]}}], "gap_ms.p99")
        == "1.5, -, 1 2"
    )
