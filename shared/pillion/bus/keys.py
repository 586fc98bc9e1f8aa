"""The keys of a stack. One hash tag holds them in one slot, so that every hand-over can be one script."""

from dataclasses import dataclass

OUT_MAXLEN = 20_000  # entries of `out` and `usage`; a gateway that is further behind reads the journal
DEAD_MAXLEN = 1_000  # entries set aside that are kept for whoever looks
QUEUE_TTL = 5  # seconds that admission's word of what waits stands
HOLDER_TTL = 86_400  # seconds that Redis knows where a request runs; it is deleted with its end


@dataclass(frozen=True, slots=True)
class Keys:
    stack: str

    def _key(self, *parts: str) -> str:
        return ":".join((f"pillion:{{{self.stack}}}", *parts))

    @property
    def submit(self) -> str:
        """Stream gateway to admission. Read by a group; never trimmed."""
        return self._key("submit")

    def run(self, replica: str) -> str:
        """Stream admission to scheduler. Read by a group; never trimmed."""
        return self._key("run", replica)

    def out(self, gateway: str) -> str:
        """Stream scheduler (and admission's refusals) to one gateway. Trimmed."""
        return self._key("out", gateway)

    @property
    def cancel(self) -> str:
        """Stream of cancels, read by admission and every scheduler. Trimmed."""
        return self._key("cancel")

    def control(self, replica: str) -> str:
        """Stream of administrators' words to the holder of a replica's lease. Trimmed; gone when quiet."""
        return self._key("control", replica)

    def tombstone(self, request: str) -> str:
        """Says that a request was cancelled, to whoever reads its entry later."""
        return self._key("tomb", request)

    def parking(self, request: str) -> str:
        """Holds the last life of a request that was to be parked, for whoever reads its entry later."""
        return self._key("parking", request)

    def stream(self, request: str) -> str:
        """Hash, the request's head: `head` (what any gateway needs to answer it), `owner` (the gateway that
        does), `claim` (by which connection), `life`, `parked` (the last life that runs no more),
        `refused` (the refusal with which it ended for good) where it did, and `told` (how its tokens went to
        its client, in the last connection that ended).
        """
        return self._key("stream", request)

    def once(self, tenant: str, key: str) -> str:
        """The request that a tenant sent under this Idempotency-Key."""
        return self._key("once", tenant, key)

    @property
    def beats(self) -> str:
        """Stream of heartbeats. Trimmed."""
        return self._key("beats")

    @property
    def replicas(self) -> str:
        """Hash replica to its last heartbeat, for who comes later."""
        return self._key("replicas")

    @property
    def usage(self) -> str:
        """Stream scheduler to admission, and gateways that ask: first tokens, use of what ended. Trimmed."""
        return self._key("usage")

    @property
    def tenants(self) -> str:
        """Hash tenant to its account at admission."""
        return self._key("tenants")

    @property
    def reserved(self) -> str:
        """Hash request to what is set aside for it, from admission to its end."""
        return self._key("reserved")

    @property
    def queue(self) -> str:
        """What waits in admission, as it says once a second; gone soon where none is active."""
        return self._key("queue")

    def journal(self, replica: str) -> str:
        """Stream of a replica's steps, trimmed to what running requests need."""
        return self._key("journal", replica)

    def holder(self, request: str) -> str:
        """Says which replica's run stream has the request: it is there exactly as long as the entry is."""
        return self._key("holder", request)

    def record(self, request: str) -> str:
        """The folded journal of a finished or parked request."""
        return self._key("record", request)

    def explained(self, request: str) -> str:
        """A running request's timeline, for a moment: for the gateway that asked for it."""
        return self._key("explained", request)

    def lease(self, holder: str) -> str:
        """Holds the epoch of the living holder."""
        return self._key("lease", holder)

    def epoch(self, holder: str) -> str:
        """Holds the last epoch that was given out."""
        return self._key("epoch", holder)

    @property
    def marker(self) -> str:
        """Stands as long as the stack's data does; another one, or none, says that data was lost."""
        return self._key("marker")

    @property
    def dead(self) -> str:
        """Stream of entries that were delivered too often or could not be read."""
        return self._key("dead")
