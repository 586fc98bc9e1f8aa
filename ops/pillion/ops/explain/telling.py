"""Asks a gateway and shows what it tells."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import click

from pillion.config import Config
from pillion.ops import stack, web
from pillion.words import counted

BAR = 30  # characters of the longest stretch
PATIENCE = 15.0  # seconds

Json = dict[str, Any]


def run(config: Config, request: str, url: str | None, as_json: bool) -> Json:
    """What was told. Raises StackError, Unreachable, Refused."""
    server = stack.address(config, url)
    path = f"{server.url}/v1/requests/{quote(request, safe='')}/explain"
    try:
        status, told = web.get(path, server.key, PATIENCE, server.certificate)
    except web.Untrusted:
        raise
    except web.Unreachable as error:
        raise web.Unreachable(f"no server at {server.url}: {error}; name another with --url") from None
    if status != 200:
        raise web.refusal(status, told)
    for line in [json.dumps(told)] if as_json else lines(told):
        click.echo(line)
    return dict(told)


def lines(told: Json) -> Iterator[str]:
    """An explanation for people."""
    where = f" on replica {told['replica']}" if told["replica"] else ""
    yield f"request {told['id']}: {told['status']}{where}"
    if told["status"] == "waiting":
        yield f"{_ms(told['seconds'])}: {told['why']}"
        return
    yield from _first(told)
    gap = told["worst_gap"]
    if gap is None:
        yield f"no gap between tokens yet; {counted(told['output_tokens'], 'token')}"
        return
    yield from _gap("longest gap", gap)
    for other in told["replica_gaps"]:
        if other["position"] != gap["position"]:
            yield from _gap("at the replica", other) if not gap["steps"] else _short(other)
    if told["preemptions"]:
        again = counted(told["recomputed_tokens"], "token")
        yield f"{counted(told['preemptions'], 'preemption')}, {again} computed again"


def _gap(name: str, gap: Json) -> Iterator[str]:
    yield ""
    place = f"before token {gap['position']} of choice {gap['choice']}"
    yield f"{name} {_ms(gap['seconds'])}, {place}: {gap['why']}"
    yield from _parts(gap["parts"])
    yield from _steps(gap["steps"], gap["began"], gap["more_steps"])


def _short(gap: Json) -> Iterator[str]:
    yield f"  at the replica also {_ms(gap['seconds'])} before token {gap['position']}: {gap['why']}"


def _first(told: Json) -> Iterator[str]:
    queue, prefill, ttft = told["queue"], told["prefill"], told["ttft"]
    if ttft is not None:
        yield f"first token after {_ms(ttft['seconds'])}, first step after {_ms(ttft['scheduling_delay'])}"
        yield from _parts(ttft["parts"])
    yield (
        f"  queue: {counted(queue['ahead'], 'sequence')} ahead, {queue['running']} running; {queue['why']}"
        f" (steps without tokens left {queue['steps_full']}, without a slot {queue['steps_without_slot']}, "
        f"without room {queue['steps_without_room']})"
    )
    chunks = [sum_ for step in prefill["chunks"] if (sum_ := step["own_tokens"])]
    more = f" and {prefill['more_chunks']} more" if prefill["more_chunks"] else ""
    yield (
        f"  prompt: {counted(prefill['prompt_tokens'], 'token')}, {prefill['cached_tokens']} in the cache"
        + (f", computed in chunks of {', '.join(map(str, chunks))}{more}" if chunks else "")
    )


def _parts(parts: Sequence[Json]) -> Iterator[str]:
    longest = max([part["seconds"] for part in parts] + [1e-9])
    width = max(len(part["what"]) for part in parts)
    for part in parts:
        bar = "█" * round(BAR * max(part["seconds"], 0.0) / longest)
        yield f"  {part['what']:<{width}} {_ms(part['seconds']):>9}  {bar}".rstrip()


def _steps(steps: Sequence[Json], began: float, more: int) -> Iterator[str]:
    if not steps:
        return
    yield "  step       at   took  predicted  idle  decodes  chunks"
    for step in steps:
        chunks = " + ".join(map(str, step["chunk_tokens"])) or "-"
        yield (
            f"  {step['step']:<6} {1000 * (step['ended'] - began):>+6.0f} {1000 * step['seconds']:>6.0f} "
            f"{1000 * step['predicted_seconds']:>10.0f} {1000 * step['idle_seconds']:>5.0f} "
            f"{step['decodes']:>8}  {chunks}"
        )
    left = f"; {more} shorter steps are left out" if more else ""
    yield f"  (milliseconds; `at`: the result, from the gap's begin{left})"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
