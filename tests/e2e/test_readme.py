"""Every command block of the README, run as it stands but for the port and the state folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pillion.ops.rig import Rig

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
ASKING = [block for block in BLOCKS if block[1].strip() not in ("ops/up", "ops/test")]


def run(kind: str, text: str, environ: dict[str, str]) -> str:
    """What a block prints, as a user's shell or interpreter runs it at the checkout's root."""
    command = ["bash", "-euc", text] if kind == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain_environ(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")} | more


def test_the_readme_has_what_it_promises() -> None:
    texts = [text.strip() for _, text in BLOCKS]
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    assert texts[:2] == ["ops/up", "ops/test"]
    assert sum(text.startswith("curl ") for text in texts) == 1
    assert sum("OpenAI(" in text for text in texts) == 1
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize(("kind", "text"), ASKING, ids=[text.split()[0] for _, text in ASKING])
def test_a_block_that_asks_a_stack(kind: str, text: str, stack: Rig) -> None:
    port = stack.url.rpartition(":")[2]
    environ = plain_environ(PILLION_STATE_DIR=str(stack.state), PILLION_PORT=port)
    said = run(kind, text.replace(":8000", f":{port}"), environ)
    expected = {"curl": "data: [DONE]", "from": " ", ".venv/bin/pillion": "max_num_batched_tokens"}
    assert expected[text.split()[0]] in said
    assert "fail  " not in said


def test_ops_up_serves(tmp_path: Path) -> None:
    state = tmp_path / "state"
    stack = Rig(state, command=[str(ROOT / "ops/up")])
    assert stack.ready
    assert stack.end() == 0
    shutil.rmtree(state)


def test_ops_test_runs_tests() -> None:
    said = run("sh", BLOCKS[1][1], plain_environ(PYTEST_ADDOPTS="-k test_the_command_is_installed"))
    assert re.search(r"^=+ 1 passed", said, re.MULTILINE), said[-2000:]
