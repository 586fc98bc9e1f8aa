"""A run's result for people, in Markdown. Pure."""

from collections.abc import Sequence
from typing import Any

from pillion.ops.chaos.report import SIGNS


def words(raw: dict[str, Any]) -> str:
    """`raw`: what `report.raw` gives."""
    total = raw["summary"]
    told = [
        f"{total['streams']} streams, {total['tokens_compared']} tokens compared:"
        f" {total['lost_tokens']} lost, {total['doubled_tokens']} doubled,"
        f" {total['streams_that_differ']} streams differ, {total['faults']} other faults.",
        f"{total['blows']} blows: {total['killed_and_died']} of {total['killed']} killed processes died,"
        f" {total['stopped']} were stopped, Redis was emptied {total['emptied']} times."
        f" {total['streams_hit']} streams were hit: {total['hit_in_prefill']} times in mid-prefill,"
        f" {total['hit_in_decode']} times in mid-decode."
        f" {total['resumed']} times a stream went on over another connection,"
        f" {total['refused_attempts']} attempts were refused and repeated.",
        "",
        *_struck(total["blows_by_role"]),
        "",
        *_pauses(raw["by_kind"]),
    ]
    found = [f"DIFFERENT: {found['stream']}: {found['words']}" for found in raw["differences"]]
    found += [f"FAULT: {fault}" for fault in raw["faults"]]
    return "\n".join([*told, *([""] if found else []), *found])


def _struck(roles: dict[str, dict[str, int]]) -> list[str]:
    """How often each role was struck, by signal."""
    signs = [sign for sign in SIGNS.values() if any(sign in counts for counts in roles.values())]
    rows = [[role, *(str(counts.get(sign, 0)) for sign in signs)] for role, counts in sorted(roles.items())]
    return table(["struck", *signs], rows)


def _pauses(kinds: dict[str, Any]) -> list[str]:
    """Over the streams that were decoding; blows that overlap are counted and not measured."""
    head = [
        "blow",
        "count",
        "alone",
        "hit in prefill",
        "in decode",
        "median s",
        "worst s",
        "of which, mean s",
    ]
    rows = []
    for name, kind in kinds.items():
        spent = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in kind["phases_mean"].items())
        median, worst = (
            "-" if kind[field] is None else f"{kind[field]:.2f}" for field in ("pause_median", "pause_worst")
        )
        counts = (kind[field] for field in ("blows", "measured", "hit_in_prefill", "hit_in_decode"))
        rows.append([name, *map(str, counts), median, worst, spent])
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown that reads well as it is: columns of figures stand at the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    left = [column == 0 or not _figures(rows, column) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        filled = (
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(cells, widths, left, strict=True)
        )  # fmt: skip
        return f"| {' | '.join(filled)} |"

    rule = (
        "-" * width if is_left else "-" * (width - 1) + ":"
        for width, is_left in zip(widths, left, strict=True)
    )
    return [line(head), f"| {' | '.join(rule)} |", *map(line, rows)]


def _figures(rows: Sequence[Sequence[str]], column: int) -> bool:
    return all(row[column] == "-" or row[column].replace(".", "").isdigit() for row in rows)
