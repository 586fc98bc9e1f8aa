"""What a request and a heartbeat cost admission's decisions: `python -m pillion.ops.bench.admission`.

The policy alone, without Redis: replicas of one model with room for all, then with none while requests wait.
"""

import random
import time
from collections.abc import Callable
from statistics import median

import click

from pillion.admission.policy import Arrived, Forward, Forwarded, Heard, Policy, configured
from pillion.config import load
from pillion.contracts.entries import Facts, Heartbeat, Request, Sampling

PROMPTS = 64  # beginnings, which requests have in common
_FACTS = Facts(
    model="m", fingerprint="f", max_model_len=4096, vocab_size=32_000, end_tokens=(2,), block_size=16,
    num_blocks=4097, max_num_seqs=64, max_step_tokens=2048, tile=16, dtype="bfloat16", backend="none",
)  # fmt: skip


class Fleet:
    """Replicas that answer nothing, and the policy before them."""

    def __init__(self, replicas: int, slo_ttft: float | None, seed: int) -> None:
        self._policy: Policy = configured(load({"slo_ttft": slo_ttft}, environ={}).config)
        self._random = random.Random(seed)
        self._last = {str(number): "0-0" for number in range(replicas)}
        self._entries = 0
        self._now = 1e9
        self._beginnings = [self._tokens(400) for _ in range(PROMPTS)]
        self.told(credit=4000)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(32_000), k=count))

    def told(self, credit: int) -> None:
        """All speak."""
        for name in self._last:
            self.beat(name, credit)

    def beat(self, name: str = "", credit: int = 4000) -> None:
        """One speaks, any without a name."""
        name = name or str(self._random.randrange(len(self._last)))
        beat = Heartbeat(
            replica=name, epoch=1, state="ready", facts=_FACTS, last_entry=self._last[name], uncomputed=800,
            credit=credit, prefill_rate=2000.0, running=4, seats=40, kv_usage=0.1, step_seconds=0.05,
            idle_rate=3000.0,
        )  # fmt: skip
        self._policy.handle(Heard(beat), self._now)
        self._now += 1e-5

    def arrive(self) -> None:
        """A request comes and, where there is room, goes on."""
        self._entries += 1
        beginning = self._random.choice(self._beginnings)[: self._random.randrange(50, 400)]
        request = Request(
            id=str(self._entries), gateway="g", model="m", prompts=((*beginning, *self._tokens(20)),),
            sampling=Sampling(seed=1), arrival=self._now, max_tokens=100,
        )  # fmt: skip
        for action in self._policy.handle(Arrived(request, f"1-{self._entries}"), self._now):
            if isinstance(action, Forward):
                self._last[action.replica] = entry = f"2-{self._entries}"
                self._policy.handle(Forwarded(action.waiting.entry, action.replica, entry), self._now)


def measure(replicas: int, slo_ttft: float | None, count: int, seed: int = 1) -> dict[str, float]:
    """Median seconds of each."""
    fleet = Fleet(replicas, slo_ttft, seed)
    told = {"request": _median(fleet.arrive, count), "heartbeat": _median(fleet.beat, count)}
    fleet.told(credit=1)
    for _ in range(20):
        fleet.arrive()
    return told | {"heartbeat while requests wait": _median(lambda: fleet.beat(credit=1), count)}


def _median(act: Callable[[], None], count: int) -> float:
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return median(taken)


@click.command()
@click.option("--replicas", multiple=True, type=int, default=(1, 10, 100, 1000), show_default=True)
@click.option("--slo-ttft", type=float, help="seconds  [none]")
@click.option("--count", default=300, show_default=True, help="of each")
def main(replicas: tuple[int, ...], slo_ttft: float | None, count: int) -> None:
    """Measures the policy with so many replicas."""
    for number in replicas:
        told = measure(number, slo_ttft, count)
        line = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in told.items())
        click.echo(f"{number} replicas: {line}")


if __name__ == "__main__":
    main()
