"""What running requests have brought so far, folded into one record at the end or when parked. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pillion.contracts.entries import ChoiceRecord, Record, Request, TokenLogprob, Tokens


class HistoryDiffers(Exception):
    """An item does not continue what is journalled. Two histories are never joined."""


@dataclass(slots=True)
class _Choice:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    cached: int = 0
    prompt_logprobs: bytes | None = None
    last: Tokens | None = None  # the item with `finish`

    def add(self, item: Tokens) -> None:
        known = len(self.tokens)
        skip = known - item.position
        fresh = item.tokens[max(skip, 0) :]
        if skip < 0 or (self.last is not None and fresh):
            raise HistoryDiffers(
                f"choice {item.choice} of request {item.request} has {known} tokens"
                f"{' and has ended' if self.last else ''}; an item starts at {item.position}"
            )
        if tuple(self.tokens[item.position : item.position + len(item.tokens)]) != item.tokens[:skip]:
            raise HistoryDiffers(f"choice {item.choice} of request {item.request} has other tokens")
        if not known:
            # In a later life the prompt is found in the index that it filled itself.
            self.cached, self.prompt_logprobs = item.cached, item.prompt_logprobs
        self.tokens.extend(fresh)
        if item.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(item.logprobs[skip:])
        if item.finish is not None:
            self.last = self.last or item

    def record(self, parked: bool) -> ChoiceRecord:
        last, open_end, error = self.last, "", None
        if last is None and not parked:
            open_end, error = "error", "ended without a result"
        return ChoiceRecord(
            tokens=tuple(self.tokens),
            finish=last.finish or "error" if last else open_end,
            stop_token=last.stop_token if last else None,
            cached=self.cached,
            logprobs=tuple(self.logprobs) if self.logprobs is not None else None,
            error=last.error if last else error,
            prompt_logprobs=self.prompt_logprobs,
        )

    def item(self, request: str, choice: int) -> Tokens:
        """From position 0 on."""
        last = self.last
        return Tokens(
            request, choice, 0, tuple(self.tokens), last.finish if last else None,
            last.stop_token if last else None, self.cached,
            tuple(self.logprobs) if self.logprobs is not None else None, last.error if last else None,
            self.prompt_logprobs,
        )  # fmt: skip

    def adopt(self, request: str, choice: int, record: ChoiceRecord) -> None:
        """Goes on from what an earlier life left."""
        self.tokens = list(record.tokens)
        self.logprobs = None if record.logprobs is None else list(record.logprobs)
        self.cached, self.prompt_logprobs = record.cached, record.prompt_logprobs
        if record.finish:
            self.end(request, choice, record.finish, record.stop_token, record.error)

    def end(
        self, request: str, choice: int, finish: str, stop_token: int | None = None, error: str | None = None
    ) -> None:
        at = len(self.tokens)
        self.last = self.last or Tokens(request, choice, at, (), finish, stop_token, error=error)


@dataclass(slots=True)
class Opened:
    """A request that runs here, with its unacknowledged entry."""

    request: Request
    entry: str  # id in the run stream
    since: str  # the journal's last id when it was opened: its items come after
    earlier: int = 0  # tokens that earlier lives brought
    choices: dict[int, _Choice] = field(default_factory=dict)
    began: float | None = None  # seconds since the epoch, of the first step that carried any of it
    carried: bool = False  # the journal does not have yet what an earlier life brought

    def choice(self, index: int) -> _Choice:
        return self.choices.setdefault(index, _Choice())

    def done(self) -> dict[int, tuple[int, ...]]:
        return {index: tuple(choice.tokens) for index, choice in self.choices.items()}

    def items(self) -> tuple[Tokens, ...]:
        """All of it, one item a choice that has anything."""
        return tuple(
            choice.item(self.request.id, index)
            for index, choice in sorted(self.choices.items())
            if choice.tokens or choice.last is not None
        )

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

    def __iter__(self) -> Iterator[Opened]:
        return iter(tuple(self._opened.values()))

    def get(self, request: str) -> Opened | None:
        return self._opened.get(request)

    def open(self, request: Request, entry: str, since: str, record: Record | None = None) -> Opened:
        """`record`: what an earlier life of the request left."""
        opened = self._opened[request.id] = Opened(request, entry, since, carried=record is not None)
        for index, choice in enumerate(record.choices if record else ()):
            opened.choice(index).adopt(request.id, index, choice)
            opened.earlier += len(choice.tokens)
        for index in request.ended:
            opened.choice(index).end(request.id, index, "cancelled")
        return opened

    def add(self, items: Iterable[Tokens]) -> None:
        """Raises HistoryDiffers. Items of requests that are not opened are passed over."""
        for item in items:
            opened = self._opened.get(item.request)
            if opened is not None:
                opened.choice(item.choice).add(item)

    def close(self, request: str, parked: bool = False, timeline: bytes = b"") -> tuple[Opened, Record]:
        """The request, no longer held here: finished, or parked. Raises KeyError."""
        opened = self._opened.pop(request)
        choices = range(len(opened.request.prompts) * opened.request.n)
        folded = tuple(opened.choice(index).record(parked) for index in choices)
        return opened, Record(request, folded, timeline)

    def by_gateway(self) -> dict[str, list[Request]]:
        """Opened requests by the gateway that waits for them."""
        requests: dict[str, list[Request]] = {}
        for opened in self._opened.values():
            requests.setdefault(opened.request.gateway, []).append(opened.request)
        return requests

    def oldest(self) -> str | None:
        """The journal may be trimmed up to here; None where nothing is opened."""
        return min((opened.since for opened in self._opened.values()), key=entry_key, default=None)


def entry_key(identity: str) -> tuple[int, int]:
    """Orders stream entry ids."""
    milliseconds, _, sequence = identity.partition("-")
    return int(milliseconds), int(sequence or 0)
