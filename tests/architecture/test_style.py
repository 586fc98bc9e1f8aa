"""Lint, format and types hold for the whole tree."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("services", "shared", "kernels", "ops")
UNTYPED = ("_pb2", "ops/clients/scripts/")  # generated, or run in environments of their own


def ran(*command: str) -> str:
    """What it printed; it found nothing to say against the tree."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_the_tree_is_clean(command: tuple[str, ...]) -> None:
    ran("ruff", *command, ".")


def test_all_types_hold() -> None:
    files = [
        path.relative_to(ROOT).as_posix() for source in SOURCES for path in (ROOT / source).rglob("*.py")
    ]
    typed = [name for name in files if not any(part in name for part in UNTYPED)]
    assert f"no issues found in {len(typed)} source files" in ran("mypy", *SOURCES)
