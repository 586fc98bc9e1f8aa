"""What `pillion bench load` shows to people: a table with a column for each server."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pillion.words import counted

_GAPS = (("gap P50, ms", "gap_ms.median"), ("gap P99, ms", "gap_ms.p99"), ("worst gap, ms", "gap_ms.worst"))
_TOTAL = ("total tokens/s", "total_tokens_per_s")
_TTFT = (("TTFT median, s", "ttft_s.median"), ("TTFT worst, s", "ttft_s.worst"))

TITLES = {
    "A": "one stream, 64 in, 128 out",
    "B": "48 chats at once",
    "C": "24 summaries, 8 at a time",
    "D": "8 streams, 3 long prompts arrive",
    "E": "24 with a common prefix, 8 at a time",
    "G": "summaries that arrive at random",
}
ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "A": (("decode tokens/s", "decode_tokens_per_s"), ("TTFT, s", "ttft_s"), *_GAPS),
    "B": (_TOTAL, *_TTFT, *_GAPS),
    "C": (_TOTAL, *_TTFT, *_GAPS),
    "D": (
        ("worst gap, ms", "worst_gap_ms"),
        ("the same over the median before", "worst_gap_over_median_before"),
        ("TTFT of the long prompts, s", "ttft_s"),
        ("the same over idle", "ttft_over_idle"),
    ),
    "E": (_TOTAL, *_TTFT, *_GAPS),
    "G": (
        ("good share", "good_share"),
        ("requests", "requests"),
        ("missed TTFT", "missed_ttft"),
        ("missed TBT", "missed_tbt"),
        ("TTFT median, s", "ttft_s.median"),
        ("TTFT P90, s", "ttft_s.p90"),
        ("worst request's gap P99, ms", "gap_p99_ms.worst"),
    ),
}
"""What is shown of a case: its name and where it is in the case's result."""
INSIDE = (
    ("tokens/s at the floor", "floor.tokens_per_s"),
    ("ceiling, GFLOP/s", "floor.gflop_per_s"),
    ("ceiling, GB/s", "floor.gb_per_s"),
    ("floor over time", "floor.reached"),
    ("floor over time in steps", "floor.reached_in_steps"),
    ("time in steps, share", "executor.step_share"),
    ("idle between steps, mean ms", "executor.gap_mean_ms"),
    ("parts of steps, s", "executor.parts_s"),
    ("CPU, s", "cpu_s"),
    ("CPU outside kernels, share at least", "cpu_outside_kernels"),
)
"""What is shown besides of servers that can be looked into."""


def told(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Shows a raw result of `load`; a cell has the repeats in their order."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 120
    servers = result["servers"]
    table = Table("case", "", *(f"{server['url']}\n{server['model']}" for server in servers))
    for case in servers[0]["cases"]:
        title = f"{case}: {TITLES[case]}"
        for label, path in (*ROWS[case], *INSIDE):
            cells = [cell(server["cases"][case], path) for server in servers]
            if any(set(text) - set("-, ") for text in cells):
                table.add_row(title, label, *cells)
                title = ""
        table.add_section()
    console.print(table)
    ceilings_told(console, result)
    for server in servers:
        for note in server["notes"]:
            console.print(f"{server['url']}: {note}", markup=False, highlight=False, soft_wrap=True)


def ceilings_told(console: Console, result: Mapping[str, Any]) -> None:
    """What the machine could do, before and after; nothing where it was not asked."""
    each = [
        f"{one.flops_per_s / 1e9:.0f} GFLOP/s (int8 {one.int8_flops_per_s / 1e9:.0f}) and "
        f"{one.bytes_per_s / 1e9:.1f} GB/s"
        for one in result["ceilings"]
    ]
    if each:
        with_threads = counted(result["threads"], "thread")
        line = f"ceilings with {with_threads}: {', then '.join(each)}; a floor is at the higher beside it"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def headline(case: str, result: Mapping[str, Any]) -> str:
    """The first figure of one run of a case."""
    label, path = ROWS[case][0]
    return f"{case}: {label} {shown(found(result, path))}"


def cell(results: Sequence[Mapping[str, Any]], path: str) -> str:
    """One figure of every repeat; - where a repeat has none."""
    return ", ".join(shown(found(each, path)) for each in results)


def found(result: Mapping[str, Any], path: str) -> Any:
    value: Any = result
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def shown(value: Any) -> str:
    """Three digits, or all before the point."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(shown, value))
    if isinstance(value, Mapping):
        return " ".join(f"{name} {shown(each)}" for name, each in value.items())
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
