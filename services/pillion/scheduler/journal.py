"""What running requests have brought so far, folded into one record when a request is finished. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pillion.contracts.entries import ChoiceRecord, Record, Request, TokenLogprob, Tokens


class HistoryDiffers(Exception):
    """An item does not continue what is journalled. Two histories are never joined."""


@dataclass(slots=True)
class _Choice:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    cached: int = 0
    last: Tokens | None = None  # the item with `finish`

    def add(self, item: Tokens) -> None:
        known = len(self.tokens)
        if self.last is not None or item.position > known:
            raise HistoryDiffers(
                f"choice {item.choice} of request {item.request} has {known} tokens"
                f"{' and has ended' if self.last else ''}; an item starts at {item.position}"
            )
        skip = known - item.position
        if tuple(self.tokens[item.position :]) != item.tokens[:skip]:
            raise HistoryDiffers(f"choice {item.choice} of request {item.request} has other tokens")
        self.tokens.extend(item.tokens[skip:])
        if item.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(item.logprobs[skip:])
        self.cached = self.cached or item.cached
        if item.finish is not None:
            self.last = item

    def record(self) -> ChoiceRecord:
        last = self.last
        return ChoiceRecord(
            tokens=tuple(self.tokens),
            finish=last.finish or "error" if last else "error",
            stop_token=last.stop_token if last else None,
            cached=self.cached,
            logprobs=tuple(self.logprobs) if self.logprobs is not None else None,
            error=last.error if last else "ended without a result",
        )


@dataclass(slots=True)
class Opened:
    """A request that runs here, with its unacknowledged entry."""

    request: Request
    entry: str  # id in the run stream
    since: str  # the journal's last id when it was opened: its items come after
    choices: dict[int, _Choice] = field(default_factory=dict)

    def done(self) -> dict[int, tuple[int, ...]]:
        return {index: tuple(choice.tokens) for index, choice in self.choices.items()}

    def ended(self) -> frozenset[int]:
        return frozenset(index for index, choice in self.choices.items() if choice.last is not None)


class Ledger:
    """All opened requests of a replica."""

    def __init__(self) -> None:
        self._opened: dict[str, Opened] = {}

    def __contains__(self, request: str) -> bool:
        return request in self._opened

    def __len__(self) -> int:
        return len(self._opened)

    def get(self, request: str) -> Opened | None:
        return self._opened.get(request)

    def open(self, request: Request, entry: str, since: str) -> Opened:
        opened = self._opened[request.id] = Opened(request, entry, since)
        return opened

    def add(self, items: Iterable[Tokens]) -> None:
        """Raises HistoryDiffers. Items of requests that are not opened are passed over."""
        for item in items:
            opened = self._opened.get(item.request)
            if opened is not None:
                opened.choices.setdefault(item.choice, _Choice()).add(item)

    def close(self, request: str) -> tuple[Opened, Record]:
        """The finished request, no longer held here. Raises KeyError."""
        opened = self._opened.pop(request)
        choices = opened.choices
        size = max(choices, default=-1) + 1
        return opened, Record(
            request=request, choices=tuple(choices.get(index, _Choice()).record() for index in range(size))
        )

    def by_gateway(self) -> dict[str, list[str]]:
        """Opened requests by the gateway that waits for them."""
        requests: dict[str, list[str]] = {}
        for name, opened in self._opened.items():
            requests.setdefault(opened.request.gateway, []).append(name)
        return requests

    def oldest(self) -> str | None:
        """The journal may be trimmed up to here; None where nothing is opened."""
        return min((opened.since for opened in self._opened.values()), key=entry_key, default=None)


def entry_key(identity: str) -> tuple[int, int]:
    """Orders stream entry ids."""
    milliseconds, _, sequence = identity.partition("-")
    return int(milliseconds), int(sequence or 0)
