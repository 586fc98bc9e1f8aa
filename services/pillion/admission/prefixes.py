"""Which replica computed which blocks last, as far as admission sent them there. Pure."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from pillion.contracts.entries import Facts, Request

_REMEMBERED = 1 << 15  # blocks


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

    def look(self, request: Request) -> Callable[[Facts, str], int]:
        """How many prompt tokens the replica with these facts and this name has to compute, over all choices,
        which share blocks. Prompts are looked up once, however many replicas are asked for.
        """
        found: dict[int, list[tuple[str | None, int]]] = {}  # by block size, for each prompt

        def suffix(facts: Facts, replica: str) -> int:
            size, total = facts.block_size, 0
            if size not in found:
                found[size] = [self._held(request.cache_salt, prompt, size) for prompt in request.prompts]
            for prompt, (holder, held) in zip(request.prompts, found[size], strict=True):
                length = len(prompt)
                total += length - held if holder == replica else length
                total += (request.n - 1) * (length - (length - 1) // size * size)
            return total

        return suffix

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
