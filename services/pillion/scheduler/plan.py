"""A plan while it is made: rows are placed, seldom dropped, and then become one frozen Plan."""

from pillion.steptime import Work

from .messages import Plan, Take
from .sequence import Sequence
from .work import of_rows


class Draft:
    """The rows of step `step`. Decodes are placed before chunks."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[Sequence] = []
        self.steps = 1
        self.tokens = 0  # of one step
        self.decodes = 0
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._samples: list[int] = []
        self._scored: list[int] = []
        self._taken: list[Sequence] = []

    def decode(self, sequences: list[Sequence]) -> None:
        """Grants each of these one token. Their blocks must reach to the position that is computed."""
        step = self.step
        starts = [sequence.computed for sequence in sequences]
        for sequence in sequences:
            sequence.computed += 1
            sequence.step = step
        self.rows += sequences
        self._starts += starts
        self._counts += [1] * len(sequences)
        self._samples += [1] * len(sequences)
        self._scored += [0] * len(sequences)
        self.decodes += len(sequences)
        self.tokens += len(sequences)

    def repeat(self, steps: int) -> None:
        """Grants each row a token for each of so many steps, or as many as it may still get.

        All rows are decodes, and their blocks reach to what they compute.
        """
        self.steps = steps
        for row, sequence in enumerate(self.rows):
            more = min(steps - 1, sequence.limit - sequence.computed)
            self._samples[row] += more
            sequence.computed += more

    def chunk(self, sequence: Sequence, count: int) -> None:
        """Computes the next `count` known tokens; samples when they are the last."""
        self.rows.append(sequence)
        self._starts.append(sequence.computed)
        self._counts.append(count)
        self._scored.append(sequence.scored(sequence.computed, sequence.computed + count))
        sequence.computed += count
        sequence.step = self.step
        self._samples.append(int(sequence.computed == len(sequence.tokens)))
        self.tokens += count

    def take(self, sequence: Sequence) -> None:
        """The sequence gets its slot with this plan."""
        self._taken.append(sequence)

    def drop(self, sequence: Sequence) -> bool:
        """Takes the sequence's row out. Returns whether its slot was to be taken by this plan."""
        if sequence in self.rows:
            row = self.rows.index(sequence)
            self.tokens -= self._counts[row]
            self.decodes -= row < self.decodes
            for column in (self.rows, self._starts, self._counts, self._samples, self._scored):
                del column[row]
        if sequence in self._taken:
            self._taken.remove(sequence)
            return True
        return False

    @property
    def chunks(self) -> int:
        """How many rows are chunks."""
        return len(self.rows) - self.decodes

    @property
    def ends(self) -> tuple[int, ...]:
        """For each row the position behind the last that it computes."""
        counts = self._counts if self.steps == 1 else self._samples
        return tuple([start + count for start, count in zip(self._starts, counts, strict=True)])

    @property
    def work(self) -> Work:
        """Of the first step."""
        return of_rows(self.decodes, self._starts, self._counts, self._samples, sum(self._scored))

    def finish(self, release: list[int], budget: int) -> Plan:
        """The plan. Marks the granted blocks as known to the executor."""
        takes = []
        for sequence in self._taken:
            sequence.sent = len(sequence.blocks)
            takes.append(
                Take(
                    slot=sequence.slot,
                    incarnation=sequence.incarnation,
                    request=sequence.request,
                    choice=sequence.choice,
                    tokens=tuple(sequence.tokens),
                    prompt_length=sequence.prompt_length,
                    blocks=tuple(sequence.blocks),
                    max_tokens=sequence.max_tokens,
                )
            )
        grants = [len(sequence.blocks) - sequence.sent for sequence in self.rows]
        blocks: list[int] = []
        if any(grants):
            for sequence, granted in zip(self.rows, grants, strict=True):
                if granted:
                    blocks += sequence.blocks[sequence.sent :]
                    sequence.sent += granted
        return Plan(
            step=self.step,
            release=tuple(release),
            take=tuple(takes),
            slots=tuple([sequence.slot for sequence in self.rows]),
            starts=tuple(self._starts),
            counts=tuple(self._counts),
            samples=tuple(self._samples),
            block_counts=tuple(grants),
            blocks=tuple(blocks),
            decodes=self.decodes,
            budget=budget,
            scored=sum(self._scored),
        )
