"""The pool and the prefix index, apart from any sequence."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillion.scheduler.blocks import OutOfBlocks, Pool

SIZE = 2


class Tables(RuleBasedStateMachine):
    """Block tables as sequences would hold them, with a record of what each block was filled with."""

    @initialize(blocks=st.integers(2, 12), collide=st.booleans())
    def start(self, blocks, collide):
        self.pool = Pool(blocks, SIZE, hash_block=(lambda content: content[1][0]) if collide else hash)
        self.tables = []  # (tokens, blocks, entries, whether entries may go on)
        self.content = {}  # block: all tokens up to its end
        self.step = 0

    def begin(self, tokens, share):
        """A sequence arrives: what is cached is shared, the rest is filled as far as blocks go."""
        self.step += 1
        pool = self.pool
        entries, waits = pool.index.match(
            list(tokens), [], len(tokens) // SIZE if share else 0, "", self.step
        )
        assert not waits
        for depth, entry in enumerate(entries, 1):
            assert self.content[entry.block] == tokens[: depth * SIZE], (
                "a block with other tokens was matched"
            )
        blocks, indexed = pool.share(entries), True
        while len(blocks) < len(tokens) // SIZE and pool.available:
            block = pool.take()
            depth = len(blocks)
            blocks.append(block)
            self.content[block] = tokens[: (depth + 1) * SIZE]
            if indexed:
                parent = entries[-1] if entries else None
                entry = pool.enter(parent, tokens[depth * SIZE : (depth + 1) * SIZE], "", block, self.step)
                indexed = entry is not None
                entries += [entry] if entry else []
        self.tables.append(blocks)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=2, max_size=10), share=st.booleans())
    def add(self, tokens, share):
        self.begin(tuple(tokens), share)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        self.pool.give_back(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule(back=st.integers(0, 2))
    def fail(self, back):
        """The last steps fail: their blocks leave the index; here their tables stay, the worst case."""
        self.pool.withdraw(max(self.step - back, 1))

    @invariant()
    def consistent(self):
        if hasattr(self, "pool"):
            self.pool.check(self.tables)
            assert self.pool.free + self.pool.cached + self.pool.referenced == self.pool.size


Tables.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)
test_any_order_of_use = Tables.TestCase


def test_block_0_is_never_given_out_and_the_end_is_said():
    pool = Pool(4, 16)
    assert sorted(pool.take() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(OutOfBlocks):
        pool.take()


def test_least_recently_freed_goes_first_and_tails_before_heads():
    pool = Pool(5, 2)
    tables = []
    for name in (1, 2):
        table, parent = [pool.take(), pool.take()], None
        for depth, block in enumerate(table):
            parent = pool.enter(parent, (name, depth), "", block, 1)
        tables.append(table)
    pool.give_back(tables[1])
    pool.give_back(tables[0])
    assert pool.cached == 4 and pool.free == 0
    assert [pool.take() for _ in range(4)] == [*reversed(tables[1]), *reversed(tables[0])]


def test_a_block_is_offered_from_the_next_step_on():
    pool = Pool(5, 2)
    entry = pool.enter(None, (1, 2), "", pool.take(), 7)
    assert pool.index.match([1, 2, 3], [], 1, "", 7) == ([], True)
    assert pool.index.match([1, 2, 3], [], 1, "", 8) == ([entry], False)
    assert pool.index.match([1, 2, 3], [], 1, "salt", 8) == ([], False)
