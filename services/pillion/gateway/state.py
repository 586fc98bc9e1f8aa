"""What the handlers share: the parts of one gateway process, and the requests that are live in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span

from pillion import clock, ids
from pillion.bus import Connection, Durable, Keys, Reader
from pillion.config import DEFAULT_SLO_TBT, Config
from pillion.contracts.entries import Facts
from pillion.gateway import auth
from pillion.gateway.account import METRICS, Accounts
from pillion.gateway.call import Bus, Call
from pillion.gateway.compiler import Compiler
from pillion.gateway.fields import shown
from pillion.gateway.heads import Heads
from pillion.gateway.health import Replicas, Verdict
from pillion.gateway.hosts import Hosts
from pillion.gateway.model import Model, Texter
from pillion.gateway.outbox import Outbox
from pillion.gateway.protocol.entry import Limits
from pillion.gateway.protocol.errors import ApiError, unavailable
from pillion.gateway.recent import Recent
from pillion.gateway.streams import Streams
from pillion.gateway.unknown import Unknown
from pillion.gateway.vllm import Vllm
from pillion.telemetry import Metrics, names, tracing, vllm
from pillion.version import VERSION

RETRY_UNREADY = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose request it is, and under which names it runs."""

    identity: str  # the system's id
    tenant: str
    label: str | None  # the client's own id
    span: Span  # the server's


class State:
    """One gateway's. Touched by tasks of one event loop only."""

    def __init__(self, config: Config, url: str) -> None:
        """`url` is Redis'. Connects on first use. Raises ConfigError for keys that cannot be read."""
        self.config = config
        self.id = ids.process_id()
        self.started = int(clock.wall())
        keys = Keys(config.stack.stack)
        self.connections = {
            name: Connection(url, f"gateway-{self.id}-{name}")
            for name in ("write", "read", "out", "beats", "alive", "watch", "usage")
        }
        write, read = self.connections["write"], self.connections["read"]
        # As many again as admission holds: it refuses by then, and says why.
        bound = 2 * config.admission.max_waiting
        self.durable = Durable(write) if config.stack.durability == "disk" else None
        self.outbox = Outbox(write, keys, self.id, bound, config.scheduler.journal_retention, self.durable)
        self.presence = Outbox(self.connections["alive"], keys, self.id, bound)
        compat = config.telemetry.metrics_compat == "vllm"
        counted = [*vllm.BY_REQUEST, vllm.STEP_TOKENS] if compat else []
        self.metrics = Metrics("gateway", VERSION, [*METRICS, *counted])
        self.reader = Reader(self.metrics.unreadable)
        self.streams = Streams(self.connections["out"], read, keys, self.id, self.reader)
        self.bus = Bus(self.streams, self.outbox, Heads(read, keys, self.reader))
        self.names = keys
        self.replicas = Replicas()
        self.vllm = Vllm(self.metrics, lambda: self.replicas.speaking(clock.monotonic())) if compat else None
        self.keys = auth.Keys(config.gateway.api_key, config.gateway.api_keys_file)
        self.admins = auth.Keys(
            (config.gateway.admin_key,) if config.gateway.admin_key else (),
            kind="the administrator's key (--admin-key)",
        )
        self.hosts = Hosts(config.gateway.host, config.gateway.allowed_hosts, keys=self.keys.needed)
        self.texter = Texter()
        self.compiler = Compiler()
        self.metrics[names.INBOXES].set_function(lambda: float(len(self.streams)))
        self.recent = Recent()
        self.accounts = Accounts(
            self.metrics,
            tracing.tracer(),
            config.scheduler.slo_tbt or DEFAULT_SLO_TBT,
            config.admission.slo_ttft,
            self.recent,
            self.vllm,
        )
        self.unknown = Unknown(config.gateway.unknown_fields, self.metrics[names.IGNORED_FIELDS].inc)
        self.model: Model | None = None
        self.draining = False
        self.calls: dict[str, Call] = {}
        self._labels: set[tuple[str, str]] = set()

    # --- what can be run ---------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Whether new work is taken: see `Replicas.verdict`, and draining, loading."""
        if self.draining:
            return Verdict(False, "draining", "The server is shutting down.")
        if self.model is None:
            return Verdict(False, "loading", "The gateway is still loading the tokenizer.")
        return self.replicas.verdict(self.model.name, clock.monotonic())

    def served(self, name: str | None) -> Model:
        """The model of that name, or the served one for None. Raises ApiError: 404, 503 while loading."""
        if self.model is None:
            raise unavailable("loading", "The gateway is still loading the tokenizer.", RETRY_UNREADY)
        if name is not None and name != self.model.name:
            raise ApiError(
                404, f"The model {shown(name)} does not exist here; {self.model.name!r} does.",
                param="model", code="model_not_found",
            )  # fmt: skip
        return self.model

    def facts(self, model: Model) -> Facts | None:
        return self.replicas.models().get(model.name)

    def limits(self, facts: Facts) -> Limits:
        return Limits(
            facts.max_model_len, facts.vocab_size, self.config.gateway.max_choices, facts.end_tokens
        )

    def ready(self, model: Model) -> Facts:
        """The model's facts. Raises ApiError (503) while nothing can run it."""
        verdict = self.verdict()
        facts = self.facts(model)
        if not verdict.ready or facts is None:
            raise unavailable(verdict.reason, verdict.message, RETRY_UNREADY)
        return facts

    # --- live requests -----------------------------------------------------------------------------

    @contextmanager
    def live(self, call: Call) -> Iterator[Call | None]:
        """Gives the call that was there for the same request: its connection's client came back."""
        identity = call.request.id
        former = self.calls.get(identity)
        self.calls[identity] = call
        try:
            yield former
        finally:
            if self.calls.get(identity) is call:
                del self.calls[identity]

    @contextmanager
    def named(self, label: str | None, tenant: str) -> Iterator[None]:
        """A client's own name for a request is one live request's at a time. Raises ApiError (409)."""
        if label is None:
            yield
            return
        key = (tenant, label)
        if key in self._labels:
            raise ApiError(
                409,
                "A request with this id is still running.",
                param="request_id",
                code="duplicate_request_id",
            )
        self._labels.add(key)
        try:
            yield
        finally:
            self._labels.discard(key)

    def cancel(self, identity: str) -> None:
        """Ends a request for good, here or at another gateway."""
        call = self.calls.get(identity)
        if call is None or not call.stop():
            self.outbox.cancel(identity, None, "the client cancelled it")
