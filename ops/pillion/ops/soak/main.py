"""`ops/soak`: an hour of mixed traffic, then the verdict on what did not come back."""

import asyncio
import json
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from pillion.ops import web
from pillion.ops.rig import Rig, RigError, died
from pillion.ops.soak.clients import Client, Tally
from pillion.ops.soak.measure import Probe, Sample
from pillion.ops.soak.traffic import WORDS, Traffic
from pillion.ops.soak.verdict import Line, judge, table

WARM = 0.2  # share of the time, before the first measure: pools and caches fill
SETTLE = 30.0  # seconds in which all that runs must end when the clients have gone
_QUIET = ("inboxes", "running", "queued", "ledger", "sequences")
# A small pool, so that all its pages are touched while it warms up, and blocks are reused and preempted.
_FLAGS = ("--num-kv-blocks", "384", "--max-num-seqs", "16", "--journal-retention", "20")


class Soak:
    """One run against one stack."""

    def __init__(self, url: str, probe: Probe, seed: int, clients: int) -> None:
        """Asks the server how long prompts may be. Raises web.Unreachable."""
        self.url = url
        self.tally = Tally()
        self.along: list[Sample] = []
        self._probe = probe
        self._clients = clients
        self._traffic = Traffic(seed, _longest(url))

    async def run(self, seconds: float) -> tuple[Sample, Sample]:
        """Warms up, measures, keeps it busy, measures. Before and after."""
        await self._busy(seconds * WARM)
        before = await self._still()
        self._say(f"warm after {self.tally.acts} acts; measured, going on")
        await self._busy(seconds * (1 - WARM))
        after = await self._still()
        return before, after

    async def _busy(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        watch = asyncio.create_task(self._watch(max(2.0, min(30.0, seconds / 10))))
        try:
            clients = [Client(self.url, self.tally) for _ in range(self._clients)]
            async with asyncio.TaskGroup() as tasks:
                for client in clients:
                    tasks.create_task(client.run(self._traffic.act, until))
        finally:
            watch.cancel()

    async def _watch(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            sample = await asyncio.to_thread(self._probe.sample)
            self.along.append(sample)
            rss = ", ".join(f"{k[4:]} {v / (1 << 20):.0f}" for k, v in sample.items() if k.startswith("rss."))
            self._say(f"{self.tally.acts} acts, {self.tally.wrongs} wrong; MiB: {rss}")

    async def _still(self) -> Sample:
        """A sample once nothing runs; the last one where something does not end."""
        end = time.monotonic() + SETTLE
        while True:
            sample = await asyncio.to_thread(self._probe.sample)
            busy = [k for k, v in sample.items() if k.split(".")[0] in _QUIET and v]
            if not busy or time.monotonic() > end:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(2.0)  # connections that were reset are found closed
        return await asyncio.to_thread(self._probe.sample)

    def _say(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _longest(url: str) -> int:
    """How many words of traffic's make a prompt of half the model's context."""
    with closing(web.stream(f"{url}/v1/completions", {"prompt": " ".join(WORDS)} | _COUNT)) as events:
        tokens = [event["usage"]["prompt_tokens"] for event in events if event.get("usage")]
    _, models = web.get(f"{url}/v1/models")
    return int(models["data"][0]["max_model_len"] / 2 * len(WORDS) / tokens[0])


_COUNT = {"max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}


def report(soak: Soak, lines: list[Line], trouble: list[str], seconds: float, seed: int) -> dict[str, object]:
    """The raw result."""
    return {
        "seed": seed,
        "seconds": seconds,
        "acts": soak.tally.acts,
        "outcomes": {kind: dict(count) for kind, count in sorted(soak.tally.outcomes.items())},
        "wrong": soak.tally.wrong,
        "wrongs": soak.tally.wrongs,
        "trouble": trouble,
        "measures": [asdict(line) for line in lines],
        "samples": soak.along,
    }


@click.command("ops/soak", context_settings={"max_content_width": 110})
@click.option("--minutes", default=60.0, show_default=True, help="how long")
@click.option("--seed", default=1, show_default=True, help="draws the same acts")
@click.option("--clients", default=8, show_default=True, help="that act at once")
@click.option("--model", default="demo", show_default=True, help="for the stack that is started")
@click.option("--url", help="a stack that runs already; without it one is started")
@click.option("--pid", "pids", multiple=True, metavar="ROLE=PID", help="with --url: a process to watch")
@click.option("--metrics", multiple=True, metavar="ROLE=URL", help="with --url: a service's metrics")
@click.option("--redis", help="with --url: its Redis")
@click.argument("flags", nargs=-1, metavar="[-- FLAGS OF UP]")
@click.option("--output", type=click.Path(path_type=Path), help="keep the raw result here, as JSON")
def main(
    minutes: float,
    seed: int,
    clients: int,
    model: str,
    url: str | None,
    pids: tuple[str, ...],
    metrics: tuple[str, ...],
    redis: str | None,
    output: Path | None,
    flags: tuple[str, ...],
) -> None:
    """Mixed traffic; exit code 1 where something did not come back to where it was, or went wrong."""
    seconds = minutes * 60
    if url is not None:
        scrapes = {"gateway": f"{url}/metrics"} | _pairs(metrics)
        probe = Probe({role: int(pid) for role, pid in _pairs(pids).items()}, scrapes, redis)
        soak = Soak(url, probe, seed, clients)
        before, after = asyncio.run(soak.run(seconds))
        _end(soak, judge(before, soak.along, after), [], seconds, seed, output)
    flags = ("--model", model, *_FLAGS, *flags)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, Rig(Path(folder), *flags) as rig:
        try:
            url = rig.url
        except RigError as error:
            raise click.ClickException(str(error)) from None
        pids_before = rig.pids()
        probe = Probe(pids_before, rig.metrics, rig.config.stack.redis)
        soak = Soak(url, probe, seed, clients)
        before, after = asyncio.run(soak.run(seconds))
        trouble = died(pids_before, rig.pids()) + rig.trouble()
        probe.close()
        code = rig.end()
        if code:
            trouble.append(f"the stack ended with {code}")
        _end(soak, judge(before, soak.along, after), trouble, seconds, seed, output)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in given)


def _end(
    soak: Soak, lines: list[Line], trouble: list[str], seconds: float, seed: int, output: Path | None
) -> None:
    """Tells and ends the process."""
    if output:
        output.write_text(json.dumps(report(soak, lines, trouble, seconds, seed), indent=1) + "\n")
    click.echo(table(lines))
    click.echo("")
    for kind, count in sorted(soak.tally.outcomes.items()):
        click.echo(f"{kind:>15}: " + ", ".join(f"{what} {n}" for what, n in count.most_common()))
    failed = [line.name for line in lines if not line.ok]
    for text in (*soak.tally.wrong, *trouble):
        click.echo(f"\nWRONG: {text}")
    bad = bool(failed or soak.tally.wrongs or trouble)
    click.echo(
        f"\n{soak.tally.acts} acts in {seconds:.0f} s: "
        + (f"not well: {', '.join(failed) or 'see above'}" if bad else "all came back to where it was")
    )
    sys.exit(bad)


if __name__ == "__main__":
    main(prog_name=main.name)
