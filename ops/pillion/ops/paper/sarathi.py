"""SARATHI's tables (arXiv 2308.16369): what an iteration costs, and what chunks with riders bring."""

from collections.abc import Sequence

from pillion.config import Scheduler
from pillion.steptime import Work

from . import pipeline
from .gpu import A100, A6000, LLAMA_13B, LLAMA_33B, TILE, YI_34B, Deployment, cost_model
from .pipeline import Job, Ran
from .table import Cell, Table

SMALL, LARGE, YI = Deployment(LLAMA_13B, A6000), Deployment(LLAMA_33B, A100), Deployment(YI_34B, A100, tp=2)
BATCHES = 20  # so many times the batch are simulated, so that begin and end weigh little


def settings(policy: str, slots: int, budget: int | None = None) -> Scheduler:
    """Nothing that the papers do not have: no prefix cache, a step a plan."""
    return Scheduler(
        policy=policy,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
        multi_step_seconds=0.0,
        watermark=0.0,
    )


def run(deployment: Deployment, policy: str, slots: int, budget: int | None, jobs: Sequence[Job]) -> Ran:
    """`slots`: of each of as many micro-batches as stages."""
    return pipeline.run(
        settings(policy, slots * deployment.stages, budget),
        deployment.seconds,
        jobs,
        known=cost_model(deployment),
        stages=deployment.stages,
        hop=deployment.send,
        tile=TILE,
    )


def jobs(length: int, ratio: float, count: int) -> list[Job]:
    """So many of `length` tokens, `ratio` times as many in as out."""
    output = max(round(length / (ratio + 1)), 1)
    return [Job(length - output, output)] * count


def prefill(tokens: int, start: int = 0) -> Work:
    return Work(rows=tokens, chunks=1, pairs=tokens * (start + tokens / 2), sampled=1)


def decodes(count: int, at: int) -> Work:
    return Work(rows=count, decodes=count, context=count * at, sampled=count)


# --- one iteration -----------------------------------------------------------------------------------


_PARTS = ("linear", "attention", "both", "a token")


