"""The prefix index: which block holds the KV of which tokens after which tokens.

A block's key is hash(parent's key, token ids); the first parent's key stands for the salt. Keys only find:
an entry is used when its token ids are equal and its parent is the very entry that matched before, so two
prompts whose keys collide never share.
"""

from collections.abc import Callable
from hashlib import blake2b

Hash = Callable[[tuple[int, tuple[int, ...]]], int]


class Entry:
    """One full block in the index. `step` is the plan that computes it."""

    __slots__ = ("block", "key", "parent", "salt", "step", "tokens")

    def __init__(
        self, key: int, parent: "Entry | None", tokens: tuple[int, ...], *, salt: str, block: int, step: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.block = block
        self.step = step


class PrefixIndex:
    """Maps chains of full blocks to blocks. It keeps no counts: who owns a block tells it to forget."""

    def __init__(self, block_size: int, enabled: bool = True, hash_block: Hash = hash) -> None:
        self._size = block_size
        self._enabled = enabled
        self._hash = hash_block
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def match(
        self, tokens: list[int], known: list[Entry], most: int, salt: str, step: int
    ) -> tuple[list[Entry], bool]:
        """The entries that continue `known`, up to block `most`, and whether it pays to wait a step.

        Only blocks of plans before `step` can be read; where the next one is computed by plan `step` itself,
        a second computation of it is saved by waiting.
        """
        found: list[Entry] = []
        if not self._enabled:
            return found, False
        size = self._size
        parent = known[-1] if known else None
        key = parent.key if parent else self._root(salt)
        for start in range(len(known) * size, most * size, size):
            content = tuple(tokens[start : start + size])
            key = self._hash((key, content))
            entry = self._entries.get(key)
            if entry is None or not self._same(entry, parent, content, salt):
                break
            if entry.step >= step:
                return found, True
            found.append(entry)
            parent = entry
        return found, False

    def add(
        self, parent: Entry | None, tokens: tuple[int, ...], salt: str, block: int, step: int
    ) -> Entry | None:
        """Enters a block; None when its key is taken, be it by the same tokens or by a collision.

        The caller then enters no descendant either: so each sequence that refers to an entry's block refers
        to its parent's too, and a parent is never reused before its children.
        """
        if not self._enabled:
            return None
        entry = self.make(parent, tokens, salt, block, step)
        return entry if self.put(entry) else None

    def make(self, parent: Entry | None, tokens: tuple[int, ...], salt: str, block: int, step: int) -> Entry:
        """One that is not entered yet."""
        key = self._hash((parent.key if parent else self._root(salt), tokens))
        return Entry(key, parent, tokens, salt=salt, block=block, step=step)

    def put(self, entry: Entry) -> bool:
        """Whether its key was free."""
        return self._entries.setdefault(entry.key, entry) is entry

    def forget(self, entry: Entry) -> None:
        del self._entries[entry.key]

    @staticmethod
    def _same(entry: Entry, parent: Entry | None, tokens: tuple[int, ...], salt: str) -> bool:
        return entry.parent is parent and entry.tokens == tokens and entry.salt == salt

    @staticmethod
    def _root(salt: str) -> int:
        # Python's own hash of text differs from process to process. The prefix is the domain.
        return (
            int.from_bytes(blake2b(b"cache_salt:" + salt.encode(), digest_size=8).digest(), "big")
            if salt
            else 0
        )
