"""How long a step takes on a GPU: a roofline with tiles and waves, from data sheets and model configurations.

Each GEMM is as slow as its arithmetic or the reading of its weights. Arithmetic goes in tiles of rows and
columns, as many at once as there are SMs: a tile or a wave that is not full costs as much as a full one.
Attention is arithmetic over (query, key) pairs for chunks and reading of KV for decodes. What it leaves out:
elementwise kernels, activations' bytes, kernels of other tile sizes, launches that hide one another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor

from pillion.steptime import Curve, StepTime, Work

BYTES = 2  # of a 16-bit number
TILE = 128  # rows and columns of an output tile: CUTLASS' usual one, and the one that SARATHI names
GEMM = 0.7  # of the peak arithmetic rate that large GEMMs reach on Ampere, a round figure
FLASH = 0.5  # the same for attention: FlashAttention-2 tells 50 to 73 % on A100
READ = 0.8  # of the peak memory rate that streaming reads reach, a round figure
REDUCE_SECONDS = 20e-6  # of an all-reduce of nothing over NVLink, a round figure
STEP_SECONDS = 1e-3  # beside the kernels: sampling and launches, a round figure
USABLE = 0.9  # of a GPU's memory: vLLM's default
KNOWN = 1 << 14  # rows and samples up to which a cost model is exact; then it goes on as a line


@dataclass(frozen=True, slots=True)
class Gpu:
    """A data sheet: dense 16-bit FLOP/s, bytes/s, bytes, SMs, and bytes/s to its neighbours, one way."""

    name: str
    flops: float
    read: float
    memory: float
    sms: int
    link: float


A6000 = Gpu("A6000", 154.8e12, 768e9, 48e9, 84, 56e9)
A100 = Gpu("A100", 312e12, 2039e9, 80e9, 108, 300e9)
A40 = Gpu("A40", 149.7e12, 696e9, 48e9, 84, 32e9)
NETWORK = 12.5e9  # bytes/s between machines: 100 Gbit/s Ethernet


@dataclass(frozen=True, slots=True)
class Model:
    """A model's published configuration. `gated`: its feed-forward part has three matrices, not two."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    gated: bool = True

    @property
    def kv_bytes(self) -> int:
        """Of one position, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES

    def matrices(self, tp: int) -> tuple[tuple[int, int], ...]:
        """(K, N) of each GEMM of a layer, on one of `tp` GPUs."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        up = (2 if self.gated else 1) * self.inner
        return (
            (self.hidden, (q + 2 * kv) // tp),
            (q // tp, self.hidden),
            (self.hidden, up // tp),
            (self.inner // tp, self.hidden),
        )

    @property
    def weight_bytes(self) -> int:
        layer = sum(k * n for k, n in self.matrices(1))
        return BYTES * (self.layers * layer + 2 * self.vocabulary * self.hidden)


LLAMA_13B = Model("LLaMA-13B", 40, 5120, 40, 40, 128, 13_824, 32_000)
LLAMA_33B = Model("LLaMA-33B", 60, 6656, 52, 52, 128, 17_920, 32_000)
MISTRAL_7B = Model("Mistral-7B", 32, 4096, 32, 8, 128, 14_336, 32_000)
YI_34B = Model("Yi-34B", 60, 7168, 56, 8, 128, 20_480, 64_000)
LLAMA2_70B = Model("LLaMA2-70B", 80, 8192, 64, 8, 128, 28_672, 32_000)
FALCON_180B = Model("Falcon-180B", 80, 14_848, 232, 8, 64, 59_392, 65_024, gated=False)
GPT_3 = Model("GPT-3", 96, 12_288, 96, 96, 128, 49_152, 50_257, gated=False)


@dataclass(frozen=True)
class Deployment:
    """A model on `tp` GPUs in each of `stages` stages. Stages are on machines of their own."""

    model: Model
    gpu: Gpu
    tp: int = 1
    stages: int = 1

    @property
    def name(self) -> str:
        return f"{self.model.name}, {self.tp * self.stages} x {self.gpu.name}"

    @property
    def kv_tokens(self) -> int:
        """Positions that fit beside the weights."""
        memory = USABLE * self.gpu.memory * self.tp * self.stages
        return floor((memory - self.model.weight_bytes) / self.model.kv_bytes)

    def batch(self, longest: int) -> int:
        """SARATHI's largest batch: B = floor((M_gpu - M_weights) / (L_max * m_kv)), of one of `stages`."""
        return self.kv_tokens // longest // self.stages

    def linear(self, rows: int, sampled: int = 0) -> float:
        """Seconds of all GEMMs, the head's included."""
        return _linear(self, rows) + _gemm(
            self.gpu, sampled, self.model.hidden, self.model.vocabulary // self.tp
        )

    def attention(self, context: float, pairs: float) -> float:
        """Seconds. `context`: positions that decodes read; `pairs`: (query, key) pairs of chunks."""
        model, gpu = self.model, self.gpu
        flops = 4 * pairs * model.heads * model.head_size * model.layers
        return (flops / (gpu.flops * FLASH) + context * model.kv_bytes / (gpu.read * READ)) / self.tp

    def reduce(self, rows: int) -> float:
        """Seconds of two all-reduces a layer."""
        if self.tp == 1:
            return 0.0
        bytes_ = 2 * (self.tp - 1) / self.tp * rows * self.model.hidden * BYTES
        return 2 * self.model.layers * (REDUCE_SECONDS + bytes_ / (self.gpu.link * READ))

    def seconds(self, work: Work) -> float:
        """Of a step, all stages."""
        return (
            self.linear(work.rows, work.sampled)
            + self.attention(work.context, work.pairs)
            + self.reduce(work.rows)
            + STEP_SECONDS
        )

    def latency(self, work: Work) -> float:
        """Seconds of a step with its ways between the stages."""
        return self.seconds(work) + (self.stages - 1) * self.send(work.rows)

    def send(self, rows: int) -> float:
        """Seconds from one stage to the next, over one link between their machines."""
        return rows * self.model.hidden * BYTES / NETWORK


@lru_cache
def cost_model(deployment: Deployment) -> StepTime:
    """What a perfect `pillion profile` would find: the same seconds as `deployment.latency`."""
    ends = range(TILE, KNOWN + 1, TILE)
    tiles = (1, *(size for end in ends[:-1] for size in (end, end + 1)), KNOWN, KNOWN + TILE)
    return StepTime(
        base=STEP_SECONDS,
        rows=Curve(
            tiles,
            tuple(
                deployment.linear(n) + deployment.reduce(n) + (deployment.stages - 1) * deployment.send(n)
                for n in tiles
            ),
        ),
        sampled=Curve(tiles, tuple(deployment.linear(0, n) for n in tiles)),
        tile=TILE,
        pair=deployment.attention(0, 1),
        context=deployment.attention(1, 0),
    )


@lru_cache(maxsize=1 << 16)
def _linear(deployment: Deployment, rows: int) -> float:
    model = deployment.model
    return model.layers * sum(_gemm(deployment.gpu, rows, k, n) for k, n in model.matrices(deployment.tp))


def _gemm(gpu: Gpu, rows: int, k: int, n: int) -> float:
    """Seconds of a [rows, k] x [k, n] product."""
    if not rows:
        return 0.0
    waves = ceil(ceil(rows / TILE) * ceil(n / TILE) / gpu.sms)
    arithmetic = waves * gpu.sms * 2 * TILE * TILE * k / (gpu.flops * GEMM)
    return max(arithmetic, k * n * BYTES / (gpu.read * READ))


Seconds = Callable[[Work], float]