def iteration() -> Table:
    mixed = Work(rows=1024, decodes=3, context=3 * 1024, chunks=1, pairs=1021**2 / 2, sampled=4)
    alone = _milliseconds(prefill(1024))
    batches = (
        ("prefill only, 1024 tokens", prefill(1024), (224.8, 10.0, 234.8, 0.229), alone[2] / 1024),
        ("decode only, 4 at length 1024", decodes(4, 1024), (44.28, 5.68, 49.96, 12.49), None),
        (
            "1021 of a prompt + 3 decodes",
            mixed,
            (223.2, 15.2, 238.4, 1.20),
            (_milliseconds(mixed)[2] - alone[2]) / 3,
        ),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, work, paper, each in batches:
        ours = (*_milliseconds(work), each or _milliseconds(work)[2] / 4)
        rows.append((name, *(cell for pair in zip(paper, ours, strict=True) for cell in pair)))
    return Table(
        "iteration",
        "SARATHI: one iteration",
        "LLaMA-13B on an A6000, milliseconds, of the cost model alone. The last pair of columns is a "
        "token's share: of"
        " the prefill, of a decode in a batch of four, and of a rider: what the mixed batch takes over "
        "the first row.",
        ("batch", *(f"{name}, {whose}" for name in _PARTS for whose in ("paper", "ours"))),
        tuple(rows),
        "The linear part is 10 to 12 % above the paper's: GEMMs reach a little more than 0.7 of the peak "
        "there. The paper's"
        " prefill attention took nearly twice what FlashAttention-2 does (its kernels are of 2023). A rider "
        "costs us the reading of"
        " its KV and no more.",
    )


def _milliseconds(work: Work) -> tuple[float, float, float]:
    linear = 1e3 * SMALL.linear(work.rows, work.sampled)
    attention = 1e3 * SMALL.attention(work.context, work.pairs)
    return linear, attention, linear + attention


def decode_cost() -> Table:
    token = SMALL.seconds(prefill(1024)) / 1024
    paper = {1: 200.0, 18: 16.7}
    rows = tuple(
        (batch, paper.get(batch), SMALL.seconds(decodes(batch, 1024)) / batch / token)
        for batch in (1, 4, 18, 64, 128, 256)
    )
    return Table(
        "decode_cost",
        "SARATHI: a decode against a prefill token",
        "LLaMA-13B on an A6000 at length 1024: how many times as long a decode takes as a token of a "
        "prefill.",
        ("decodes in the batch", "paper", "ours"),
        rows,
        "The same, to a tenth. At large batches what is left is the reading of KV, which no batch "
        "shares; the paper's"
        " saturation near 256 is of the linear operators alone.",
    )


def chunk_sizes() -> Table:
    rows = []
    for deployment, length, chunks in ((SMALL, 1024, (64, 128, 256, 512)), (YI, 8192, (512, 1024, 2048))):
        whole = deployment.seconds(prefill(length))
        for chunk in chunks:
            taken = sum(deployment.seconds(prefill(chunk, start)) for start in range(0, length, chunk))
            rows.append(
                (deployment.name, length, chunk, _CHUNKS.get((deployment, chunk)), f"{taken / whole:.2f}")
            )
    return Table(
        "chunk_sizes",
        "What chunks cost a prompt",
        "Time of a prompt in chunks over its time whole, nothing beside it.",
        ("model", "prompt", "chunk", "paper", "ours"),
        tuple(rows),
        "Chunk 64 costs as much as 128, since both are one tile of rows: more than the paper's three "
        "times, where smaller"
        " tiles serve the smallest chunks. The constant millisecond of each step is in ours.",
    )


_CHUNKS = {
    (SMALL, 64): "up to 3",
    (SMALL, 256): "1.14",
    (YI, 512): "at most 1.25",
    (YI, 2048): "almost 1",
}


def tiles() -> Table:
    base = SMALL.linear(256)
    rows = tuple(
        (rows, "up to 1.32" if rows == 257 else None, 1e3 * SMALL.linear(rows), SMALL.linear(rows) / base)
        for rows in (128, 129, 255, 256, 257, 384)
    )
    return Table(
        "tiles",
        "SARATHI: one row over a tile",
        "Linear operators of LLaMA-13B on an A6000, milliseconds, and as a share of those of 256 rows.",
        ("rows", "share, paper", "ms, ours", "share, ours"),
        rows,
        "Ours is the worst case: a third row of tiles begins as a full one, and may begin another wave. "
        "Libraries choose"
        " smaller tiles for what stands over. The step is where the paper has it, and it is why a chunk "
        "is trimmed so that"
        " chunk and riders together fill tiles.",
    )


# --- whole runs --------------------------------------------------------------------------------------


def riding() -> Table:
    batch = 4
    rows = []
    for ratio in (10, 21, 42, 84, 168):
        row: list[float] = [ratio]
        for chunk, threshold in ((128, 42), (256, 84)):
            ran = run(SMALL, "sarathi", batch, chunk, jobs(1024, ratio, batch * BATCHES))
            row += [100 * min(1.0, ratio / threshold), 100 * ran.riding]
        rows.append(tuple(row))
    return Table(
        "riding",
        "SARATHI: the P:D ratio at which all decodes ride",
        f"The `sarathi` policy with {batch} slots at length 1024, {batch * BATCHES} requests: the share "
        f"of decodes that are"
        " beside a chunk, %. The paper's is the ratio over its threshold: the chunk's prompt tokens "
        "over B - 1 riders,"
        " (128 - 3) / 3 = 42 and (256 - 3) / 3 = 84.",
        ("P:D", "chunk 128, paper", "chunk 128, ours", "chunk 256, paper", "chunk 256, ours"),
        tuple(rows),
        "The knees are at the paper's ratios, the shares within a twentieth of the formula's: a prompt's "
        "last chunk is shorter, so more rides; a slot is taken again a step after its last token, and the "
        "last requests have nothing to ride on, so less does.",
    )


_GAINS = (
    (SMALL, 1024, 6, 50, "5.45", "1.33"),
    (SMALL, 2048, 6, 50, "3.26", "1.26"),
    (SMALL, 3072, 6, 50, "2.51", "1.22"),
    (LARGE, 1024, 10, 28, "3.83", "1.25"),
    (LARGE, 2048, 5, 63, "4.25", "1.22"),
    (LARGE, 3072, 3, 127, "3.51", "1.14"),
)  # B and P:D of the second and third line are not told in what we have; the first's are taken


def gains() -> Table:
    rows = []
    for deployment, length, batch, ratio, decode, whole in _GAINS:
        load = jobs(length, ratio, batch * BATCHES)
        base = run(deployment, "request-level", batch, None, load)
        orca = run(deployment, "orca", batch, None, load)
        ours = run(deployment, "sarathi", batch, 256, load)
        speedup = _decode(deployment, base) / _rider(deployment, ours)
        rows.append(
            (
                deployment.name,
                length,
                batch,
                ratio,
                decode,
                speedup,
                whole,
                base.seconds / ours.seconds,
                orca.seconds / ours.seconds,
            )
        )
    return Table(
        "gains",
        "SARATHI: gains by sequence length",
        "Chunk 256 against request-level batches (all prompts, then all decodes) and against Orca, all "
        "requests there from"
        f" the start, {BATCHES} batches of them. A decode's time in the base is its step's over the "
        f"batch; a rider's is what"
        " its step takes over one with as many rows of prompt alone.",
        (
            "model",
            "length",
            "B",
            "P:D",
            "decode, paper",
            "decode, ours",
            "end to end, paper",
            "end to end, ours",
            "over Orca, ours",
        ),
        tuple(rows),
        "End to end 4 to 12 % above the paper's, and falling with length as there. Decodes gain more "
        "than the paper's, since our"
        " riders cost nothing but their KV: GEMMs of rows that fill a tile are free. With equal "
        "requests that are all there"
        " Orca makes the same batches as request-level: its gain over it comes from requests that "
        "differ or arrive.",
    )


def _decode(deployment: Deployment, ran: Ran) -> float:
    """Mean seconds of a decode in steps of decodes alone."""
    steps = [work for work in ran.steps if not work.chunks]
    return sum(map(deployment.seconds, steps)) / sum(work.decodes for work in steps)


def _rider(deployment: Deployment, ran: Ran) -> float:
    """Mean seconds that a rider adds to a step of as many rows of its prompt alone."""
    steps = [work for work in ran.steps if work.chunks and work.decodes]
    alone = [
        Work(rows=w.rows, chunks=w.chunks, pairs=w.pairs * w.rows / (w.rows - w.decodes), sampled=w.sampled)
        for w in steps
    ]
    added = sum(map(deployment.seconds, steps)) - sum(map(deployment.seconds, alone))
    return added / sum(work.decodes for work in steps)


def budget_example() -> Table:
    riders, more = 15, 6
    rows = []
    for chunk, mixed, paper in ((512, 0.031, 123), (256, 0.016, 96)):

        def seconds(work: Work, chunk: int = chunk, mixed: float = mixed) -> float:
            """As the example has it; what goes before it takes no time."""
            if not work.chunks:
                return 0.010
            return mixed if work.rows - work.decodes == chunk else 0.0

        # Each rider begins a step after the one before; all have six to go when the prompt begins.
        load = [Job(2, riders + more - index) for index in range(riders)] + [Job(1536, 1)]
        ran = pipeline.run(settings("sarathi", riders + 1, chunk + riders), seconds, load)
        steps = sum(work.chunks > 0 for work in ran.steps) - riders
        rows.append(
            (
                chunk,
                paper,
                1e3 * ran.seconds,
                f"{steps} with a chunk, {len(ran.steps) - riders - steps} without",
            )
        )
    return Table(
        "budget_example",
        "SARATHI: a smaller chunk that is faster",
        "1536 prompt tokens, 90 decodes of 15 sequences; a step takes 10 ms without a chunk, 31 with "
        "one of 512, 16 with one"
        " of 256. The `sarathi` policy, with the example's times, milliseconds.",
        ("chunk", "paper", "ours", "steps"),
        tuple(rows),
        "Nothing: the policy makes the example's steps.",
    )
