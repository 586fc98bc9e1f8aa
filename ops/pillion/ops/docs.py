"""Files that are generated: `python -m pillion.ops.docs` writes them, a test holds them equal."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pillion.config import leaves
from pillion.ops import api_page
from pillion.ops.dashboards import grafana
from pillion.telemetry import names, vllm

_LAYERS = {
    "gateway": "Gateway, by OpenTelemetry's GenAI conventions",
    "user": "What users see",
    "queue": "Queue",
    "scheduler": "Scheduler",
    "executor": "Executor",
    "process": "Every process",
}


_HEAD = ("| name | kind | labels | meaning |", "| --- | --- | --- | --- |")
_VLLM = (
    "With `--metrics-compat vllm` the gateway adds the names that dashboards for vLLM ask for. What is",
    "counted by request has the engine `all` and is this gateway's own. The rest is of every replica, by its",
    "name, from its heartbeats, so it is the same at each gateway: look at one, or take `max by (engine)`.",
)


def metrics() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "The gateway serves `/metrics` on its own port; the other processes on `--metrics-port`. Under",
        "`ops/up` each takes a port of its own, counted from `--metrics-port N`: the executor N, the",
        "scheduler N + 1, admission N + 2; with `--replicas`, the second executor N + 4, its scheduler",
        "N + 5, and so on. Seconds and bytes everywhere; no label carries an id or a user's text.",
    ]
    for layer, title in _LAYERS.items():
        lines += ["", f"## {title}", "", *_HEAD]
        for metric in names.METRICS:
            if metric.layer == layer:
                lines.append(_row(metric))
    lines += ["", "## By vLLM's names", "", *_VLLM, "", *_HEAD, *map(_row, vllm.METRICS)]
    return "\n".join(lines) + "\n"


def _row(metric: names.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


_AFTER = {
    "gateway": (
        "With `--api-key`, `/v1/...`, `/tokenize` and `/detokenize` ask for `Authorization: Bearer KEY`.",
        "`/health*`, `/version`, `/openapi.json` and `/metrics` stay open: what asks there (an orchestrator,",
        "a load balancer, Prometheus) often holds no key, and the answers carry no text, key or id of a",
        "request, only states, totals and limits. The pages are open too, and ask whoever uses them for a",
        "key. To close them, put a proxy before the gateway; `--no-page` leaves the pages out.",
    ),
}
"""What a section's table does not say."""


def configuration() -> str:
    """`docs/configuration.md`."""
    lines = [
        "# Configuration",
        "",
        "Defaults < TOML file (`--config`, `PILLION_CONFIG`) < `PILLION_*` environment < flags.",
        "Unknown keys are refused. `.venv/bin/pillion config show` tells each value and where it came from.",
        "",
        "```toml",
        "# pillion.toml, for `ops/up --config pillion.toml`",
        "[model]",
        'model = "Qwen/Qwen2.5-0.5B-Instruct"',
        "",
        "[gateway]",
        "port = 8080",
        'allowed_hosts = ["llm.example.com"]',
        "",
        "[scheduler]",
        "slo_tbt = 0.08",
        "```",
        "",
        "The same by variables, which are the keys in capitals, several values with commas between them:",
        "`PILLION_PORT=8080 PILLION_ALLOWED_HOSTS=llm.example.com PILLION_SLO_TBT=0.08 ops/up`.",
    ]
    section = ""
    for leaf in leaves():
        if leaf.section != section:
            lines += _after(section)
            section = leaf.section
            lines += [
                "",
                f"## [{section}]",
                "",
                "| key | flag | default | meaning |",
                "| --- | --- | --- | --- |",
            ]
        default = "" if leaf.default in (None, ()) else f"`{_written(leaf.default)}`"
        flag = f"{leaf.flag}/--no-{leaf.flag[2:]}" if isinstance(leaf.default, bool) else leaf.flag
        lines.append(f"| `{leaf.name}` | `{flag}` | {default} | {leaf.help} |")
    return "\n".join([*lines, *_after(section)]) + "\n"


def _written(value: Any) -> str:
    """As in a TOML file, texts without their marks."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _after(section: str) -> list[str]:
    return ["", *_AFTER[section]] if section in _AFTER else []


PAGES: dict[str, Callable[[], str]] = {
    "docs/metrics.md": metrics,
    "docs/configuration.md": configuration,
    "docs/api.md": api_page.page,
    **{
        f"{grafana.FOLDER}/{dashboard.uid}.json": partial(grafana.text, dashboard)
        for dashboard in grafana.DASHBOARDS
    },
}
"""Path in the checkout to text."""


def main() -> None:
    root = Path(__file__).parents[3]
    for name, page in PAGES.items():
        (root / name).write_text(page())
        print(name)


if __name__ == "__main__":
    main()
