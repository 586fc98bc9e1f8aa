"""How `--help` looks: flags by what they set, the most used first, each in few words."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import click

from pillion.config import Leaf

MOST_USED = (
    *("config", "model", "served_model_name", "quantization", "max_model_len", "host", "port", "api_key"),
    *("replicas", "redis", "slo_tbt", "slo_ttft", "max_num_seqs", "log_level"),
)
HEADINGS = {
    "stack": "Stack: which services belong together, and where their state is",
    "model": "Model",
    "gateway": "Gateway: the HTTP side",
    "admission": "Admission: what waits, and how much of it",
    "scheduler": "Scheduler: what a step carries",
    "executor": "Executor: what runs the steps",
    "telemetry": "Telemetry: logs and metrics",
}
COMMANDS = {
    "Serve": ("serve", "up", "fetch", "doctor", "key", "config"),
    "Use, and look into": ("chat", "explain", "replay", "health"),
    "Measure and plan": ("profile", "bench", "capacity", "simulate", "tune", "compare"),
    "Services of their own": ("gateway", "admission", "scheduler", "executor"),
}
MORE = "All that is to say of a setting: docs/configuration.md. What is set: pillion config show."
_FEW = 12  # settings that need no headings
_FLAG = 25  # columns; a longer flag has a line of its own
_SAYS = 12  # letters, fewer of which say nothing
_LONG = 72  # letters of a meaning, from which on its first words do


class Setting(click.Option):
    """A flag of the configuration tree."""

    def __init__(self, *names: Any, leaf: Leaf, **how: Any) -> None:
        super().__init__(*names, **how)
        self.leaf = leaf


def flags(formatter: click.HelpFormatter, parameters: Sequence[click.Parameter], ctx: click.Context) -> bool:
    """Writes all flags; answers whether they stand by headings."""
    by_heading = sum(isinstance(each, Setting) for each in parameters) > _FEW
    own = "Options" if any(_own(each) for each in parameters) or not by_heading else "Most used"
    groups: dict[str, list[tuple[int, tuple[str, str]]]] = {own: []}
    if by_heading:
        groups |= {"Most used": [], **{heading: [] for heading in HEADINGS.values()}}
    for number, each in enumerate(parameters):
        row = each.get_help_record(ctx)
        if row is None:
            continue
        place, group = number, own
        if by_heading and each.name in MOST_USED:
            place, group = MOST_USED.index(each.name), "Most used"
        elif by_heading and isinstance(each, Setting):
            group = HEADINGS[each.leaf.section]
        groups[group].append((place, row))
    for heading, rows in groups.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([row for _, row in sorted(rows)], col_max=_FLAG)
    return by_heading


def _own(parameter: click.Parameter) -> bool:
    """Whether it is of the command alone: no setting, and nothing that every command has."""
    return parameter.expose_value and not (
        isinstance(parameter, Setting | click.Argument) or parameter.name == "config"
    )


def commands(formatter: click.HelpFormatter, known: Mapping[str, click.Command]) -> None:
    """Writes the commands by what they are for; those that stand nowhere come last."""
    placed = {name for names in COMMANDS.values() for name in names}
    for heading, names in {**COMMANDS, "Other": [name for name in known if name not in placed]}.items():
        rows = [(name, known[name].get_short_help_str()) for name in names if name in known]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def meaning(leaf: Leaf) -> str:
    """In few words, and the default. Where a text is long its first words say what the setting is."""
    text, bracket, inherited = leaf.help.partition(" [")
    words = choices(leaf)
    if len(text) > _LONG:
        text = _first(text, "[:;] " if words else "; ")
        if any(word not in text for word in words):
            text = f"{text}: {', '.join(words)}"
    if leaf.default not in (None, ()):
        shown = leaf.default if not isinstance(leaf.default, bool) else ("off", "on")[leaf.default]
        return f"{text}  [{shown}]"
    return f"{text}  [{inherited}" if bracket else text


def _first(text: str, ends: str) -> str:
    """The first words of a text, as far as something is said."""
    said = next((end.start() for end in re.finditer(ends, text) if end.start() >= _SAYS), len(text))
    return text[:said]


def choices(leaf: Leaf) -> list[str]:
    """The words of which a setting takes one; none where it takes others."""
    match = re.fullmatch(r"\^\(([a-zA-Z0-9_|-]+)\)\$", _base(leaf.type)[1])
    return match[1].split("|") if match else []


def kind(leaf: Leaf) -> str:
    """What a flag takes."""
    return {int: "N", float: "X"}.get(_base(leaf.type)[0], "TEXT")


def _base(annotation: Any) -> tuple[Any, str]:
    """The plain type under Annotated and `| None`, and the pattern of a text."""
    if hasattr(annotation, "__metadata__"):
        base, pattern = _base(annotation.__origin__)
        own = [meta.pattern for meta in annotation.__metadata__ if getattr(meta, "pattern", None)]
        return base, own[0] if own else pattern
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return _base(parts[0]) if parts else (annotation, "")
