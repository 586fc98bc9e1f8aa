"""How long the scheduler's core takes to plan a step: `python -m pillion.ops.bench.plan_step`.

All running sequences decode, and one in sixteen crosses a block border each step. Timed is one call of the
core: it takes in a step's results, publishes their tokens and plans the next step.
"""

import statistics
import time
from pathlib import Path

import click

from pillion.config import Scheduler
from pillion.contracts.entries import Facts, Request, Sampling
from pillion.scheduler.core import Core
from pillion.scheduler.messages import Connected, Plan, RowResult, SendPlan, StepDone, Submitted
from pillion.steptime import StepTime, load

BLOCK = 16
STEP_SECONDS = 0.02


@click.command()
@click.option("--sequences", default=256, show_default=True, help="running sequences")
@click.option("--steps", default=500, show_default=True, help="measured steps")
@click.option("--prompts", default=0, show_default=True, help="2000-token prompts that arrive as well")
@click.option(
    "--cost-model",
    type=click.Path(path_type=Path),
    help="file by `pillion profile`  [learned from the steps]",
)
def main(sequences: int, steps: int, prompts: int, cost_model: Path | None) -> None:
    """Prints median and p99 of the time from a step's results to the plan that follows."""
    seconds, tokens = measure(sequences, steps, prompts, load(cost_model) if cost_model else None)
    p99 = statistics.quantiles(seconds, n=100)[98]
    click.echo(f"{sequences} running sequences, {prompts} prompts, {tokens} tokens in the last step")
    click.echo(f"results to plan: median {statistics.median(seconds) * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms")


def measure(
    sequences: int, steps: int, prompts: int, measured: StepTime | None = None
) -> tuple[list[float], int]:
    """Seconds of each measured step, and the last plan's tokens."""
    length = 100 + 2 * steps
    facts = Facts(
        model="bench",
        fingerprint="bench",
        max_model_len=4 * length + 2000,
        vocab_size=1000,
        end_tokens=(),
        block_size=BLOCK,
        num_blocks=2 + (sequences + 2 * prompts) * (2 * length + 2000) // BLOCK,
        max_num_seqs=2 * (sequences + prompts),
        max_step_tokens=8192,
        tile=64,
        dtype="none",
        backend="none",
    )
    core = Core(Scheduler(max_num_seqs=2 * (sequences + prompts), max_num_batched_tokens=512))
    core.handle(Connected(facts, measured), 0.0)
    now = 0.0
    plans: list[Plan] = []
    incarnations: dict[int, int] = {}
    for index in range(sequences):
        # Lengths differ, so that block borders do not fall together.
        _submit(core, index, 50 + index % BLOCK, length * 2, plans)
    handled: list[float] = []
    for step in range(steps + 2 * sequences):
        if step == 2 * sequences:
            handled.clear()
            for index in range(prompts):
                _submit(core, sequences + index, 2000, length, plans)
        plan = plans.pop(0)
        now += STEP_SECONDS * plan.steps
        incarnations.update((take.slot, take.incarnation) for take in plan.take)
        rows = [
            RowResult(slot, incarnations[slot], (7,) * sample)
            for slot, sample in zip(plan.slots, plan.samples, strict=True)
            if sample
        ]
        event = StepDone(plan.step, tuple(rows), STEP_SECONDS * plan.steps, steps=plan.steps)
        began = time.perf_counter()
        commands = core.handle(event, now)
        handled.append(time.perf_counter() - began)
        plans += [command.plan for command in commands if isinstance(command, SendPlan)]
    return handled, plan.tokens


def _submit(core: Core, index: int, prompt: int, output: int, plans: list[Plan]) -> None:
    request = Request(
        id=str(index),
        gateway="bench",
        model="bench",
        prompts=(tuple((index * 31 + position) % 997 for position in range(prompt)),),
        sampling=Sampling(seed=0),
        arrival=float(index),
        max_tokens=output,
    )
    commands = core.handle(Submitted(request), 0.0)
    plans += [command.plan for command in commands if isinstance(command, SendPlan)]


if __name__ == "__main__":
    main()
