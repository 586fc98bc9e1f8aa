"""What the pages tell to type is there: commands of `pillion`, their flags, and the programs in ops."""

import re
from pathlib import Path

import click
import pytest

from pillion.ops.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def typed(page: Path) -> list[str]:
    """Lines of examples, and what stands in the text as code."""
    text = page.read_text()
    fence = re.compile(r"^```.*?\n(.*?)^```", re.M | re.S)
    lines = [line for block in fence.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", fence.sub("", text))]
    return [line.partition(" #")[0] for line in lines]


def wrong(words: list[str]) -> str | None:
    """The first word that is no command of `pillion` or no flag of the one that is named."""
    command: click.Command = main
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command = command.commands[words.pop(0)]
    known = {"--help", *(flag for param in command.params for flag in (*param.opts, *param.secondary_opts))}
    flags = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    return next((flag for flag in flags if flag.startswith("--") and flag not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_flags_are_there(page: Path) -> None:
    lines = [re.match(r"(?:\.venv/bin/)?(pillion|ops/up) (?=[a-z-])(.+)", line) for line in typed(page)]
    told = [(found[0], [*["up"] * (found[1] == "ops/up"), *found[2].split()]) for found in lines if found]
    assert [(line, bad) for line, words in told if (bad := wrong(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_in_ops_can_be_run(page: Path) -> None:
    named = [found[1] for line in typed(page) if (found := re.match(r"(ops/[\w/-]+)(?= |$)", line))]
    runs = [name for name in named if (ROOT / name).is_file()]
    assert [name for name in runs if not (ROOT / name).stat().st_mode & 0o100] == []
    assert [name for name in named if not (ROOT / name).exists()] == []
    spoken = [line for line in typed(page) if re.match(r"ops/[\w/-]+ \S", line)]
    assert [line for line in spoken if not (ROOT / line.split()[0]).is_file()] == []


def test_a_wrong_command_and_a_wrong_flag_are_seen() -> None:
    assert wrong(["bench", "kernel"]) == "kernel"
    assert wrong(["up", "--prot", "8000"]) == "--prot"
    assert wrong(["up", "--port", "8000"]) is None
