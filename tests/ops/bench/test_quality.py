"""What int8 weights cost in predictions, and that the figure is the model's."""

import json
import math
from pathlib import Path
from typing import Any

import torch
import transformers
from click.testing import CliRunner

from pillion.config import load
from pillion.modelfiles import Located
from pillion.ops.bench import quality
from pillion.ops.cli import main
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
    done = CliRunner().invoke(
        main, ["bench", "quality", "--kv-cache-memory", "64MiB", "--threads", "1", "--output", str(raw)]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(raw.read_bytes())
    plain, scaled, packed, kv = result["forms"]
    assert (kv["quantization"], kv["kv_cache_dtype"]) == ("none", "int8")
    assert result["tokens"] > 1900 and plain["agreement"] == 1.0
    assert plain["perplexity"] < 25 and 0.9 < scaled["agreement"] < 1.0
    assert 0 < abs(scaled["perplexity"] / plain["perplexity"] - 1) < 0.01
    assert 0 < abs(packed["perplexity"] / plain["perplexity"] - 1) < 0.02
    assert 0 < abs(kv["perplexity"] / plain["perplexity"] - 1) < 0.01
    assert "int8" in done.output and f"{scaled['perplexity']:.3f}" in done.output


def test_a_model_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bench", "quality", "--model", str(tmp_path / "none.gguf")])
    assert done.exit_code == 1 and "no model at" in done.output
