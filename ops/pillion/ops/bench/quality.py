"""`pillion bench quality`: what is lost of a model's predictions by how its weights are held."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pillion.config import Config
from pillion.executor.loading import load
from pillion.gateway.tokenizer import load_tokenizer
from pillion.modelfiles import locate
from pillion.ops.report import Axis, Figure, Points, Report, Series, Table, tell, write
from pillion.ops.report.origin import origin

TEXT = Path(__file__).parent / "public_domain.txt"
WINDOW = 512  # tokens that are judged as one sequence


FORMS = (("none", "auto"), ("int8", "auto"), ("gguf", "auto"), ("none", "int8"))
"""Of weights and of KV."""


def run(config: Config, text: Path, output: Path | None, page: str | None = None) -> None:
    """Compares weights in int8 and 4 bit, and KV in int8, with both as they are.

    Raises ModelFileError, ConfigError, OSError, NoReport.
    """
    result = measure(config, text)
    if output:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    made = report(result)
    tell(made, write(made, page) if page else ())


def measure(config: Config, text: Path, forms: Sequence[tuple[str, str]] = FORMS) -> dict[str, Any]:
    """The raw result: perplexities, and how often the likeliest token is that of the first form."""
    located = locate(config.model.model, config.model.revision, config.cache_path)
    tokens = load_tokenizer(located).encode(text.read_text())
    found: list[dict[str, Any]] = []
    first: list[int] = []
    for weights, kv in forms:
        model = msgspec.structs.replace(config.model, quantization=weights)
        executor = msgspec.structs.replace(config.executor, kv_cache_dtype=kv)
        asked = msgspec.structs.replace(config, model=model, executor=executor)
        perplexity, likeliest = judge(asked, tokens)
        first = first or likeliest
        same = sum(ours == theirs for ours, theirs in zip(likeliest, first, strict=True))
        form = {"quantization": weights, "kv_cache_dtype": kv}
        found.append(form | {"perplexity": perplexity, "agreement": same / len(first)})
    return {"model": config.model.model, "text": text.name, "tokens": len(tokens), "forms": found}


def judge(config: Config, tokens: Sequence[int]) -> tuple[float, list[int]]:
    """The perplexity of the tokens in windows, and the likeliest token after each."""
    engine = load(config, lambda line: click.echo(line, err=True)).engine
    window = min(WINDOW, engine.facts.max_step_tokens)
    total, count, likeliest = 0.0, 0, list[int]()
    for first in range(0, len(tokens) - 1, window):
        best, logprobs = engine.judge(tokens[first : first + window])
        total += float(logprobs.double().sum())
        count += len(logprobs)
        likeliest += best.tolist()
    return math.exp(-total / count), likeliest


def report(result: dict[str, Any]) -> Report:
    """Of the raw result."""
    base = result["forms"][0]["perplexity"]
    forms = [
        (
            f"weights {form['quantization']}, KV {form['kv_cache_dtype']}", form["perplexity"],
            form["perplexity"] / base - 1, form["agreement"],
        )
        for form in result["forms"]
    ]  # fmt: skip
    return Report(
        title=f"What other forms of {result['model']} cost",
        provenance=origin(**{name: result[name] for name in ("model", "text", "tokens")}, window=WINDOW),
        summary=[
            figure
            for name, perplexity, _, same in forms
            for figure in (
                Figure(f"perplexity, {name}", [perplexity], "", "lower"),
                Figure(f"same token, {name}", [same], "share", "higher"),
            )
        ],
        tables=[
            Table(
                "Forms",
                ["", "perplexity", "more", "same token"],
                [[name, f"{perplexity:.3f}", more, same] for name, perplexity, more, same in forms],
                ["", "", "share", "share"],
            )
        ],
        plots=[
            Points(
                "What each form costs", Axis("more perplexity", "share"), Axis("same token", "share"),
                [Series(name, [(more, same)]) for name, _, more, same in forms], best=("low", "high"),
            )
        ],
        definitions={
            "perplexity": "e to the mean of -log p of each token of the text, after those before it in its "
            f"window of at most {WINDOW} tokens. More: than that of the first form.",
            "same token": "Share of positions at which the likeliest next token is that of the first form.",
            "none, auto": "As the model has them. int8: 8 bits; gguf: 4 bits.",
        },
        raw=result,
    )  # fmt: skip
