"""What a part of the fuzzer did and found."""

from collections import Counter
from dataclasses import dataclass, field

KEPT = 20  # findings that are told in full


@dataclass(slots=True)
class Findings:
    """`outcomes` counts by what came of each input; `wrong` says what should not have been, each once."""

    part: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    wrongs: int = 0
    _told: set[str] = field(default_factory=set)

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def blame(self, reason: str, data: bytes | str = b"") -> None:
        self.note("wrong")
        self.wrongs += 1
        if len(self.wrong) < KEPT and reason not in self._told:
            self._told.add(reason)
            self.wrong.append(f"{reason}; input: {data!r}"[:2000] if data else reason[:2000])

    def raw(self) -> dict[str, object]:
        """As JSON can hold it."""
        return {"outcomes": dict(self.outcomes), "wrong": self.wrong, "wrongs": self.wrongs}

    @property
    def inputs(self) -> int:
        return self.outcomes.total()
