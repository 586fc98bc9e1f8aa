"""The `pillion` command. Each command imports what it needs when it runs, so that --help is quick."""

from typing import Any

import click
import msgspec

from pillion.config import Config, ConfigError, load
from pillion.ops import help
from pillion.ops.bench.traffic_command import traffic
from pillion.ops.capacity.command import capacity
from pillion.ops.compare import compare
from pillion.ops.explain.command import explain
from pillion.ops.fetch import fetch
from pillion.ops.options import Command, config_options, configure, fail
from pillion.ops.profile.command import profile
from pillion.ops.replay.command import replay
from pillion.ops.simulate.command import simulate
from pillion.ops.tune.command import tune

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Group(click.Group):
    command_class = Command

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(10_000)


class _Main(_Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help.commands(formatter, self.commands)


@click.group(cls=_Main, context_settings=CONTEXT)
@click.version_option(None, "--version", package_name="pillion", message="pillion %(version)s")
def main() -> None:
    """Serves large language models with steady streams: decodes ride pillion on prefill chunks.

    Settings come from a TOML file (--config), PILLION_* variables and flags; later ones win.
    """


@main.command()
@config_options("up")
def up(config: str | None, **flags: Any) -> None:
    """Serve a model: all services and, without --redis, a Valkey."""
    _up(configure(flags, config))


@main.command()
@click.argument("model")
@config_options("up", without=("model",))
def serve(config: str | None, **flags: Any) -> None:
    """Serve MODEL: a safetensors folder, a GGUF file, a hub id, or `demo`. The same as `up --model MODEL`."""
    _up(configure(flags, config))


def _up(config: Config) -> None:
    from pillion.ops.up import up as run

    raise SystemExit(run(config))


def _service(role: str, help_text: str) -> None:
    @main.command(role, help=help_text)
    @config_options(role)
    def command(config: str | None, **flags: Any) -> None:
        from pillion.ops.role import run

        loaded = configure(flags, config)
        raise SystemExit(run(role, loaded if role == "executor" else _joined(loaded)))


_service("gateway", "Run one gateway: HTTP in, token streams out.")
_service("admission", "Run admission: what waits, and which replica gets it.")
_service("scheduler", "Run the scheduler of one replica: what each step carries.")
_service("executor", "Run the executor of one replica: the model itself.")


def _joined(config: Config) -> Config:
    """The settings with the Redis of the running stack where none is given."""
    if config.stack.redis is not None:
        return config
    from pillion.ops.stack import running

    found = running(config)
    if found is None:
        fail(
            f"no Redis: give --redis URL, or start the stack {config.stack.stack!r} with `pillion up` first",
            2,
        )
    return msgspec.structs.replace(config, stack=found.stack)


@main.command()
@click.argument("message", required=False)
@click.option("--url", metavar="URL", help="server to talk to  [the stack that runs here]")
@click.option("--model", metavar="NAME", help="model to ask  [the served one]")
@click.option("--system", metavar="TEXT", help="system message")
@click.option("--max-tokens", type=int, metavar="N", help="longest answer, tokens")
@click.option("--temperature", type=float, metavar="X", help="sampling temperature  [the server's]")
@click.option("--seed", type=int, metavar="N", help="sampling seed")
@config_options("chat")
def chat(
    message: str | None,
    url: str | None,
    model: str | None,
    system: str | None,
    config: str | None,
    **flags: Any,
) -> None:
    """Chat with a running stack. With MESSAGE: one answer, then the end."""
    from pillion.ops.chat import Chat
    from pillion.ops.stack import StackError

    sampling = {name: flags.pop(name) for name in ("max_tokens", "temperature", "seed")}
    try:
        conversation = Chat.of(configure(flags, config), url, model, system, sampling)
    except StackError as error:
        fail(str(error), 1)
    raise SystemExit(conversation.run(message))


main.add_command(fetch)


@main.command()
@config_options("doctor")
def doctor(config: str | None, **flags: Any) -> None:
    """Look at this machine: what works, what does not, and the remedy."""
    from pillion.ops.doctor import examine

    raise SystemExit(examine(configure(flags, config)))


@main.command()
@click.argument("role", type=click.Choice(("gateway", "admission", "scheduler", "executor")))
@config_options("health")
def health(role: str, config: str | None, **flags: Any) -> None:
    """Ask whether a service works; exit code 0 or 1. For health checks."""
    from pillion.ops.health import check

    loaded = configure(flags, config)
    missing = check(role, _joined(loaded) if role in ("admission", "scheduler") else loaded)
    if missing:
        fail(f"{role} is not ready: {missing}", 1)
    click.echo("ready")


@main.command()
@click.argument("tenant")
def key(tenant: str) -> None:
    """Make an API key for a tenant.

    It is shown once, on stderr. Its line for --api-keys-file goes to stdout: pillion key alice >> keys.toml
    """
    import re

    from pillion.ops.key import new

    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tenant):
        fail("a tenant's name has 1 to 64 letters, digits, - and _", 2)
    made, known = new()
    click.echo(f"the key of {tenant}, shown only now: {made}", err=True)
    click.echo(f'{tenant} = "{known}"')


