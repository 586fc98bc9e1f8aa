"""What must come back to where it was, and how exactly. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """For measures whose name matches: after <= before * (1 + share) + slack, or after <= bound."""

    pattern: str
    why: str
    share: float = 0.0
    slack: float = 0.0
    bound: float | None = None

    def allows(self, before: float, after: float) -> bool:
        if self.bound is not None and after <= self.bound:
            return True
        return after <= before * (1 + self.share) + self.slack


RULES: tuple[Rule, ...] = (
    Rule("rss.*", "10 % and 12 MiB: heaps break up, and arenas are kept", share=0.10, slack=12 * MIB),
    Rule("descriptors.*", "2: a connection may be just about to close", slack=2),
    Rule("threads.*", "4: pools start their threads on demand", slack=4),
    Rule("tasks.*", "2: one may be just about to end", slack=2),
    Rule("series.*", "30 %: label values that are bounded, seen for the first time", share=0.3, slack=100),
    Rule("inboxes.*", "all closed"),
    Rule("running.*", "none"),
    Rule("queued.*", "none"),
    Rule("ledger.*", "all settled"),
    Rule("sequences.*", "none"),
    Rule("blocks.referenced", "none"),
    Rule("dead_letters_total.*", "none was set aside"),
    Rule("stream.submit", "handed on"),
    Rule("stream.run", "settled"),
    Rule("stream.out", "trimmed to about 20,000 a gateway", slack=22_000),
    Rule("stream.usage", "trimmed to about 20,000", bound=22_000),
    Rule("stream.cancel", "trimmed to about 10,000", bound=11_000),
    Rule("stream.beats", "trimmed to about 1,000", bound=1_200),
    Rule("stream.dead", "trimmed to about 1,000", bound=1_200),
    Rule("stream.journal", "trimmed every 256 steps", bound=1_000),
    Rule("pending.*", "none"),
    Rule("consumers.*", "one a group", bound=1),
    Rule("keys.*", "no key without an end is left behind"),
    Rule("memory.lasting keys", "1 MiB", slack=MIB),
    Rule("clients.redis", "2", slack=2),
)
"""The first that matches holds. What matches none is only told."""

# `out` and the like appear when they are first written to; that is no key left behind.
_FIRST_SEEN = frozenset(
    ("keys.submit", "keys.run", "keys.journal", "keys.cancel", "keys.beats", "keys.dead", "keys.replicas")
)


@dataclass(frozen=True, slots=True)
class Line:
    """One measure's course."""

    name: str
    before: float
    peak: float
    after: float
    rule: Rule | None
    ok: bool


def judge(
    before: Mapping[str, float], along: Sequence[Mapping[str, float]], after: Mapping[str, float]
) -> list[Line]:
    """A line a measure, sorted by name."""
    lines = []
    for name in sorted({*before, *after}):
        start, end = before.get(name, 0.0), after.get(name, 0.0)
        peak = max(start, end, *(sample.get(name, 0.0) for sample in along))
        rule = next((rule for rule in RULES if fnmatchcase(name, rule.pattern)), None)
        seen = name in _FIRST_SEEN and name not in before and end <= 1
        lines.append(Line(name, start, peak, end, rule, rule is None or seen or rule.allows(start, end)))
    return lines


def table(lines: Sequence[Line]) -> str:
    """For people: only what changed or must not."""
    rows: list[tuple[str, ...]] = [("", "measure", "before", "peak", "after", "allowed")]
    for line in lines:
        mark = "FAIL" if not line.ok else "ok" if line.rule else ""
        rows.append(
            (mark, line.name, *(_shown(line.name, x) for x in (line.before, line.peak, line.after)),
             line.rule.why if line.rule else "")
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        f"{row[0]:<4} {row[1]:<{widths[1]}}  "
        + "  ".join(f"{row[column]:>{widths[column]}}" for column in (2, 3, 4))
        + f"  {row[5]}".rstrip()
        for row in rows
    )


def _shown(name: str, value: float) -> str:
    if name.startswith(("rss.", "memory.")):
        return f"{value / MIB:.1f} MiB"
    return f"{value:g}"
