"""Which replica computed which blocks last, as far as admission sent them there. Pure."""

from collections import OrderedDict
from collections.abc import Iterator

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

    def held(self, request: Request, prompt: tuple[int, ...], facts: Facts, replica: str) -> int:
        """Leading tokens of the prompt that the replica is likely to hold; the last is always computed."""
        found = 0
        for block in _blocks(request.cache_salt, prompt, facts.block_size):
            if self._replica.get(block) != replica:
                break
            found += 1
        return min(found * facts.block_size, len(prompt) - 1)

    def suffix(self, request: Request, facts: Facts, replica: str) -> int:
        """Prompt tokens that the replica has to compute, over all choices, which share blocks."""
        size, total = facts.block_size, 0
        for prompt in request.prompts:
            length = len(prompt)
            total += length - self.held(request, prompt, facts, replica)
            total += (request.n - 1) * (length - (length - 1) // size * size)
        return total


def _blocks(salt: str, prompt: tuple[int, ...], size: int) -> Iterator[int]:
    """Names of its full blocks, each for all up to its end."""
    name = hash(salt)
    for start in range(0, len(prompt) - size + 1, size):
        name = hash((name, prompt[start : start + size]))
        yield name
