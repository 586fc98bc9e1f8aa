"""The command line: flags from the configuration tree, provenance, one-line errors."""

import runpy
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pillion.config import leaves
from pillion.ops import help
from pillion.ops.cli import main

ROLES = ("gateway", "admission", "scheduler", "executor")


def run(*arguments: str, **environ: str | None) -> Result:
    return CliRunner().invoke(main, arguments, env=environ)


def test_up_has_a_flag_for_every_setting() -> None:
    shown = run("up", "--help").output
    flags = [leaf.flag for leaf in leaves()]
    assert len(flags) > 30
    assert [
        flag
        for flag in flags
        if f"{flag} " not in shown and f"{flag}/" not in shown and f"{flag}\n" not in shown
    ] == []
    assert "--enable-prefix-caching / --no-enable-prefix-caching" in shown
    assert "--port N" in shown
    assert "--slo-tbt X" in shown


@pytest.mark.parametrize(
    ("role", "has", "lacks"),
    [
        ("gateway", "--port", "--num-kv-blocks"),
        ("admission", "--max-waiting", "--port"),
        ("scheduler", "--max-num-seqs", "--api-key"),
        ("executor", "--num-kv-blocks", "--max-waiting"),
        ("chat", "--api-key", "--max-body-bytes"),
        ("health", "--executor", "--num-kv-blocks"),
        ("doctor", "--cache-dir", "--max-waiting"),
        ("bench load", "--state-dir", "--num-kv-blocks"),
        ("bench kernels", "--backend", "--api-key"),
        ("bench quality", "--kv-cache-memory", "--quantization"),
    ],
)
def test_a_command_has_the_flags_that_matter_to_it(role: str, has: str, lacks: str) -> None:
    shown = run(*role.split(), "--help").output
    assert f"{has} " in shown
    assert f"{lacks} " not in shown


def test_config_show_tells_each_value_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[gateway]\nport = 1111\nhost = "::1"\n[scheduler]\nmax_num_seqs = 7\n')
    shown = run(
        "config", "show", "--config", str(file), "--max-num-seqs", "9", "--no-enable-prefix-caching",
        PILLION_PORT="2222", PILLION_API_KEY="swordfish",
    )  # fmt: skip
    assert shown.exit_code == 0
    rows = {words[0]: words[1:] for line in shown.output.splitlines() if len(words := line.split()) == 3}
    assert rows["port"] == ["2222", "PILLION_PORT"]
    assert rows["host"] == ["::1", str(file)]
    assert rows["max_num_seqs"] == ["9", "--max-num-seqs"]
    assert rows["enable_prefix_caching"] == ["false", "--enable-prefix-caching"]
    assert rows["api_key"] == ["(hidden)", "PILLION_API_KEY"]
    assert rows["log_level"] == ["info", "default"]
    assert "swordfish" not in shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("up", "--port", "80x"), "--port: '80x' is no whole number from 0 to 65535"),
        (("serve", "demo", "--dtype", "int3"), "--dtype: 'int3' is none of auto, bfloat16"),
        (("config", "show", "--config", "/none.toml"), "cannot read the configuration file /none.toml"),
        (("gateway",), "no Redis: give --redis URL"),
    ],
)
def test_a_wrong_setting_is_one_line_and_code_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    result = run(*arguments, PILLION_STATE_DIR=str(tmp_path))
    assert result.exit_code == 2
    assert result.output.startswith("pillion: ")
    assert said in result.output
    assert result.output.count("\n") == 1


def test_an_unknown_variable_names_the_nearest() -> None:
    result = run("config", "show", PILLION_PRT="1")
    assert (result.exit_code, result.output) == (
        2, "pillion: unknown variable PILLION_PRT; did you mean PILLION_PORT?\n",
    )  # fmt: skip


def test_version_is_the_projects() -> None:
    assert run("version").output == run("--version").output == "pillion 0.1.0\n"


def test_summaries_are_whole_sentences() -> None:
    shown = run("--help", COLUMNS="80").output
    lines = [line for line in shown.partition("Serve:")[2].splitlines() if line.startswith("  ")]
    # One line each, by what they are for.
    assert sorted(line.split()[0] for line in lines) == sorted(main.commands) and len(lines) > 12
    assert [line for line in lines if not line.endswith(".") or "..." in line] == []
    assert max(map(len, lines)) < 80
    headings = [line for line in shown.splitlines() if line and not line.startswith(" ")][2:]
    assert headings == [*(f"{name}:" for name in help.COMMANDS), "Other:"]


