"""Sarathi-Serve's main experiment: how many requests each policy holds within two targets."""

from .gpu import Deployment
from .serve import (
    BUDGETS,
    CHATS,
    DELAY,
    FALCON,
    LLAMA,
    PAPERS,
    REQUESTS,
    TARGETS,
    TOLERANCE,
    YI,
    Way,
    capacity,
)
from .table import Cell, Table

TOLD: dict[tuple[Deployment, int], tuple[float | None, float | None]] = {
    (YI, 0): (4.0, 3.7),
    (LLAMA, 0): (6.3, 4.3),
    (FALCON, 0): (None, 3.6),
    (FALCON, 1): (None, 1.48),
}
"""How many times the paper's Sarathi-Serve holds what Orca and vLLM do, with the strict target (0) or the
relaxed one; of chats, as far as what we have tells.
"""


def capacities() -> Table:
    rows = [
        row for deployment in TARGETS for lengths in (CHATS, PAPERS) for row in _rows(deployment, lengths)
    ]
    return Table(
        "capacities",
        "Sarathi-Serve: capacity",
        "The highest Poisson rate, requests/s, with P99 TBT in its target and median scheduling delay "
        f"<= {DELAY:.0f} s, of {REQUESTS[CHATS]} chats or {REQUESTS[PAPERS]} papers, within "
        f"{100 * TOLERANCE:.0f} %. `fixed-budget` is the paper's Sarathi-Serve, with {BUDGETS[YI][0]} tokens "
        f"for the strict target and {BUDGETS[YI][1]} for the relaxed (LLaMA2-70B {BUDGETS[LLAMA][1]}); "
        "`stall-free` is ours, whose budget follows from the target by a cost model that knows the steps, as "
        "after `pillion profile`. The two largest run as two stages of four GPUs. The last columns are how "
        "many times `fixed-budget` holds of what `orca` and `prefill-first` (vLLM then) do; the paper's are "
        "of chats, as far as what we have tells.",
        (
            *("model", "lengths", "P99 TBT, s", "orca", "prefill-first", "fixed-budget", "stall-free"),
            *("over orca, paper", "ours", "over vLLM, paper", "ours"),
        ),
        tuple(rows),
        "Strict columns are the paper's in kind: the tighter the target, the more whole prompts cost. "
        "Ratios are near the paper's for Yi-34B and LLaMA2-70B, and nearly twice for Falcon-180B. 128 chats "
        "are a short run: where the target is loose nobody stalls much in it over two stages, and whole "
        "prompts hold a little more. `stall-free` keeps its target and holds more than the constant budget "
        "everywhere, without anybody choosing one.",
    )


def _rows(deployment: Deployment, lengths: str) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    held: dict[str, float] = {}
    for at, (target, budget) in enumerate(zip(TARGETS[deployment], BUDGETS[deployment], strict=True)):
        for way in (
            Way("fixed-budget", budget),
            Way("stall-free", target=target),
            Way("orca"),
            Way("prefill-first"),
        ):
            # From below: all prompts at once are a short run in which whole prompts stop nobody.
            start = held.get(way.policy) or max(held.values(), default=4.0) / 8
            held[way.policy] = capacity(deployment, way, lengths, target, start)
        told = TOLD.get((deployment, at), (None, None)) if lengths == CHATS else (None, None)
        fixed, ours, orca, vllm = held.values()
        ratios = [fixed / other if other else "only it holds" for other in (orca, vllm)]
        rows.append(
            (
                deployment.name,
                lengths,
                target,
                orca,
                vllm,
                fixed,
                ours,
                told[0],
                ratios[0],
                told[1],
                ratios[1],
            )
        )
    return rows
