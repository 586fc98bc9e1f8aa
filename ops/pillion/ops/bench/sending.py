"""Open loop: each request is sent when it is due, whatever the server does, and times count from then."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pillion.ops.bench.client import Timeline
from pillion.ops.bench.server import Job, Server
from pillion.ops.measure import FAILED, FINISHED, UNFINISHED, Outcome, outcome

Ended = Callable[[Outcome, list[float]], None]
_FIRST = 0.1  # seconds from the start of the run until time 0 of its requests


@dataclass(slots=True)
class Sent:
    """What a run took of this process, and what it met."""

    seconds: float = 0.0  # from the first that was due to the last end
    cores: float = 0.0  # that this process used meanwhile
    early: int = 0  # requests that ended before they had all tokens that were asked for
    errors: list[str] = field(default_factory=list)  # the first few


async def send(server: Server, jobs: Iterable[Job], ended: Ended, until: float | None = None) -> Sent:
    """Sends in order of their times and waits for all ends; `ended` gets each outcome and its gaps.

    What still runs `until` seconds after time 0 is cut off, and unfinished.
    """
    start, cpu = time.perf_counter() + _FIRST, time.process_time()
    sent = Sent()

    async def one(job: Job) -> None:
        intended = start + job.at
        # Never nothing: what was due at the very end is still sent.
        within = None if until is None else max(start + until - time.perf_counter(), 0.001)
        line = await server.complete(job, within)
        if line.error and line.status != 429 and len(sent.errors) < 3:
            sent.errors.append(line.error)
        sent.early += bool(line.finish) and line.output_tokens < job.output
        ended(*seen(job, intended, line))

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            await asyncio.sleep(max(start + job.at - time.perf_counter(), 0.0))
            group.create_task(one(job))
    sent.seconds = time.perf_counter() - start
    sent.cores = (time.process_time() - cpu) / (sent.seconds + _FIRST)
    return sent


def seen(job: Job, intended: float, line: Timeline) -> tuple[Outcome, list[float]]:
    """What became of it, and its gaps. `intended`: when it was to be sent, on the timeline's clock."""
    return outcome(
        job.at,
        [job.at + token - intended for token in line.tokens],
        prompt=len(job.prompt),
        cached=line.cached_tokens,
        result=_result(line),
        lag=line.sent - intended,
    )


def _result(line: Timeline) -> str:
    if line.cut:
        return UNFINISHED
    if line.finish and not line.error:
        return FINISHED
    return line.code or "429" if line.status == 429 else FAILED
