"""The pool of KV blocks. Every block but 0 is free, cached or referenced, at any time.

free: holds nothing that can be used again. cached: nobody refers to it, but the index knows its content.
referenced: in the block table of at least one sequence.
"""

from collections import OrderedDict

from .prefix import Entry, Hash, PrefixIndex


class OutOfBlocks(RuntimeError):
    """A block was asked for while none is free or cached: the caller did not look at `available`."""


class Pool:
    """Counts references, and chooses which block is given out next."""

    def __init__(
        self, num_blocks: int, block_size: int, caching: bool = True, hash_block: Hash = hash
    ) -> None:
        self.block_size = block_size
        self.size = num_blocks - 1  # block 0 takes the writes of padding rows
        self.index = PrefixIndex(block_size, caching, hash_block)
        self._free = list(range(num_blocks - 1, 0, -1))
        # In the order in which they were freed. A dict would look for its first past all that were taken.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._entries: list[Entry | None] = [None] * num_blocks

    @property
    def available(self) -> int:
        return len(self._free) + len(self._cached)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def referenced(self) -> int:
        return self.size - self.available

    def blocks_for(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def take(self) -> int:
        """A free block, else the cached one that was freed first. Raises OutOfBlocks."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise OutOfBlocks("no block is free or cached")
        self._references[block] = 1
        return block

    def share(self, entries: list[Entry]) -> list[int]:
        """Refers to the blocks of matched entries."""
        blocks = [entry.block for entry in entries]
        for block in blocks:
            if not self._references[block]:
                del self._cached[block]
            self._references[block] += 1
        return blocks

    def unreferenced(self, entries: list[Entry]) -> int:
        """How many of these entries' blocks are only cached: sharing them takes as many from `available`."""
        return sum(not self._references[entry.block] for entry in entries)

    def give_back(self, blocks: list[int]) -> None:
        """Ends one reference to each block of a table. Tails become reusable before heads."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._entries[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def enter(
        self, parent: Entry | None, tokens: tuple[int, ...], salt: str, block: int, step: int
    ) -> Entry | None:
        """Enters a referenced full block into the index; None when the index does not take it."""
        entry = self.index.add(parent, tokens, salt, block, step)
        self._entries[block] = entry
        return entry

    def withdraw(self, since: int) -> None:
        """Takes out of the index what the plans from step `since` on were to compute."""
        for entry in self._entries:
            if entry is not None and entry.step >= since:
                self.withdraw_entry(entry)

    def flush(self) -> int:
        """Empties the index: cached blocks become free. Answers how many blocks it knew."""
        known = [entry for entry in self._entries if entry is not None]
        for entry in known:
            self.withdraw_entry(entry)
        return len(known)

    def withdraw_entry(self, entry: Entry) -> None:
        self._forget(entry.block)
        if not self._references[entry.block]:
            del self._cached[entry.block]
            self._free.append(entry.block)

    def _forget(self, block: int) -> None:
        entry = self._entries[block]
        if entry is not None:
            self.index.forget(entry)
            self._entries[block] = None

    def check(self, tables: list[list[int]]) -> None:
        """Raises AssertionError unless counts equal the given tables, which are all there are."""
        counts = [0] * (self.size + 1)
        for table in tables:
            for block in table:
                counts[block] += 1
        free, cached = set(self._free), set(self._cached)
        assert counts == self._references, "reference counts differ from the block tables"
        assert len(free) == len(self._free), "a block is free twice"
        for block in range(1, self.size + 1):
            states = (block in free) + (block in cached) + bool(counts[block])
            assert states == 1, f"block {block} is in {states} states"
            assert block not in cached or self._entries[block] is not None, (
                f"cached block {block} is not indexed"
            )
            assert block not in free or self._entries[block] is None, f"free block {block} is indexed"
        assert not counts[0] and 0 not in free | cached, "block 0 was given out"
        assert len(self.index) == sum(entry is not None for entry in self._entries)
