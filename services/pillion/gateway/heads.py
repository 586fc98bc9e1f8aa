"""The head of a request: what any gateway of the stack needs to answer it, and how the request stands.

It is written with the submit and lives as long as the request's record. Who answers the request is its owner;
ownership passes on in one script with the submit of the next life.
"""

from dataclasses import dataclass
from hashlib import sha256

from pillion.bus import Connection, Keys, Reader
from pillion.contracts.entries import SCHEMA, Record, Refusal, Request, Struct, Tokens
from pillion.contracts.timeline import Delivery
from pillion.gateway.answers import Answer, Head, Pieces
from pillion.gateway.protocol.request import Output


class StreamHead(Struct, frozen=True):
    """A request as its client sent it, and what its answer needs beside the tokens."""

    request: Request  # in its first life
    created: int  # seconds since the epoch, as the answer has it
    fingerprint: str | None
    output: Output
    echoed: tuple[str, ...] = ()  # the prompts' texts, where they are echoed
    body: str = ""  # hash of the HTTP request, where it had an Idempotency-Key
    label: str | None = None  # the client's own id
    v: int = SCHEMA

    def answer(self, pieces: Pieces) -> Answer:
        """A new one, that has seen no token."""
        request = self.request
        head = Head(request.id, self.created, request.model, self.fingerprint, request.prompts, self.echoed)
        return Answer(self.output, head, pieces)


@dataclass(frozen=True, slots=True)
class Once:
    """An Idempotency-Key and what it was sent with."""

    name: str  # hash of the key
    body: str  # hash of method, path and body
    former: str = ""  # a request of which nothing is left, and that may be followed by another one

    @staticmethod
    def of(key: str, path: str, body: bytes) -> "Once":
        return Once(
            sha256(key.encode()).hexdigest()[:32], sha256(path.encode() + b"\0" + body).hexdigest()[:32]
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A request as Redis has it."""

    head: StreamHead
    owner: str  # the gateway that answers it, or did last
    life: int
    parked: bool  # this life runs no more
    cancelled: bool  # for good, before it ended by itself
    record: Record | None  # what the lives before this one brought, or all of them
    refused: Refusal | None = None  # what it was given up with, for good
    told: Delivery | None = None  # how its tokens came, in the last connection that ended

    @property
    def finished(self) -> bool:
        """Whether no life can follow."""
        return self.refused is not None or (self.record is not None and self.record.finished)

    @property
    def end(self) -> str:
        """In a word, of one that is `finished`."""
        ends = {choice.finish for choice in self.record.choices} if self.record else set()
        if self.refused is not None or ends & {"error", "impossible"}:
            return "failed"
        return "cancelled" if self.cancelled and "cancelled" in ends else "finished"

    def items(self) -> list[Tokens]:
        """What the record has, an item a choice."""
        return [] if self.record is None else items(self.record)


def items(record: Record) -> list[Tokens]:
    """The record, an item a choice; without an end where the choice has none."""
    return [
        Tokens(
            record.request, index, 0, choice.tokens, choice.finish or None, choice.stop_token,
            choice.cached, choice.logprobs, choice.error, choice.prompt_logprobs,
        )
        for index, choice in enumerate(record.choices)
    ]  # fmt: skip


class Heads:
    """Reads them. Writing is the outbox's."""

    def __init__(self, connection: Connection, keys: Keys, read: Reader) -> None:
        self._connection = connection
        self._read = read
        self._keys = keys

    async def find(self, request: str) -> Standing | None:
        """None for who is unknown, or forgotten. Raises RedisError."""
        fields, tomb, kept = await self._connection.pipeline(
            ("HMGET", self._keys.stream(request), "head", "owner", "life", "parked", "refused", "told"),
            ("EXISTS", self._keys.tombstone(request)),
            ("GET", self._keys.record(request)),
        )
        head, owner, life, parked, word, told = fields
        if head is None:
            return None
        where = f"of request {request}"
        record = None if kept is None else self._read(kept, Record, where)
        known = self._read(head, StreamHead, where)
        refused = None if word is None else self._read(word, Refusal, where)
        if known is None or (record is None) != (kept is None) or (refused is None) != (word is None):
            return None  # it cannot be taken up
        delivery = None if told is None else self._read(told, Delivery, where)
        return Standing(
            known, owner.decode(), int(life), parked == life, bool(tomb), record, refused, delivery
        )

    async def named(self, tenant: str, once: Once) -> str | None:
        """The request that was sent under the key. Raises RedisError."""
        value = await self._connection.call("GET", self._keys.once(tenant, once.name))
        return None if value is None else value.decode()
