"""Mutated requests over bare sockets."""

import asyncio
import random
import time

from pillion.ops.fuzz.findings import Findings
from pillion.ops.fuzz.mutate import flipped
from pillion.ops.soak.traffic import Traffic
from pillion.ops.soak.wire import Closed, Wire, request

_AT_ONCE = 4
_PATIENCE = 1.0  # seconds for an answer; a server that is still waiting for the rest of a request is right
_VALID = 0.2  # share of requests that are sent as they are


async def run(url: str, seed: int, seconds: float) -> Findings:
    """Every answer must be HTTP and no 5xx but 503 with a reason; no answer at all is the sender's own fault.

    What is sent unchanged must be answered as ever.
    """
    findings, until = Findings("http"), time.monotonic() + seconds
    traffic = Traffic(seed, longest=60, output=4)
    samples = [act.data for act in (traffic.act() for _ in range(200)) if act.data]

    async def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while time.monotonic() < until:
            if rng.random() < _VALID:
                await _one(url, request("GET", "/v1/models"), findings, whole=True)
            else:
                await _one(url, flipped(rng, rng.choice(samples), samples), findings, whole=False)

    async with asyncio.TaskGroup() as tasks:
        for number in range(_AT_ONCE):
            tasks.create_task(client(number))
    return findings


async def _one(url: str, data: bytes, findings: Findings, whole: bool) -> None:
    wire = Wire(url, 30.0 if whole else _PATIENCE)
    try:
        await wire.send(data)
        head, body = await wire.answer()
    except TimeoutError:
        if whole:
            findings.blame("a valid request was not answered", data)
        else:
            findings.note("waits")
    except (Closed, ConnectionError) as error:
        if whole:
            findings.blame(f"a valid request was not answered: {error}", data)
        else:
            findings.note("closed")
    except ValueError as error:
        findings.blame(f"no HTTP came back: {error}", data)
    else:
        if head.status >= 500 and not (head.status == 503 and b'"code"' in body):
            findings.blame(f"{head.status} {body[:300]!r}", data)
        elif whole and head.status != 200:
            findings.blame(f"a valid request got {head.status} {body[:300]!r}", data)
        else:
            findings.note(str(head.status))
    finally:
        wire.abort()
