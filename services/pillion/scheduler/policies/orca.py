"""Iteration-level batching: requests join and leave at every step, prompts go whole beside decodes."""

from .hybrid_only import HybridOnly


class Orca(HybridOnly):
    """Orca's policy (OSDI 2022, algorithm 1): a request is let in when KV for all its tokens is reserved."""

    reserves = True