@pytest.mark.parametrize("command", ["up", "serve", "simulate", "scheduler"])
def test_many_flags_stand_by_what_they_set_and_the_most_used_first(command: str) -> None:
    shown = run(command, "--help", COLUMNS="80").output
    assert max(map(len, shown.splitlines())) <= 80
    headings = [line[:-1] for line in shown.splitlines()[1:] if line and line[0] != " " and line[-1] == ":"]
    settings = [heading for heading in headings if heading in help.HEADINGS.values()]
    assert settings == [each for each in help.HEADINGS.values() if each in settings] and len(settings) > 2
    before = headings[: headings.index(settings[0])]
    assert before == (["Options", "Most used"] if command == "simulate" else ["Most used"])
    assert "docs/configuration.md" in shown
    most = shown.partition("Most used:\n")[2].partition("\n\n")[0]
    first = [line.split()[0][2:].replace("-", "_") for line in most.splitlines() if line.startswith("  --")]
    assert first == [name for name in help.MOST_USED if name in first] and len(first) > 3


def test_few_flags_stand_without_headings() -> None:
    shown = run("explain", "--help", COLUMNS="80").output
    assert shown.count(":\n") == 1 and "--state-dir" in shown


def test_a_meaning_is_in_few_words_and_names_what_there_is_to_choose() -> None:
    known = {leaf.name: leaf for leaf in leaves()}
    assert help.meaning(known["quantization"]) == "how weights are held: none, int8, gguf  [none]"
    assert help.meaning(known["page"]).endswith("its requests do  [on]")
    for leaf in known.values():
        told = help.meaning(leaf)
        assert 12 < len(told) < 200, told
        assert all(word in told for word in help.choices(leaf)), told


def test_chat_names_the_stack_that_does_not_run(tmp_path: Path) -> None:
    done = run("chat", "--stack", "nosuch", "hi", PILLION_STATE_DIR=str(tmp_path))
    assert done.exit_code == 1
    assert done.output == (
        f"pillion: no stack 'nosuch' runs here ({tmp_path}/nosuch holds no address); start it with "
        "`pillion up --stack nosuch`, or name a server with --url\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "{busy}"), "port {busy} on 127.0.0.1 is in use; end what uses it"),
        (("--host", "203.0.113.1"), "203.0.113.1 is no address of this machine; give one with --host"),
        (("--host", "no such host"), "give an address of this machine"),
        (("--port", "0", "--model", "./none.gguf"), "no model at none.gguf"),
        (("--port", "0", "--redis", "redis://:swordfish@127.0.0.1:1/0"), "no Redis at 127.0.0.1:1"),
        (("--port", "0", "--redis", "ftp://x"), "--redis"),
    ],
)
def test_up_says_in_one_line_what_is_wrong_before_anything_starts(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "pillion.ops", "up", "--state-dir", str(tmp_path)]
            + [argument.format(busy=port) for argument in arguments],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert said.format(busy=port) in done.stderr
    assert done.stderr.count("\n") == 1
    assert "swordfish" not in done.stderr
    assert not (tmp_path / "default" / "stack.toml").exists()


@pytest.mark.parametrize(
    ("program", "module"), [("chaos", "chaos.__main__"), ("soak", "soak.main"), ("fuzz", "fuzz.main")]
)
def test_a_program_of_ops_is_named_as_it_is_called(
    program: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = find_spec(f"pillion.ops.{module}")
    assert spec is not None and spec.origin is not None
    monkeypatch.setattr(sys, "argv", [spec.origin, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(spec.origin, run_name="__main__")
    assert capsys.readouterr().out.startswith(f"Usage: ops/{program} [OPTIONS] [-- FLAGS OF UP]")


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("/nowhere", "fail  model         no model at /nowhere: it must be a folder"),
        ("{here}", "fail  model         {here} holds neither config.json nor a .gguf file"),
        (
            "Qwen/Qwen3-0.6B",
            "warn  model         Qwen/Qwen3-0.6B, no path on this machine; `pillion up` asks",
        ),
    ],
)
def test_doctor_says_of_a_model_what_up_would(model: str, found: str, tmp_path: Path) -> None:
    shown = run("doctor", "--port", "0", "--model", model.format(here=tmp_path)).output
    assert found.format(here=tmp_path) in shown
