"""Measures an executor's steps in turn, over and over in an order of chance, and fits the cost model.

A third of the mixed steps is held out: the model does not see them, and its error is told on them.
"""

import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

import msgspec

from pillion.config import Config
from pillion.contracts.access import Access
from pillion.contracts.entries import Facts
from pillion.ops.banner import threads
from pillion.ops.profile import fit
from pillion.ops.profile.drive import Driver
from pillion.ops.profile.executor import executor
from pillion.ops.profile.fit import Measured
from pillion.ops.profile.shapes import Limits, Shape, axes, mixes, sizes
from pillion.steptime import Provenance, StepTime, Ways, Work
from pillion.steptime.place import hardware
from pillion.version import VERSION

REPEATS = 2  # of a step each time that it has its turn
MIXES, HELD = 60, 30  # mixed steps to fit, and held out
POSITIONS = 16_384  # of KV that are written first
_WARM, _WARM_SECONDS = 0.15, 2.0  # share of the time for that, and so long at least
_TURNS = 20

Tell = Callable[[float, str], None]  # share of the time that is over, and what is done


@dataclass(slots=True)
class Step:
    """A shape and its measurements so far."""

    shape: Shape
    held: bool
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class Profile:
    model: StepTime
    steps: tuple[Step, ...]
    rounds: int
    positions: int  # of KV that the steps read

    def samples(self) -> Iterator[dict[str, Any]]:
        """Where it all comes from, then all that was measured of each step beside what the model says."""
        yield {"cost_model": self.model.hash, "rounds": self.rounds, "kv_positions": self.positions}
        for step in self.steps:
            yield {
                **{name: getattr(step.shape.work, name) for name in Work.__slots__},
                "held_out": step.held,
                "predicted": round(self.model.seconds(step.shape.work), 6),
                "seconds": [round(seconds, 6) for seconds in step.seconds],
            }


async def measure(config: Config, seconds: float, seed: int, tell: Tell) -> Profile:
    """About so many seconds, each step at least once. Raises ProfileError, ModelFileError, ConfigError."""
    tell(0.0, "starting the executor")
    async with _attached(config) as driver:
        assert driver.facts is not None
        began = time.monotonic()

        def over() -> float:
            return (time.monotonic() - began) / seconds

        tell(0.0, "filling KV")
        positions = await driver.warm(POSITIONS, max(_WARM * seconds, _WARM_SECONDS))
        limits = Limits.of(driver.facts, positions)
        steps = [Step(shape, False, []) for shape in axes(limits)]
        mixed = mixes(limits, MIXES + HELD, seed)
        steps += [Step(shape, at < len(mixed) * HELD // (MIXES + HELD), []) for at, shape in enumerate(mixed)]
        draw = random.Random(seed)
        gaps: list[float] = []
        rounds = 0
        while not rounds or over() < 1:
            rounds += 1
            for number, step in enumerate(draw.sample(steps, len(steps))):
                if rounds > 1 and over() >= 1:
                    break
                tell(min(over(), 1.0), f"round {rounds}, step {number + 1} of {len(steps)}")
                timing = await driver.time(step.shape, REPEATS)
                step.seconds += timing.seconds
                gaps += timing.gaps
        few = Shape(contexts=(32,) * min(4, limits.slots))
        turns = [await driver.turn(few) for _ in range(_TURNS)]
        tell(1.0, "fitting")
        ways = Ways(gap=median(gaps), turn=median(turns))
        model = _fitted(steps, limits, ways, _provenance(config, driver.facts, seed))
        return Profile(model, tuple(steps), rounds, positions)


@contextlib.asynccontextmanager
async def _attached(config: Config) -> AsyncIterator[Driver]:
    if config.executor.executor is None:
        async with executor(config) as driver:
            yield driver
        return
    driver = Driver(config.executor.executor, Access(config.executor))
    try:
        await driver.attach()
        yield driver
    finally:
        await driver.close()


def _fitted(steps: Sequence[Step], limits: Limits, ways: Ways, provenance: Provenance) -> StepTime:
    seen = [Measured(step.shape.work, tuple(step.seconds)) for step in steps if not step.held]
    held = [Measured(step.shape.work, tuple(step.seconds)) for step in steps if step.held]
    model = fit.fit(seen, sizes(limits), limits.tile)
    return msgspec.structs.replace(
        model,
        error=fit.error(model, held, seen + held),
        ratios=fit.ratios(model, seen + held),
        ways=ways,
        provenance=provenance,
    )


def _provenance(config: Config, facts: Facts, seed: int) -> Provenance:
    return Provenance(
        model=facts.model,
        fingerprint=facts.fingerprint,
        hardware=hardware(),
        dtype=facts.dtype,
        backend=facts.backend,
        threads=threads(config),
        version=VERSION,
        seed=seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
