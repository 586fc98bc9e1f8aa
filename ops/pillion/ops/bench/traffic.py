"""`pillion bench traffic`: a trace, or arrivals at given rates, open loop against any OpenAI server.

Repeats go round the rates, so that all of them see the same hours of a machine that drifts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import click

from pillion.config import Config
from pillion.ops.bench import delays
from pillion.ops.bench.client import session
from pillion.ops.bench.offered import Offered
from pillion.ops.bench.sending import Sent, send
from pillion.ops.bench.server import Server
from pillion.ops.measure import DEFINITIONS, Slo, Tally
from pillion.ops.report import Report, Table, words
from pillion.ops.report.origin import origin
from pillion.ops.report.runs import Run, figures, plots, tables
from pillion.ops.traces import Arrival
from pillion.words import counted

TOGETHER = 0.05  # share of gaps that are nothing, from which on the rest says little
BUSY = 0.2  # cores, from which on the client may be what is measured
LATE = 0.02  # seconds of lag, P99: the same


@dataclass(frozen=True, slots=True)
class Live:
    """A server under load, and where its schedulers tell their delays, if they do."""

    server: Server
    http: aiohttp.ClientSession
    metrics: Sequence[str]
    slo: Slo
    drain: float  # seconds after the last is due, until which all may end

    async def run(self, offered: Offered, rate: float | None, repeat: int, number: int) -> "Seen":
        """Sends all that is due. `number` is of this run, and no other's. Raises NoLoad, NoServer."""
        due = offered.due(rate, repeat)
        tally = Tally(self.slo)
        before = await delays.look(self.http, self.metrics)
        sent = await send(self.server, offered.jobs(due, number), tally.add, due[-1].at + self.drain)
        delay = delays.median(before, await delays.look(self.http, self.metrics))
        seconds = seconds_of(offered, due)
        return Seen(tally, seconds, sent, delay, _keyless(due, self.server.keys))


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one run."""

    tally: Tally
    seconds: float  # in which requests were due
    sent: Sent
    delay: float | None  # median scheduling delay, where it is known
    keyless: int  # requests of tenants whose keys are not known


def _keyless(due: Sequence[Arrival], keys: Mapping[str, str]) -> int:
    return sum(bool(each.tenant) and each.tenant not in keys for each in due)


def seconds_of(offered: Offered, due: Sequence[Arrival]) -> float:
    """In which requests were due: as long as was asked for, else until the last."""
    if offered.seconds is not None and (offered.requests is None or len(due) < offered.requests):
        return offered.seconds
    return due[-1].at or 1.0


async def measure(
    config: Config,
    url: str,
    offered: Offered,
    rates: Sequence[float],
    *,
    slo: Slo,
    repeats: int = 1,
    drain: float = 60.0,
    model: str | None = None,
    api_key: str | None = None,
    certificate: str | None = None,
    metrics: Sequence[str] = (),
    keys: Mapping[str, str] | None = None,
) -> Report:
    """`keys`: of tenants. Raises NoServer, NoLoad."""
    async with session(api_key, certificate) as http:
        server = Server(http, url, model, keys)
        await server.meet()
        metrics = metrics or await delays.find(http, config, server.url)
        live = Live(server, http, metrics, slo, drain)
        each: list[float | None] = [*rates] or [None]
        runs: dict[float | None, list[Seen]] = {rate: [] for rate in each}
        for repeat in range(repeats):
            for place, rate in enumerate(each):
                seen = await live.run(offered, rate, repeat, repeat * len(each) + place)
                runs[rate].append(seen)
                click.echo(f"{name_of(rate)}: {headline(seen)}", err=True)
        return report(server, offered, runs, slo)


def name_of(rate: float | None) -> str:
    return "as in the trace" if rate is None else f"{rate:g}/s"


def headline(seen: Seen) -> str:
    told = seen.tally.summary(seen.seconds)
    counts = ", ".join(f"{told[name]} {name}" for name in ("finished", "rejected", "failed", "unfinished"))
    return f"{told['sent']} sent, {counts}; {told['goodput_per_s']:.3g} good requests/s"


# --- the report ------------------------------------------------------------------------------------


def report(server: Server, offered: Offered, runs: dict[float | None, list[Seen]], slo: Slo) -> Report:
    each = [
        Run(
            name_of(rate),
            [(seen.tally, seen.seconds) for seen in repeats],
            [seen.delay for seen in repeats],
        )
        for rate, repeats in runs.items()
    ]
    flat = [(name_of(rate), seen) for rate, repeats in runs.items() for seen in repeats]
    return Report(
        title=f"{server.model or 'a model'} under load at {server.url}",
        provenance=provenance(server, offered, slo),
        summary=figures(each),
        tables=[*tables(each), client_table(flat)],
        plots=plots(each, slo),
        notes=[*server.notes, *notes(flat)],
        definitions=DEFINITIONS,
        raw={"runs": [run.raw() for run in each]},
    )


def provenance(server: Server, offered: Offered, slo: Slo) -> dict[str, Any]:
    return origin(
        server=server.url,
        model=server.model,
        seed=offered.seed,
        load=offered.told(),
        targets=f"TTFT {words.quantity(slo.ttft, 's')}, P99 TBT {words.quantity(slo.tbt, 's')}",
    )


def client_table(seen: Sequence[tuple[str, Seen]]) -> Table:
    """Whether this process was what was measured."""
    return Table(
        "The client itself",
        ["", "cores used", "lag P99", "lag worst", "tokens that came together"],
        [
            [
                name, one.sent.cores, one.tally.lag.quantile(0.99), one.tally.lag.most,
                one.tally.summary(one.seconds)["coalesced_share"],
            ]
            for name, one in seen
        ],
        ["", "", "s", "s", "share"],
        f"It is not the limit where it uses less than {BUSY} cores and sends within {LATE * 1000:.0f} ms.",
    )  # fmt: skip


def notes(seen: Sequence[tuple[str, Seen]]) -> list[str]:
    """What the figures are not, or not quite."""
    said = []
    for name, one in seen:
        told = one.tally.summary(one.seconds)
        if (together := told["coalesced_share"] or 0.0) > TOGETHER:
            said.append(
                f"{name}: {together:.0%} of tokens came together with the one before, so gaps mean little: "
                "the server sends several at once, or somebody on the way had no core"
            )
        if one.sent.cores > BUSY:
            said.append(f"{name}: this client took {one.sent.cores:.1f} cores, the server's perhaps")
        if (late := one.tally.lag.quantile(0.99)) > LATE:
            said.append(f"{name}: this client sent late (P99 {late * 1000:.0f} ms): it may be the limit")
        if told["cached_tokens"]:
            said.append(
                f"{name}: {told['cached_tokens']} of {told['prompt_tokens']} prompt tokens came from a "
                "prefix cache: the load's common prefixes, or a seed used before"
            )
        if one.sent.early:
            said.append(f"{name}: {counted(one.sent.early, 'request')} ended early: ignore_eos is not heeded")
        if one.keyless:
            said.append(
                f"{name}: {counted(one.keyless, 'request')} of tenants without a key of their own "
                "(--tenant-keys); sent with the common one"
            )
        said += [f"{name}: a request failed: {error}" for error in one.sent.errors]
    return list(dict.fromkeys(said))
