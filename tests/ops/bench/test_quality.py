"""What int8 weights cost in predictions, and that the figure is the model's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

from pillion.config import load
from pillion.modelfiles import Located
from pillion.ops.bench import quality
from pillion.ops.cli import main
from pillion.ops.report import Points, read
from tests.cpu_kernels import cpu_backend

TOKENS = [(7 * n * n + 3) % 300 for n in range(90)]


def test_the_perplexity_is_that_of_transformers(tiny_model: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(quality, "WINDOW", 40)
    path = tiny_model("llama3")
    config = load(
        {"model": str(path), "dtype": "float32", "threads": 1, "num_kv_blocks": 40}, environ={}
    ).config
    ours, likeliest = quality.judge(config, TOKENS)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    total, best = 0.0, []
    for first in (0, 40, 80):
        window = torch.tensor([TOKENS[first : first + 40]])
        with torch.inference_mode():
            logits = model(window).logits[0].double()
        total += float(torch.nn.functional.cross_entropy(logits[:-1], window[0, 1:], reduction="sum"))
        best += logits.argmax(-1).tolist()
    assert likeliest == best
    assert math.isclose(ours, math.exp(total / 87), rel_tol=1e-4)


def test_int8_costs_the_demo_model_less_than_a_hundredth(demo: Located, tmp_path: Path) -> None:
    cpu_backend()  # it takes a compiler
    raw = tmp_path / "quality.json"
    files = ["--output", str(raw), "--report", str(tmp_path / "told")]
    done = CliRunner().invoke(
        main, ["bench", "quality", "--kv-cache-memory", "64MiB", "--threads", "1", *files]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(raw.read_bytes())
    assert read(tmp_path / "told").raw == result
    plain, scaled, packed, kv = result["forms"]
    assert (kv["quantization"], kv["kv_cache_dtype"]) == ("none", "int8")
    assert result["tokens"] > 1900 and plain["agreement"] == 1.0
    assert plain["perplexity"] < 25 and 0.9 < scaled["agreement"] < 1.0
    assert 0 < abs(scaled["perplexity"] / plain["perplexity"] - 1) < 0.01
    assert 0 < abs(packed["perplexity"] / plain["perplexity"] - 1) < 0.02
    assert 0 < abs(kv["perplexity"] / plain["perplexity"] - 1) < 0.01
    assert "int8" in done.output and f"{scaled['perplexity']:.3f}" in done.output


def test_the_report_puts_each_form_beside_the_first() -> None:
    forms = [("none", "auto", 20.0, 1.0), ("int8", "auto", 20.5, 0.94), ("none", "int8", 19.9, 0.97)]
    names = ("quantization", "kv_cache_dtype", "perplexity", "agreement")
    each = [dict(zip(names, form, strict=True)) for form in forms]
    made = quality.report({"model": "demo", "text": "a.txt", "tokens": 90, "forms": each})
    assert [row[1] for row in made.tables[0].rows] == ["20.000", "20.500", "19.900"]
    assert [row[2] for row in made.tables[0].rows] == pytest.approx([0, 0.025, -0.005])
    (plot,) = made.plots
    assert isinstance(plot, Points) and [series.points[0][1] for series in plot.series] == [1, 0.94, 0.97]
    assert [one.values for one in made.summary] == [[20.0], [1.0], [20.5], [0.94], [19.9], [0.97]]
    assert made.raw["forms"] == each


def test_a_model_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bench", "quality", "--model", str(tmp_path / "none.gguf")])
    assert done.exit_code == 1 and "no model at" in done.output
