"""The page: what is assumed, then the tables."""

from collections.abc import Iterable

from . import gpu
from .table import Table

_INTRODUCTION = """# The papers again

Made by `ops/paper`. SARATHI ([arXiv 2308.16369](https://arxiv.org/abs/2308.16369)) and Sarathi-Serve (OSDI
2024, [arXiv 2403.02310](https://arxiv.org/abs/2403.02310)) measured on GPUs. Here Pillion's own scheduler
core runs their experiments under each [batching policy](scheduling.md), against steps whose time is
**computed, not measured**: it shows whether policies do to each other what the papers say, not how fast
Pillion is on a GPU.

## How long a step takes

`ops/pillion/ops/paper/gpu.py`: a GEMM takes as long as its arithmetic or as the reading of its weights,
whichever is more. Arithmetic goes in tiles of rows and columns, as many at once as the GPU has SMs; a tile
or a wave that is not full costs as a full one. Chunks' attention is arithmetic, decodes' the reading of
their KV. The constants were written down before the first table was made, and none was changed for a table:

"""


def page(tables: Iterable[Table]) -> str:
    lines = ["| what | value | from |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in constants()]
    return _INTRODUCTION + "\n".join(lines) + "\n" + "".join("\n" + table.markdown() for table in tables)


def constants() -> tuple[tuple[str, str, str], ...]:
    """What is assumed, its value, and where that is from."""
    gpus = "; ".join(
        f"{one.name} {one.flops / 1e12:.4g} TFLOP/s, {one.read / 1e9:.0f} GB/s, {one.memory / 1e9:.0f} "
        f"GB, {one.sms} SMs,"
        f" {one.link / 1e9:.0f} GB/s to its neighbour"
        for one in (gpu.A6000, gpu.A40, gpu.A100)
    )
    models = (
        *(gpu.LLAMA_13B, gpu.LLAMA_33B, gpu.MISTRAL_7B, gpu.YI_34B, gpu.LLAMA2_70B, gpu.FALCON_180B),
        gpu.GPT_3,
    )
    return (
        ("GPUs, dense 16-bit arithmetic", gpus, "NVIDIA's data sheets"),
        ("models", ", ".join(model.name for model in models), "their published configurations"),
        ("tile", f"{gpu.TILE} x {gpu.TILE}", "CUTLASS' usual one; SARATHI names it"),
        ("share of the peak that GEMMs reach", f"{gpu.GEMM}", "a round figure"),
        ("share that attention reaches", f"{gpu.FLASH}", "FlashAttention-2: 0.5 to 0.73 on A100"),
        ("share of the memory rate", f"{gpu.READ}", "a round figure"),
        ("an all-reduce", f"{gpu.REDUCE_SECONDS * 1e6:.0f} us and its bytes, two a layer", "a round figure"),
        ("a step beside its kernels", f"{gpu.STEP_SECONDS * 1e3:.0f} ms", "a round figure"),
        ("between machines", f"{gpu.NETWORK / 1e9:.4g} GB/s", "100 Gbit/s Ethernet"),
        ("memory in use", f"{gpu.USABLE}", "vLLM's default"),
    )
