"""Admission's process: reads submissions, cancels and heartbeats, and lets the desk decide."""

import asyncio
import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import TypeVar

from redis.exceptions import RedisError

from pillion import ids
from pillion.actors import Exit, Supervisor
from pillion.admission.desk import METRICS, Beats, Cancels, Data, Desk, Submissions, Words
from pillion.admission.policy import configured
from pillion.admission.spans import GROUP, Spans
from pillion.admission.takeover import TakeOver
from pillion.bus import Connection, Entry, Group, Keys, Lease, Reader, Tail, Watch, retrying
from pillion.bus.keys import QUEUE_TTL
from pillion.config import Config
from pillion.contracts.entries import Cancel, Heartbeat, Struct, Usage, encode
from pillion.telemetry import Metrics, tracing
from pillion.telemetry.endpoint import endpoint
from pillion.words import counted

log = logging.getLogger(__name__)

TELL_QUEUE = 1.0  # seconds between two words of what waits

S = TypeVar("S", bound=Struct)


async def run(config: Config) -> int:
    """Serves until SIGTERM. Returns the exit code.

    One admission of a stack is active, the others stand by. What waits at the end stays unacknowledged in
    `submit`, for the successor.
    """
    if config.stack.redis is None:
        log.error("admission needs a Redis: set --redis URL, or start everything with `pillion up`")
        return Exit.USAGE
    supervisor = Supervisor("admission", config.gateway.drain_timeout)
    metrics = Metrics("admission", version("pillion"), METRICS)
    admission = Admission(config.stack.redis, config, metrics)
    supervisor.add("lease", admission.hold_lease)
    supervisor.add("submissions", admission.read_submissions)
    supervisor.add("pardon", admission.pardon)
    supervisor.add("cancels", admission.read_cancels)
    supervisor.add("heartbeats", admission.read_heartbeats)
    supervisor.add("usage", admission.read_usage)
    supervisor.add("queue", admission.tell_queue)
    supervisor.add("watch", admission.watch.run)
    supervisor.add("take-over", admission.take_over)
    # It owns what is decided and under way; with that in doubt a new process starts from the streams.
    supervisor.add("desk", admission.desk.run, max_restarts=0)
    # Nothing runs here that could end: all is handed on, however short the grace period is.
    supervisor.on_drain(admission.leave, admission.leave)
    supervisor.add("metrics", lambda: endpoint(metrics, config.telemetry))
    try:
        return await supervisor.run()
    finally:
        await admission.close()


class Admission:
    """The readers, a connection for each, and the desk with its own."""

    def __init__(self, redis: str, config: Config, metrics: Metrics) -> None:
        keys = Keys(config.stack.stack)
        names = ("desk", "lease", "submit", "cancel", "beats", "usage", "watch", "takeover", "queue")
        self._connections = [Connection(redis, f"pillion-admission-{name}") for name in names]
        desk, lease, submit, cancel, beats, usage, watch, takeover, self._told = self._connections
        self._keys = keys
        self._read = Reader(metrics.unreadable)
        self._lease = Lease(lease, keys, "admission", config.scheduler.lease_seconds)
        self._held = asyncio.Event()
        self._recovered = asyncio.Event()
        self._warm = asyncio.Event()  # the replicas found in Redis are known
        consumer = ids.process_id()
        self._group = Group(submit, keys.submit, GROUP, consumer)
        self._cancels = Tail(cancel, keys.cancel)
        self._beats = Tail(beats, keys.beats)
        self._usage = Tail(usage, keys.usage)
        policy = configured(config)
        self.desk = Desk(policy, desk, keys, self._lease, metrics, Spans(tracing.tracer()), consumer)
        self.watch = Watch(watch, keys, self._data)
        self._take_over = TakeOver(takeover, keys, config.scheduler, self.desk, self._read)

    async def hold_lease(self) -> None:
        if not self._held.is_set():
            await self._lease.acquire()
            # Words of ends come from the oldest open request on; those of others are passed over.
            since = await self.desk.restore()
            if since is None:
                await retrying("usage", self._usage.start)
            else:
                self._usage.last = since
            log.info("admission is active, epoch %d", self._lease.epoch)
            self._held.set()
        await self._lease.keep()

    async def _data(self, generation: str) -> None:
        self.desk.mailbox.put_control(Data(generation))

    async def take_over(self) -> None:
        await self._held.wait()
        await self._take_over.run()

    async def read_submissions(self) -> None:
        await self._held.wait()
        await self._warm.wait()
        # Cancels from here on are read, and those before have left a tombstone.
        await retrying("cancels", self._cancels.start)
        taken = 0
        while entries := await retrying("take-over", self._group.claim_others):
            taken += len(entries)
            await self.desk.mailbox.put(Submissions(entries))
        if taken:
            log.info("took over %s of a predecessor", counted(taken, "request"))
        self._recovered.set()
        async for entries in self._group.follow():
            await self.desk.mailbox.put(Submissions(entries))

    async def pardon(self) -> None:
        """Holders that others have killed make no dead letters of what they held."""
        await self._recovered.wait()
        await self._group.outlive(self._lease)

    async def leave(self) -> None:
        """What waits is handed on in order: its next holder is its first."""
        if self._held.is_set():
            await self._group.hand_on(self._lease)

    async def read_cancels(self) -> None:
        async for entries in self._cancels.follow():
            self.desk.mailbox.put_control(Cancels(_decoded(self._read, entries, Cancel)))

    async def read_heartbeats(self) -> None:
        await retrying("heartbeats", self._beats.start)
        if not self._warm.is_set():
            answer = await retrying("replicas", self._replicas)
            entries = [Entry(name.decode(), payload) for name, payload in answer.items()]
            self.desk.mailbox.put_control(Beats(_decoded(self._read, entries, Heartbeat), live=False))
            self._warm.set()
        async for entries in self._beats.follow():
            self.desk.mailbox.put_control(Beats(_decoded(self._read, entries, Heartbeat)))

    async def read_usage(self) -> None:
        await self._held.wait()
        async for entries in self._usage.follow():
            words = [(entry.id, word) for entry in entries for word in _decoded(self._read, [entry], Usage)]
            self.desk.mailbox.put_control(Words(words))

    async def tell_queue(self) -> None:
        """Once a second, as long as this admission is the active one."""
        await self._held.wait()
        while True:
            word = encode(self.desk.queue)
            telling = ("SET", self._keys.queue, word, "EX", QUEUE_TTL)
            await retrying("queue", lambda: self._told.call(*telling))  # noqa: B023
            await asyncio.sleep(TELL_QUEUE)

    async def _replicas(self) -> dict[bytes, bytes]:
        answer: dict[bytes, bytes] = await self._beats.connection.call("HGETALL", self._keys.replicas)
        return answer

    async def close(self) -> None:
        """Lets a successor start at once; with Redis away the lease ends by itself."""
        try:
            await self._lease.release()
        except (RedisError, OSError) as error:
            log.warning("the lease was not released, a successor waits for its end: %s", error)
        for connection in self._connections:
            await connection.close()


def _decoded(read: Reader, entries: Sequence[Entry], kind: type[S]) -> list[S]:
    """What can be read."""
    found = (read(entry.payload, kind, entry.id) for entry in entries)
    return [entry for entry in found if entry is not None]
