"""What a step computes and reads, counted from the model's sizes and the step's rows.

Of one rank's shard, and of what the model asks for, whatever the kernels add to it.

Operations, two a multiply-add: projections and MLP for every row, the output head for every row that samples
or tells of its prompt, and both attention products for every (query, key) pair that the causal mask and the
window leave. Not counted: norms, rotary turns, softmax, activations, biases, sampling, and rows of padding.

Bytes: the layers' matrices once a step, the head once where it has rows, one embedding row a token, and
once a sequence and layer the keys and values that its rows see, those of its own rows included. Not counted:
norms and biases (under a thousandth), activations, what is written, and what a kernel reads again.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pillion.executor.batch import Row
from pillion.executor.models.parallel import Shard
from pillion.executor.models.spec import ModelSpec

_BOUNDS = tuple(2**power for power in range(10))
INTENSITIES = (*map(str, _BOUNDS), "+Inf")
"""Upper bounds of a step's operations per byte. Work added up within each still tells the floor, which is the
sum over steps of max(flops / rate, read_bytes / bandwidth), but for the bucket that holds the balance."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of one step."""

    flops: int
    read_bytes: int

    @property
    def intensity(self) -> str:
        """The bucket: the least of INTENSITIES that is no less than the operations per byte."""
        return INTENSITIES[bisect_left(_BOUNDS, self.flops / max(1, self.read_bytes))]


@dataclass(frozen=True, slots=True)
class Costs:
    """Sizes in elements; what is told of a layer holds for each."""

    layer: int  # in a layer's matrices
    layers: int
    head: int  # in the output head
    hidden: int  # in a row of the embedding
    query: int  # in a token's queries of one layer, all heads
    key: int  # in a token's keys of one layer, all KV heads; as many in its values
    windows: tuple[tuple[int | None, int], ...]  # (window, how many layers have it)
    itemsize: int  # bytes an element of the embedding
    matrix_bytes: int  # of all layers' matrices
    head_bytes: int
    kv_bytes: int  # of a position's keys and values in one layer

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        shard: Shard,
        itemsize: int,
        matrix_bytes: int | None = None,
        head_bytes: int | None = None,
        kv_bytes: int | None = None,
    ) -> "Costs":
        """The bytes of matrices, head and KV are by default those of elements of this size."""
        query = spec.num_heads // shard.tp_size * spec.head_size
        key = max(1, spec.num_kv_heads // shard.tp_size) * spec.head_size
        mlp = spec.intermediate_size // shard.tp_size
        layers = range(shard.first_layer, shard.last_layer)
        layer = spec.hidden_size * (2 * query + 2 * key + 3 * mlp)
        head = spec.hidden_size * spec.vocab_size // shard.tp_size
        return cls(
            layer=layer,
            layers=len(layers),
            head=head,
            hidden=spec.hidden_size,
            query=query,
            key=key,
            windows=tuple(Counter(spec.window(layer) for layer in layers).items()),
            itemsize=itemsize,
            matrix_bytes=len(layers) * layer * itemsize if matrix_bytes is None else matrix_bytes,
            head_bytes=head * itemsize if head_bytes is None else head_bytes,
            kv_bytes=2 * key * itemsize if kv_bytes is None else kv_bytes,
        )

    def step(self, rows: Sequence[Row]) -> Work:
        tokens = sum(row.count for row in rows)
        judged = sum(row.sample + row.scored for row in rows)  # rows through the head
        pairs = keys = 0  # over all layers
        for window, layers in self.windows:
            for row in rows:
                pairs += layers * _pairs(row.start, row.count, window)
                keys += layers * _keys(row.start, row.count, window)
        matrices = self.layers * self.layer
        weights = self.matrix_bytes + (self.head_bytes if judged else 0)
        rest = tokens * self.hidden * self.itemsize + keys * self.kv_bytes
        return Work(
            flops=2 * (tokens * matrices + judged * self.head + 2 * self.query * pairs),
            read_bytes=weights + rest,
        )


def _pairs(start: int, count: int, window: int | None) -> int:
    """Queries at start .. start + count - 1, each with the keys up to its own position that it sees."""
    every = count * start + count * (count + 1) // 2
    if window is None:
        return every
    beyond = max(0, start + count - window)  # keys that the last query no longer sees; one less each before
    few = max(0, beyond - count)
    return every - (beyond * (beyond + 1) - few * (few + 1)) // 2


def _keys(start: int, count: int, window: int | None) -> int:
    """Positions that any of these queries sees."""
    return start + count if window is None else min(start + count, count + window - 1)
