"""Who waits, who runs, and what each holds: the only place where slots and blocks change hands."""

from bisect import insort
from dataclasses import dataclass
from math import ceil

from .blocks import Pool
from .grammars import Grammars
from .plan import Draft
from .prefix import Entry
from .sequence import Change, Sequence, State
from .victims import lower, victim_of


@dataclass(slots=True)
class Counters:
    """What happened so far; kept over executors."""

    steps: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    flushed_blocks: int = 0
    late_results: int = 0
    failed_steps: int = 0
    executors_lost: int = 0
    poisonous: int = 0


def _key(sequence: Sequence) -> tuple[float, int]:
    return sequence.key


class Queue(list[Sequence]):
    """Waiting sequences by priority, ageing and arrival. It outlives the executor."""

    def join(self, sequence: Sequence) -> None:
        insort(self, sequence, key=_key)


class Roster:
    """The sequences of one attachment. A draft that is being made is told of each sequence that leaves."""

    def __init__(
        self,
        waiting: Queue,
        pool: Pool,
        slots: int,
        watermark: float,
        counters: Counters,
        reserves: bool = False,
        stages: int = 1,
        places: int = 0,
    ) -> None:
        """`reserves`: a sequence is let in when blocks for all that it may ever hold are there, and keeps a
        claim to them; else for the tokens that it has, beside the watermark. `stages`: the executor's, as are
        `places`, for compiled constraints.
        """
        self.waiting = waiting
        self.pool = pool
        self.grammars = Grammars(places)
        self.counters = counters
        self.prefilling = Queue()
        self.decoding: list[Sequence] = []
        self.by_incarnation: dict[int, Sequence] = {}
        self.suspect: Sequence | None = None  # runs alone for now
        self.returned = 0  # the last step whose result is here
        self.free_slots = list(range(slots - 1, -1, -1))
        self.slots = slots
        self.stages = stages
        self._releasing: list[int] = []
        self._reserves = reserves
        self._watermark = 0 if reserves else ceil(watermark * pool.size)
        self._incarnation = 0

    @property
    def running(self) -> list[Sequence]:
        return [*self.prefilling, *self.decoding]

    @property
    def busy(self) -> bool:
        return len(self.free_slots) < self.slots

    @property
    def spare(self) -> int:
        """Blocks a new prompt may count on: beside what was promised to those that run and the watermark."""
        if not self.busy:
            return self.pool.available
        promised = self.running if self._reserves else self.prefilling
        owed = sum([self._claim(sequence) - len(sequence.blocks) for sequence in promised])
        return self.pool.available - owed - self._watermark

    @property
    def turn(self) -> tuple[list[Sequence], list[Sequence], list[Sequence]]:
        """Who may be in the next step, decoding, prefilling and waiting: all, or a suspect on its own.

        But nobody who waits for its constraint.
        """
        waiting: list[Sequence] = self.waiting
        if self.grammars.places:
            waiting = [sequence for sequence in waiting if self.grammars.ready(sequence)]
        everyone = self.decoding, self.prefilling, waiting
        if self.suspect is None:
            return everyone
        decoding, prefilling, waiting = ([s for s in group if s is self.suspect] for group in everyone)
        return decoding, prefilling, waiting

    def brought(self, draft: Draft) -> int:
        """The last step that brings its tokens, here or at the executor, before the draft begins."""
        return max(self.returned, draft.step - self.stages)

    def full(self, draft: Draft) -> bool:
        """Whether the draft has its share of the sequences: as many steps as stages are alike."""
        return self.stages > 1 and len(draft.rows) * self.stages >= self.slots

    def match(self, sequence: Sequence, draft: Draft) -> tuple[list[Entry], bool]:
        """Cached blocks that continue the sequence, and whether its next block is computed by this draft.

        At least one known token is always left to compute, and all of them where the prompt's are scored.
        """
        pool, done = self.pool, len(sequence.entries)
        if not sequence.indexed or sequence.scores or sequence.computed != done * pool.block_size:
            return [], False
        most = (len(sequence.tokens) - 1) // pool.block_size
        return pool.index.match(
            sequence.tokens, sequence.entries, most, sequence.request.cache_salt, draft.step
        )

    def need(self, sequence: Sequence, entries: list[Entry]) -> int:
        """Blocks that its claim takes from the available ones, revived cached ones included."""
        return self._claim(sequence) - len(entries) + self.pool.unreferenced(entries)

    def admit(self, sequence: Sequence, entries: list[Entry], draft: Draft) -> None:
        """The sequence takes a slot; it must be free."""
        self.waiting.remove(sequence)
        sequence.change(Change.ADMIT)
        self.by_incarnation.pop(sequence.incarnation, None)
        self._incarnation += 1
        sequence.incarnation = self._incarnation
        self.by_incarnation[sequence.incarnation] = sequence
        sequence.taken = draft.step
        sequence.slot = self.free_slots.pop()
        self.prefilling.join(sequence)
        draft.take(sequence)
        sequence.logprobs.clear()
        self.counters.queried_tokens += 0 if sequence.scores else len(sequence.tokens)
        self.adopt(sequence, entries, draft)
        if sequence.cached is None:
            sequence.cached = min(sequence.computed, sequence.prompt_length)

    def adopt(self, sequence: Sequence, entries: list[Entry], draft: Draft) -> None:
        """Goes on behind these cached blocks; the sequence stands at a block border."""
        if not entries:
            return
        size = self.pool.block_size
        sequence.blocks += self.pool.share(entries)
        sequence.entries += entries
        sequence.capacity += size * len(entries)
        sequence.computed += size * len(entries)
        sequence.step = draft.step
        self.counters.hit_tokens += size * len(entries)

    def reachable(self, sequence: Sequence) -> int:
        """The most tokens that the sequence can compute with the blocks there are."""
        return sequence.capacity + self.pool.available * self.pool.block_size - sequence.computed

    def reach(self, sequence: Sequence, position: int) -> None:
        """Gives the sequence blocks for all positions before `position`. Raises OutOfBlocks."""
        while sequence.capacity < position:
            sequence.blocks.append(self.pool.take())
            sequence.capacity += self.pool.block_size

    def compute(self, sequence: Sequence, count: int, draft: Draft) -> None:
        """Places a chunk. The blocks that it fills can be read by later plans."""
        self.reach(sequence, sequence.computed + count)
        draft.chunk(sequence, count)
        self.enter(sequence, sequence.computed, draft.step)
        if sequence.computed == len(sequence.tokens):
            sequence.change(Change.WHOLE)
            self.prefilling.remove(sequence)
            self.decoding.append(sequence)

    def enter(self, sequence: Sequence, computed: int, step: int) -> None:
        """Enters the full blocks before position `computed` into the index."""
        size, entries = self.pool.block_size, sequence.entries
        while sequence.indexed and len(entries) < computed // size:
            start = len(entries) * size
            entry = self.pool.enter(
                entries[-1] if entries else None,
                tuple(sequence.tokens[start : start + size]),
                sequence.request.cache_salt,
                sequence.blocks[len(entries)],
                step,
            )
            if entry is None:
                sequence.indexed = False
            else:
                entries.append(entry)

    def flush(self) -> None:
        """What is cached is forgotten, and what is computed for those that run now is shared with nobody."""
        for sequence in self.running:
            sequence.indexed = False
        self.counters.flushed_blocks += self.pool.flush()

    def reclaimable(self, sequence: Sequence) -> int:
        """At most so many blocks come to this one when all of strictly lower priority leave."""
        victims = lower(sequence, self.running)
        return sum(
            self._claim(other) if self._reserves or other.state is State.PREFILLING else len(other.blocks)
            for other in victims
        ) + (self._watermark if len(victims) == self.slots - len(self.free_slots) else 0)

    def make_room(self, sequence: Sequence, draft: Draft) -> bool:
        """Sees to it that one block is available to a decode, by preemption if need be."""
        while not self.pool.available:
            victim = victim_of(sequence, self.running)
            if victim is None:
                return False
            self.preempt(victim, draft)
        return True

    def preempt(self, sequence: Sequence, draft: Draft) -> None:
        """Takes slot and blocks away. Results of sent plans still count; the row in the draft does not."""
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += sequence.computed
        never_taken = draft.drop(sequence)
        for entry in sequence.entries:
            if entry.step == draft.step:
                self.pool.withdraw_entry(entry)
        if sequence.step == draft.step:
            sequence.step = draft.step - 1  # the last that may have named it
        self._leave(sequence, Change.LEAVE, release=not never_taken)
        self.waiting.join(sequence)

    def end(self, sequence: Sequence) -> None:
        """The sequence is over; whatever it held is free for later plans."""
        if sequence.running:
            self._leave(sequence, Change.END)
        else:
            self.waiting.remove(sequence)
            sequence.change(Change.END)
        self.by_incarnation.pop(sequence.incarnation, None)

    def lose(self, since: int) -> None:
        """Undoes the plans from step `since` on: all that they named or gave blocks to waits again.

        Nothing that those plans were to write can be read any more, and their results name nobody.
        """
        self.pool.withdraw(since)
        for sequence in self.running:
            if sequence.step >= since:
                self._lose(sequence)
        for sequence in self.waiting:
            if sequence.step >= since:
                self.by_incarnation.pop(sequence.incarnation, None)

    def disown(self, sequence: Sequence) -> None:
        """The executor could not run it, or its logits were no numbers: none of its own KV is trusted.

        A chunk may have spoilt what the one before it shares with others, and shows only in the last.
        """
        missing = {entry for entry in sequence.entries if entry.step >= sequence.taken}
        for entry in missing:
            self.pool.withdraw_entry(entry)
        for other in self.running:
            if other is not sequence and not missing.isdisjoint(other.entries):
                self._lose(other)

    def dissolve(self) -> None:
        """The executor is gone: everything waits again, with the tokens it has."""
        for sequence in self.running:
            sequence.change(Change.LEAVE)
            sequence.clear()
            self.waiting.join(sequence)
        for sequence in self.waiting:
            sequence.step = sequence.incarnation = 0  # both count within an attachment

    def releases(self) -> list[int]:
        """Slots that the next plan releases."""
        slots, self._releasing = self._releasing, []
        return slots

    def rotate(self, count: int) -> None:
        """The first `count` decodes go to the end: they had their turn."""
        self.decoding = self.decoding[count:] + self.decoding[:count]

    def check(self) -> None:
        """Raises AssertionError unless every block and slot is held by exactly those who say so."""
        running = self.running
        self.pool.check([sequence.blocks for sequence in running])
        slots = [sequence.slot for sequence in running] + self.free_slots
        assert sorted(slots) == list(range(self.slots)), "a slot is lost or held twice"
        assert all(sequence.state is State.WAITING and not sequence.blocks for sequence in self.waiting)
        assert self.waiting == sorted(self.waiting, key=_key)

    def _claim(self, sequence: Sequence) -> int:
        """Blocks that a sequence which is let in may count on, those that it holds included."""
        return self.pool.blocks_for(sequence.limit if self._reserves else len(sequence.tokens))

    def _lose(self, sequence: Sequence) -> None:
        self.by_incarnation.pop(sequence.incarnation, None)
        self._leave(sequence, Change.LEAVE)
        self.waiting.join(sequence)

    def _leave(self, sequence: Sequence, change: Change, release: bool = True) -> None:
        if sequence.state is State.PREFILLING:
            self.prefilling.remove(sequence)
        else:
            self.decoding.remove(sequence)
        sequence.change(change)
        self.pool.give_back(sequence.blocks)
        self.free_slots.append(sequence.slot)
        if release:
            self._releasing.append(sequence.slot)
        sequence.clear()
