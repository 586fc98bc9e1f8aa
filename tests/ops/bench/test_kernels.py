"""`pillion bench kernels` on a tiny model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pillion.kernels.operators import Timing
from pillion.ops.bench import kernels
from pillion.ops.bench.ceilings import Ceilings
from pillion.ops.cli import main
from pillion.ops.report import read


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that they were asked for with; measuring them has its own test, and takes seconds."""
    asked: list[int] = []

    def known(threads: int) -> Ceilings:
        asked.append(threads)
        return Ceilings(1e12 * len(asked), 9e12, 1e11)

    monkeypatch.setattr(kernels, "ceilings_of", known)
    return asked


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bench", "kernels", *arguments])


def test_a_backend_is_measured(tiny_model: Any, ceilings: list[int], tmp_path: Path) -> None:
    raw = tmp_path / "kernels.json"
    sizes = ("--rows", "1", "--rows", "4", "--context", "20", "--seconds", "0.001", "--threads", "1")
    files = ("--output", str(raw), "--report", str(tmp_path / "told"))
    done = run("--model", str(tiny_model("smollm2")), "--backend", "torch", *sizes, *files)
    assert done.exit_code == 0, done.output
    result = json.loads(raw.read_bytes())
    assert (result["backend"], result["threads"], ceilings) == ("torch", 1, [1, 1])
    assert result["sizes"] == {
        "hidden": 96, "heads": 3, "kv_heads": 1, "head_size": 32, "mlp": 128, "vocabulary": 320, "layers": 3,
    }  # fmt: skip
    assert {one["rows"] for one in result["operators"]} == {1, 4}
    for one in result["operators"]:
        assert one["floor"] == pytest.approx(max(one["flops"] / 2e12, one["bytes"] / 1e11))
    assert "attention, chunk at 20" in done.output and "ceilings with 1 thread" in done.output
    assert "backend torch (asked for)" in done.output
    made = read(tmp_path / "told")
    assert made.raw == result and made.provenance["backend"] == "torch"
    ratios = [point for series in made.plots[0].series for point in series.points]  # type: ignore[union-attr]
    assert ratios == [(one["rows"], one["ratio"]) for one in result["operators"]]
    assert made.summary[1].values == [max(ratio for _, ratio in ratios)]


def test_a_ratio_is_the_time_over_the_floor() -> None:
    timing = Timing("one", 1, flops=200, bytes=30, int8=False, seconds=12.0, calls=3)
    told = kernels.against(timing, Ceilings(50.0, 100.0, 10.0))
    assert (told["floor"], told["ratio"], told["name"]) == (4.0, 3.0, "one")
    assert kernels.against(replace(timing, int8=True), Ceilings(50.0, 100.0, 10.0))["floor"] == 3.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backend", "nosuch"), "there is no backend nosuch"),
        (("--backend", "torch", "--quantization", "int8"), "torch does not run int8 weights"),
        (("--model", "./none.gguf"), "no model at none.gguf"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: tuple[str, ...], said: str, tiny_model: Any) -> None:
    done = run("--model", str(tiny_model("smollm2")), *arguments)
    assert done.exit_code == 1 and said in done.output
    assert done.output.startswith("pillion: ") and done.output.count("\n") == 1
