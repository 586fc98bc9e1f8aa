"""`ops/clients`: starts a stack, and lets each client do what it does."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from pillion.config import load
from pillion.modelfiles import locate
from pillion.ops import web
from pillion.ops.clients import report
from pillion.ops.clients.environment import ROOT, Environment, InstallError, pinned
from pillion.ops.clients.report import Result
from pillion.ops.rig import Rig, RigError

SCRIPTS = Path(__file__).parent / "scripts"
_FINISHED = re.compile(r'^pillion_requests_total\{outcome="finished"\} (\S+)$', re.M)
SECONDS = 300.0  # that one client may take


@dataclass(frozen=True, slots=True)
class Target:
    """What the clients are pointed at, and where they are."""

    url: str
    model: str
    environment: Environment
    tokenizer: Path  # in Hugging Face's layout, for those that count tokens themselves


Command = Callable[[Target], list[str]]


def _python(name: str) -> Command:
    return lambda at: [str(at.environment.python), str(SCRIPTS / name), at.url, at.model]


def _node(at: Target) -> list[str]:
    # Modules are looked for beside the script.
    script = str(shutil.copy(SCRIPTS / "openai_node.mjs", at.environment.folder))
    return ["node", script, at.url, at.model]


def _guidellm(at: Target) -> list[str]:
    return [
        str(at.environment.folder / "bin" / "guidellm"), "run", "--disable-progress",
        "--backend", f"kind=openai_http,target={at.url}",
        "--profile", "kind=concurrent,streams=4",
        "--constraint", "kind=max_duration,seconds=10",
        "--tokenizer", f"kind=huggingface_auto,model={at.tokenizer}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output", f"kind=json,path={report.GUIDELLM}",
    ]  # fmt: skip


def _aiperf(at: Target) -> list[str]:
    return [
        str(at.environment.folder / "bin" / "aiperf"), "profile", "--model", at.model, "--url", at.url,
        "--endpoint-type", "chat", "--streaming", "--tokenizer", str(at.tokenizer),
        "--concurrency", "4", "--request-count", "16", "--ui-type", "none",
        "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16",
        "--artifact-dir", report.AIPERF.parent.name,
    ]  # fmt: skip


PACKAGES = {
    "openai-python": "openai==",
    "openai-node": "openai@",
    "litellm": "litellm==",
    "langchain": "langchain-openai==",
    "guidellm": "guidellm==",
    "aiperf": "aiperf==",
}

CLIENTS: dict[str, Command] = {
    "openai-python": _python("openai_python.py"),
    "openai-node": _node,
    "litellm": _python("litellm_python.py"),
    "langchain": _python("langchain_python.py"),
    "guidellm": _guidellm,
    "aiperf": _aiperf,
}


@click.command("ops/clients", context_settings={"max_content_width": 110})
@click.option("--only", multiple=True, type=click.Choice(list(CLIENTS)), help="default: all")
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    default=ROOT / ".venv-clients",
    help="where the clients are installed [.venv-clients]",
)
@click.option("--output", type=click.Path(path_type=Path), help="keep what came of each here, as JSON")
@click.argument("flags", nargs=-1, metavar="[-- FLAGS OF UP]")
def main(only: tuple[str, ...], environment: Path, output: Path | None, flags: tuple[str, ...]) -> None:
    """Points each client at a stack with the demo model; exit code 1 where one does not get what it wants."""
    chosen = [name for name in CLIENTS if not only or name in only]
    there = Environment(environment.resolve())
    try:
        there.prepare(node="openai-node" in chosen)
        with tempfile.TemporaryDirectory(prefix="clients-") as folder, Rig(Path(folder, "s"), *flags) as rig:
            rig.wait_line("ready after")
            at = Target(rig.url, _model(rig.url), there, _tokenizer(Path(folder, "tokenizer")))
            results = {name: _runs(name, at, Path(folder)) for name in chosen}
    except (InstallError, RigError, web.Unreachable) as error:
        raise click.ClickException(str(error)) from None
    if output:
        raw = {name: result.raw() for name, result in results.items()}
        output.write_text(json.dumps({"flags": flags, "clients": raw}, indent=1) + "\n")
    failed = [name for name, result in results.items() if result.failed]
    click.echo(f"\nfailed: {', '.join(failed)}" if failed else "\nall of them got what they expect")
    sys.exit(bool(failed))


def _runs(name: str, at: Target, folder: Path) -> Result:
    """Tells too."""
    result = _result(name, at, folder)
    if result.failed:
        click.echo(f"{name:>14}: FAILED with {result.failed}")
    else:
        measured = [f"{key} {value}" for key, value in result.measured.items()]
        told = ", ".join((*result.passed, *measured, f"{result.answers} answers"))
        click.echo(f"{name:>14}: {told} ({result.seconds:.0f} s)")
    return result


def _result(name: str, at: Target, folder: Path) -> Result:
    version = next(package for package in pinned() if package.startswith(PACKAGES[name]))
    start, before = time.monotonic(), _answered(at.url)
    try:
        done = subprocess.run(
            CLIENTS[name](at),
            cwd=folder,
            env=_environ(name),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Result(version, failed=str(error))
    took, answered = time.monotonic() - start, _answered(at.url) - before
    passed = [line.removeprefix("ok ") for line in done.stdout.splitlines() if line.startswith("ok ")]
    said = (done.stdout + done.stderr)[-3000:]
    try:
        measured = report.measured(name, folder)
    except (OSError, LookupError) as error:
        return Result(version, passed, answered, took, failed=f"no report: {error!r}\n{said}")
    well = not done.returncode and report.well(name, answered, measured)
    return Result(version, passed, answered, took, measured, "" if well else f"{done.returncode}\n{said}")


def _answered(url: str) -> int:
    """Requests that the stack has answered to their end."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        match = _FINISHED.search(response.read().decode())
    return int(float(match[1])) if match else 0


def _environ(name: str) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PILLION_", "PYTHON"))}
    environ |= {"OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    if name == "aiperf":
        del environ["HF_HUB_OFFLINE"]  # with it a folder is taken for a name
    return environ


def _model(url: str) -> str:
    _, body = web.get(f"{url}/v1/models")
    return str(body["data"][0]["id"])


def _tokenizer(folder: Path) -> Path:
    """The demo's, as a folder in Hugging Face's layout."""
    from transformers import AutoTokenizer

    file = locate("demo", cache_path=load(environ={}).config.cache_path).path
    AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main(prog_name=main.name)