main.add_command(replay)
main.add_command(explain)


@main.group(cls=_Group)
def bench() -> None:
    """Measure a server or the kernels."""


@bench.command("load")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="server to measure; several are measured in turn  [the stack that runs here]",
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice([*"ABCDEG"]),
    help="what to send; may be given several times  [all]",
)
@click.option("--seed", default=1, metavar="N", help="seed of the requests  [1]")
@click.option("--repeats", default=1, metavar="N", help="repeats of each case  [1]")
@click.option("--model", metavar="NAME", help="model to ask  [the first that the server names]")
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="metrics of each server's executor, in the order of --url  [found on this machine]",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    help="threads that the machine's ceilings are measured with  [the executor's]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="keep the raw result here, as JSON",
)
@click.option("--report", metavar="FILE", help="write a report here: FILE.html, .json and .csv")
@config_options("bench load")
def bench_load(config: str | None, **flags: Any) -> None:
    """Measure what clients see of a server, and how near it comes to what the machine allows.

    \b
    A  one stream, 64 tokens in, 128 out
    B  48 chats at once
    C  24 summaries, 8 at a time
    D  8 streams decode while 3 prompts of 1500 tokens arrive a second apart
    E  24 requests with a common prefix of 600 tokens, 8 at a time
    G  summaries that arrive at random for a minute, one every 2 s: who meets TTFT 2 s and TBT 150 ms
    """
    from pillion.ops.bench import command

    names = ("urls", "cases", "seed", "repeats", "model", "metrics", "threads", "output", "report")
    chosen = {name: flags.pop(name) for name in names}
    command.load(configure(flags, config), **chosen)


@bench.command("kernels")
@click.option(
    "--rows",
    multiple=True,
    type=click.IntRange(1),
    metavar="N",
    default=(1, 8, 48, 128, 512),
    help="tokens a step; may be given several times  [1, 8, 48, 128, 512]",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    default=(128, 1024),
    help="tokens before those of the step, for attention; may be given several times  [128, 1024]",
)
@click.option(
    "--seconds", default=0.2, metavar="X", help="about how long each operator is called at each number  [0.2]"
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="keep the raw result here, as JSON",
)
@click.option("--report", metavar="FILE", help="write a report here: FILE.html, .json and .csv")
@config_options("bench kernels")
def bench_kernels(config: str | None, **flags: Any) -> None:
    """Measure each operator of a backend against the least time that the machine allows.

    Sizes are the model's; weights and KV come from memory, as they do in a step.
    """
    from pillion.ops.bench import command

    chosen = {name: flags.pop(name) for name in ("rows", "contexts", "seconds", "output", "report")}
    command.kernels(configure(flags, config), **chosen)


@bench.command("quality")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="what is predicted  [two speeches of 1776 and 1863]",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="keep the raw result here, as JSON",
)
@click.option("--report", metavar="FILE", help="write a report here: FILE.html, .json and .csv")
@config_options("bench quality")
def bench_quality(config: str | None, **flags: Any) -> None:
    """Measure what 8 and 4-bit weights and int8 KV cost: a text's perplexity, likeliest tokens kept."""
    from pillion.ops.bench import command

    chosen = {name: flags.pop(name) for name in ("text", "output", "report")}
    command.quality(configure(flags, config), **chosen)


bench.add_command(traffic)
main.add_command(capacity)
main.add_command(compare)
main.add_command(profile)
main.add_command(simulate)
main.add_command(tune)


@main.group("config", cls=_Group)
def config_group() -> None:
    """The settings."""


@config_group.command("show")
@config_options("up")
def show(config: str | None, **flags: Any) -> None:
    """Show every setting, its value and where it came from. Secrets are hidden."""
    try:
        settings = load(flags, file=config).settings
    except ConfigError as error:
        fail(str(error), 2)
    section = ""
    for setting in settings:
        leaf = setting.leaf
        if leaf.section != section:
            section = leaf.section
            click.echo(f"[{section}]")
        value = "(hidden)" if leaf.secret and setting.value else _shown(setting.value)
        click.echo(f"  {leaf.name:<24} {value:<24} {setting.source}")


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


@main.command()
def version() -> None:
    """Show the version."""
    from importlib.metadata import version as installed

    click.echo(f"pillion {installed('pillion')}")
