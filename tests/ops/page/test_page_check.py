"""`ops/page-check` where it cannot look. What it looks at is a browser's matter, and no part of the tests."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pillion.ops.page.main import main


def test_without_a_browser_it_fails_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["--url", "http://127.0.0.1:9/v1"])
    assert done.exit_code == 1 and "apt install chromium" in done.output and "ok" not in done.output.split()


def test_a_browser_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["--url", "http://127.0.0.1:9/v1"])
    assert done.exit_code == 1 and "the browser did not start" in done.output
