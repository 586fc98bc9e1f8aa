"""Which replica computed which blocks last, as far as admission sent them there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from pillion.contracts.entries import Facts, Request

_REMEMBERED = 1 << 15  # blocks


class Suffixes(NamedTuple):
    """How many prompt tokens have to be computed, over all choices, which share blocks."""

    whole: int  # where none is held
    held: dict[str, int]  # by replica, of the few that hold any

    def at(self, replica: str) -> int:
        return self.whole - self.held.get(replica, 0)


class Prefixes:
    """A guess: a replica may have dropped a block since. A collision costs a prefix hit, nothing else."""

    def __init__(self) -> None:
        self._replica: OrderedDict[int, str] = OrderedDict()

    def note(self, request: Request, facts: Facts, replica: str) -> None:
        for prompt in request.prompts:
            for block in _blocks(request.cache_salt, prompt, facts.block_size):
                self._replica[block] = replica
                self._replica.move_to_end(block)
        while len(self._replica) > _REMEMBERED:
            self._replica.popitem(last=False)

    def forget(self, replica: str) -> None:
        """It is gone, and with it all that it held."""
        for block in [block for block, name in self._replica.items() if name == replica]:
            del self._replica[block]

    def look(self, request: Request, size: int) -> Suffixes:
        """With blocks of so many tokens. Prompts are looked up once, however many replicas are asked for."""
        whole, held = 0, dict[str, int]()
        for prompt in request.prompts:
            holder, tokens = self._held(request.cache_salt, prompt, size)
            if holder is not None:
                held[holder] = held.get(holder, 0) + tokens
            length = len(prompt)
            whole += length + (request.n - 1) * (length - (length - 1) // size * size)
        return Suffixes(whole, held)

    def _held(self, salt: str, prompt: tuple[int, ...], size: int) -> tuple[str | None, int]:
        """Who is likely to hold its first block, and so many of its leading tokens; the last is always
        computed. Nobody else holds any: who computed a block last is known, and nobody before.
        """
        holder, found = None, 0
        for block in _blocks(salt, prompt, size):
            replica = self._replica.get(block)
            if replica is None or (found and replica != holder):
                break
            holder, found = replica, found + 1
        return holder, min(found * size, len(prompt) - 1)


def _blocks(salt: str, prompt: tuple[int, ...], size: int) -> Iterator[int]:
    """Names of its full blocks, each for all up to its end."""
    name = hash(salt)
    for start in range(0, len(prompt) - size + 1, size):
        name = hash((name, prompt[start : start + size]))
        yield name
