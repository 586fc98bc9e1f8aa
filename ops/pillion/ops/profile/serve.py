"""Lets a stack of its own serve for a while, and fits the cost model to the steps of that.

Closed loops of more and more clients: what a step costs beside it depends on how many streams there are.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from pillion.config import Config
from pillion.ops.bench.client import Timeline, session
from pillion.ops.bench.server import Job, Server
from pillion.ops.profile import served
from pillion.ops.profile.drive import ProfileError
from pillion.ops.profile.run import Tell
from pillion.ops.rig import Rig
from pillion.ops.stack import to_toml
from pillion.ops.traces import LENGTHS
from pillion.steptime import StepTime

CLIENTS = (1, 2, 4, 8, 16, 32)
FEW = 2
SHAPE = LENGTHS["summaries"]


@dataclass(frozen=True, slots=True)
class Fit:
    model: StepTime
    steps: Sequence[served.Step]  # of the stack
    before: float  # median of measured / predicted by the model of the executor alone
    after: float


async def serve(config: Config, alone: StepTime, seconds: float, seed: int, tell: Tell) -> Fit:
    """About so many seconds. Raises ProfileError, RigError, NoServer, NoRecording."""
    with tempfile.TemporaryDirectory(prefix="pillion-") as name:
        folder = Path(name)
        settings = folder / "settings.toml"
        settings.write_text(to_toml(config))
        flags = ("--config", str(settings), "--record", str(folder / "recording"), "--log-level", "error")
        tell(0.0, "starting a stack")
        with Rig(folder / "state", *flags) as rig:
            url = await asyncio.to_thread(lambda: rig.url)
            lines, few = await _loads(url, seconds, seed, tell)
        found = served.read(folder / "recording")
    if len(found.steps) < served.FEWEST or not lines:
        raise ProfileError(f"the stack ran {len(found.steps)} steps; give more --served seconds")
    # What was sent to get to know the server came first. With more clients some wait before the scheduler.
    known = len(found.firsts) - len(lines)
    way = served.way([line.ttft for line in lines[:few]], found.firsts[known:])
    ways = msgspec.structs.replace(alone.ways, inward=way / 2, outward=way / 2)
    model = served.fitted(alone, found.steps, ways)
    return Fit(model, found.steps, _typical(alone, found), _typical(model, found))


def _typical(model: StepTime, found: served.Served) -> float:
    return median(step.seconds / model.seconds(step.work) for step in found.steps)


async def _loads(url: str, seconds: float, seed: int, tell: Tell) -> tuple[list[Timeline], int]:
    """In the order in which they were sent, and how many of them while FEW clients ran at most."""
    random_ = random.Random(f"{seed} served")
    lines: list[Timeline] = []
    few = 0
    async with session() as http:
        server = Server(http, url)
        await server.meet()
        for place, clients in enumerate(CLIENTS):
            tell(place / len(CLIENTS), f"serving {clients} at a time")
            end = time.perf_counter() + seconds / len(CLIENTS)

            async def client(end: float = end) -> None:
                while time.perf_counter() < end:
                    lines.append(await server.complete(Job.of(SHAPE.draw(random_), random_)))

            await asyncio.gather(*(client() for _ in range(clients)))
            few = len(lines) if clients <= FEW else few
    wrong = [line.error for line in lines if line.error or not line.tokens]
    if wrong:
        raise ProfileError(f"{len(wrong)} of {len(lines)} requests failed: {wrong[0]}")
    return sorted(lines, key=lambda line: line.sent), few
