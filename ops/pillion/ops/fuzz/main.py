"""`ops/fuzz`: all parts one after the other, against a stack and an executor of its own."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from redis.exceptions import RedisError

from pillion.ops import web
from pillion.ops.fuzz import api, files, http
from pillion.ops.fuzz.contracts import Contracts
from pillion.ops.fuzz.executor import Executor
from pillion.ops.fuzz.findings import Findings
from pillion.ops.rig import Rig, RigError, died

# Small, so that what is asked for is soon over, and limits are near.
_FLAGS = ("--num-kv-blocks", "128", "--max-num-seqs", "8", "--max-model-len", "512", "--max-choices", "8")
_SHARES: Mapping[str, float] = {"api": 0.4, "http": 0.15, "contracts": 0.2, "files": 0.1, "executor": 0.15}
"""Share of the time that each part gets."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the parts work on."""

    rig: Rig
    folder: Path
    flags: tuple[str, ...]
    seed: int


def _contracts(target: Target, seconds: float) -> Findings:
    rig = target.rig
    _, models = web.get(f"{rig.url}/v1/models")
    config = rig.config
    assert config.stack.redis is not None
    contracts = Contracts(
        rig.url, config.stack.redis, config.stack.stack, models["data"][0]["id"], target.seed
    )
    return asyncio.run(contracts.run(seconds))


def _executor(target: Target, seconds: float) -> Findings:
    at = target.flags.index("--max-choices")  # which only a gateway has
    flags = [*target.flags[:at], *target.flags[at + 2 :]]
    return asyncio.run(Executor(target.folder, flags, target.seed).run(seconds))


PARTS: Mapping[str, Callable[[Target, float], Findings]] = {
    "api": lambda target, seconds: api.run(target.rig.url, target.seed, seconds),
    "http": lambda target, seconds: asyncio.run(http.run(target.rig.url, target.seed, seconds)),
    "contracts": _contracts,
    "files": lambda target, seconds: files.run(target.seed, seconds),
    "executor": _executor,
}


@click.command("ops/fuzz", context_settings={"max_content_width": 110})
@click.option("--seed", default=1, show_default=True, help="draws the same inputs")
@click.option("--seconds", default=300.0, show_default=True, help="how long, starts not counted")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="default: all")
@click.option("--model", default="demo", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="keep the raw result here, as JSON")
@click.argument("flags", nargs=-1, metavar="[-- FLAGS OF UP]")
def main(
    seed: int, seconds: float, parts: tuple[str, ...], model: str, output: Path | None, flags: tuple[str, ...]
) -> None:
    """Feeds everything anything; exit code 1 where something fell, or failed without a reason."""
    chosen = [part for part in PARTS if not parts or part in parts]
    share = sum(_SHARES[part] for part in chosen)
    given = ("--model", model, *_FLAGS, *flags)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Rig(Path(folder, "stack"), *given) as rig:
        try:
            rig.wait_line("ready after")
            before = rig.pids()
        except RigError as error:
            raise click.ClickException(str(error)) from None
        target = Target(rig, Path(folder), given, seed)
        found = []
        for part in chosen:
            click.echo(f"{time.strftime('%H:%M:%S')} {part}", err=True)
            try:
                findings = PARTS[part](target, seconds * _SHARES[part] / share)
            except (RedisError, OSError, web.Unreachable) as error:
                findings = Findings(part)
                findings.blame(f"the stack is gone: {error}")
            _health(rig, before, findings)
            found.append(findings)
        code = rig.end()
        trouble = rig.trouble() + ([f"the stack ended with {code}"] if code else [])
    _tell(found, trouble, seed, seconds, output)


def _health(rig: Rig, before: Mapping[str, int], findings: Findings) -> None:
    """What a part must leave behind: the same processes, ready."""
    try:
        for death in died(before, rig.pids()):
            findings.blame(death)
        status, body = web.get(f"{rig.url}/health/live", timeout=10.0)
    except RigError as error:
        findings.blame(str(error))
    except web.Unreachable as error:
        findings.blame(f"the gateway does not answer: {error}")
    else:
        if status != 200:
            findings.blame(f"the gateway is not live: {status} {body}")


def _tell(found: list[Findings], trouble: list[str], seed: int, seconds: float, output: Path | None) -> None:
    """Tells and ends the process."""
    if output:
        parts = {findings.part: findings.raw() for findings in found}
        raw = {"seed": seed, "seconds": seconds, "parts": parts, "trouble": trouble}
        output.write_text(json.dumps(raw, indent=1) + "\n")
    for findings in found:
        counts = ", ".join(f"{what} {count}" for what, count in findings.outcomes.most_common())
        click.echo(f"{findings.part:>10}: {findings.inputs} inputs: {counts}")
    for findings in found:
        for reason in findings.wrong:
            click.echo(f"\nWRONG, {findings.part}: {reason}")
    for text in trouble:
        click.echo(f"\nWRONG: {text}")
    bad = bool(trouble or any(findings.wrongs for findings in found))
    click.echo("\nsomething fell: see above" if bad else "\nnothing fell")
    sys.exit(bad)


if __name__ == "__main__":
    main(prog_name=main.name)
