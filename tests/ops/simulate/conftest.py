"""Small simulations, and cores that record what they are told."""

import random
import sys

import pytest

from pillion import config
from pillion.ops.measure import Slo
from pillion.ops.simulate import run
from pillion.ops.simulate.run import Simulation, facts_of, simulate
from pillion.ops.traces import Between, Closed, Shape, arrivals, poisson
from pillion.scheduler.core import Core
from pillion.steptime import Curve, StepTime, Ways

SHORT = Shape(Between(4, 300), Between(1, 40))


def step_time(**changes) -> StepTime:
    """10 ms, and 0.1 ms a row."""
    values = {
        "rows": Curve((1, 1000), (0.0101, 0.11)),
        "tile": 16,
        "ways": Ways(inward=0.002, outward=0.001, gap=0.0003, turn=0.001),
        "ratios": (0.9, 1.0, 1.2),
    }
    return StepTime(**(values | changes))


def asked(
    *,
    model: StepTime | None = None,
    scheduler=(),
    admission=(),
    blocks=2000,
    size=16,
    with_admission=False,
    **changes,
) -> Simulation:
    model = model or step_time()
    settings = config.Config(
        scheduler=config.Scheduler(**({"max_num_seqs": 32, "max_num_batched_tokens": 256} | dict(scheduler))),
        admission=config.Admission(**dict(admission)),
        executor=config.Executor(num_kv_blocks=blocks, block_size=size),
    )
    values = {
        "config": settings,
        "facts": facts_of(settings, model),
        "seconds": model.seconds,
        "ways": model.ways,
        "ratios": model.ratios,
        "slo": Slo(1.0, 0.1),
        "admission": with_admission,
    }
    return Simulation(**(values | changes))


def some(requests: int, rate: float = 20.0, seed: int = 1, shape=SHORT):
    return arrivals(random.Random(seed), shape, poisson(rate), requests=requests)


class Recorder(Core):
    """Keeps every event and what came of it, and looks at every block and slot after each."""

    made: list["Recorder"] = []

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.events: list[tuple[object, float]] = []
        self.commands: list[list[object]] = []
        Recorder.made.append(self)

    def handle(self, event, now):
        self.events.append((event, now))
        commands = super().handle(event, now)
        self.commands.append(commands)
        self.check()
        return commands


@pytest.fixture
def cores(monkeypatch) -> list[Recorder]:
    """Of the simulations from now on, in the order in which they were made."""
    monkeypatch.setattr(run, "Core", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    return Recorder.made


@pytest.fixture
def sim():
    """This module."""
    return sys.modules[__name__]


__all__ = ["Closed", "simulate"]
