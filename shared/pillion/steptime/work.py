"""What one forward pass computes, in the sizes that its time depends on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Of one forward pass."""

    rows: int  # tokens computed
    decodes: int = 0  # sequences with one row that is no chunk
    context: int = 0  # KV positions that the decodes read, in all
    chunks: int = 0  # sequences with a chunk
    pairs: float = 0.0  # (query, key) pairs of the chunks: count * (start + count / 2), summed
    sampled: int = 0  # rows through the head
