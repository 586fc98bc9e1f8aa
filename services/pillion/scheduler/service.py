"""The scheduler's process: the pure core with its loops around it.

Run entries, cancels, results and the timer come to one mailbox; the core's commands go to the executor and
to the journal. One task hands events to the core, so nothing here needs a lock.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec
from redis.exceptions import RedisError

from pillion import clock, ids
from pillion.actors import Exit, Mailbox, Stop, Supervisor
from pillion.bus import Connection, Group, Keys, Lease, Reader, Tail, Watch
from pillion.bus.ledger import Ledger, Opened
from pillion.config import Config, ConfigError, Scheduler
from pillion.contracts.access import Access
from pillion.contracts.entries import Cancel, Facts, Heartbeat
from pillion.scheduler.beat import Beat, heartbeat
from pillion.scheduler.checkpoint import checkpoint
from pillion.scheduler.control import DRAINING, Controls
from pillion.scheduler.core import Core
from pillion.scheduler.explaining import Explaining
from pillion.scheduler.gateways import Gateways
from pillion.scheduler.history import History
from pillion.scheduler.intake import Intake
from pillion.scheduler.link import Link
from pillion.scheduler.measured import Measured
from pillion.scheduler.messages import (
    Cancelled,
    Compile,
    Connected,
    Disconnected,
    Event,
    Ordered,
    Publish,
    Refuse,
    SendPlan,
    StepDone,
    Submitted,
    WakeAt,
    Woken,
)
from pillion.scheduler.observe import Observer
from pillion.scheduler.publisher import GROUP, Publisher, Refused, Step
from pillion.scheduler.recorded import Header
from pillion.scheduler.recording import Recorder
from pillion.scheduler.spans import Spans
from pillion.telemetry import names
from pillion.telemetry.endpoint import endpoint
from pillion.version import VERSION
from pillion.words import counted

log = logging.getLogger(__name__)

MAILBOX = 1024
OVERDUE = 10.0  # seconds that a step may be late before the replica is unready


def executor_address(config: Config) -> str:
    """Where the scheduler dials: the address of the replica's executor."""
    return config.executor.executor or f"unix:{config.state_path}/executor-{config.scheduler.replica}.sock"


class Service:
    """One replica's scheduler, once the lease is held."""

    def __init__(self, config: Config, url: str) -> None:
        """Raises ConfigError for certificates, a folder or a cost model that cannot be used."""
        replica = config.scheduler.replica
        self.config = config
        self.replica = replica
        self.keys = Keys(config.stack.stack)
        self._connections = [
            Connection(url, f"scheduler-{replica}-{role}")
            for role in ("read", "cancel", "control", "publish", "beat", "lease", "watch")
        ]
        read, cancel, control, publish, beat, lease, watch = self._connections
        self.lease = Lease(lease, self.keys, f"replica:{replica}", config.scheduler.lease_seconds)
        self.core = Core(config.scheduler)
        self._recorder = _recorder(config.scheduler, self.core)
        self.history = History(config.scheduler)
        self.ledger = Ledger()
        self.observer = Observer()
        self._read = Reader(self.observer.metrics.unreadable)
        self.spans = Spans()
        self.mailbox: Mailbox[Event] = Mailbox(MAILBOX)
        put = self.mailbox.put_control
        self.controls = Controls(control, self.keys, replica, self.lease, put, self._read)
        self.beat = Beat(beat, self.keys, self._heartbeat)
        access = Access(config.executor)
        self._measured = Measured(config)
        self.link = Link(executor_address(config), replica, self._heard, access)
        consumer = ids.process_id()
        retention = config.scheduler.journal_retention
        self.publisher = Publisher(publish, self.keys, replica, self.lease, self.ledger, retention, consumer)
        self._group = Group(read, self.keys.run(replica), GROUP, consumer)
        self.intake = Intake(
            read, self._group, self.keys, replica, self.ledger, self._accept, self._set_aside, self._read
        )
        self.gateways = Gateways(
            beat,
            self.keys,
            self.ledger,
            lambda request: put(Cancelled(request.id, park=True, life=request.life)),
        )
        self.explaining = Explaining(beat, self.keys, replica, self.history, self.ledger)
        self.data = Watch(watch, self.keys, self._data)
        self._cancels = Tail(cancel, self.keys.cancel)
        self._recovered = asyncio.Event()
        self._generation = ""  # of Redis' data, in which all stands that is held here
        self._state = ""  # while it ends: draining, gone
        self._facts: Facts | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- events in ---------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        if isinstance(event, Connected):
            event = Connected(event.facts, self._measured.of(event.facts))
        self.mailbox.put_control(event)

    async def _accept(self, opened: Opened, cancelled: Cancelled | None) -> None:
        milliseconds, _, _ = opened.entry.partition("-")
        self.spans.opened(opened.request, int(milliseconds) / 1000, opened.ended())
        await self.mailbox.put(Submitted(opened.request, opened.done(), tuple(sorted(opened.ended()))))
        if cancelled is not None:
            await self.mailbox.put(cancelled)

    async def _set_aside(self, refused: Refused) -> None:
        await self.publisher.put(refused)

    async def read_cancels(self) -> None:
        async for entries in self._cancels.follow():
            for entry in entries:
                cancel = self._read(entry.payload, Cancel, entry.id)
                if cancel is None:
                    continue
                self.mailbox.put_control(Cancelled(cancel.request, cancel.choice, cancel.park, cancel.life))

    async def read_entries(self) -> None:
        # The position of the cancels comes first: each is then read, or has left a tombstone before.
        await self._cancels.start()
        recovered = await self.intake.recover()
        if recovered:
            log.info("goes on with %s of a predecessor", counted(recovered, "request"))
        self._recovered.set()
        await self.intake.run(lambda: self.publisher.last, self.publisher.restored)

    async def pardon(self) -> None:
        """Holders that others have killed make no dead letters of what they held."""
        await self._recovered.wait()
        await self._group.outlive(self.lease)

    async def _data(self, generation: str) -> None:
        """Redis holds other data, or may: what is held here is put back before this replica tells of it."""
        await self._recovered.wait()
        async with self.intake.lock:
            await self.publisher.restore()
        self._generation = generation
        self.beat.changed()

    # --- the core ----------------------------------------------------------------------------------

    async def think(self) -> None:
        """Hands one event after the other to the core, and its commands on."""
        seconds = self.observer.metrics[names.SCHEDULE_SECONDS]
        while True:
            event = await self.mailbox.get()
            now, start = clock.monotonic(), time.perf_counter()
            commands = self.core.handle(event, now)
            seconds.observe(time.perf_counter() - start)
            if self._recorder is not None:
                self._recorder.put(event, now, commands)
            self.history.heard(event, now, commands)
            match event:
                case StepDone():
                    self.observer.returned(event)
                case Connected():
                    self._facts = event.facts
                    self.observer.attached()
                case Disconnected():
                    self._facts = None
                case Ordered():
                    self.controls.done(event)
                    if event.word.explain:
                        self.explaining.asked(event.word.explain)
            for command in commands:
                match command:
                    case SendPlan():
                        self.link.send(command.plan)
                        self._watch_takes(command)
                    case Compile():
                        self.link.send(command)
                    case Publish():
                        self.spans.brought(command.items)
                        self.spans.parked(command.parked)
                        self.observer.metrics[names.PARKED].inc(len(command.parked))
                        await self.publisher.put(
                            Step(
                                command.step,
                                command.items,
                                command.finished,
                                command.parked,
                                self.explaining.closed((*command.finished, *command.parked)),
                            )
                        )
                    case Refuse():
                        await self._refuse(command)
                    case WakeAt():
                        self._wake_at(command.at)
            self.beat.changed()

    def _watch_takes(self, command: SendPlan) -> None:
        self.observer.planned(command.plan)
        self.spans.planned(command.plan)
        delay = self.observer.metrics[names.SCHEDULING_DELAY]
        for take in command.plan.take:
            if len(take.tokens) == take.prompt_length:  # first time, not after a preemption
                now = clock.wall()
                delay.observe(max(now - take.request.arrival, 0.0))
                if (opened := self.ledger.get(take.request.id)) and opened.began is None:
                    opened.began = now

    async def _refuse(self, command: Refuse) -> None:
        self.spans.refused(command.refusal.request)
        opened = self.ledger.get(command.refusal.request)
        if opened is not None:
            self.ledger.close(command.refusal.request)
            life = opened.request.life
            await self.publisher.put(Refused(command.refusal, command.gateway, opened.entry, life))

    async def watch(self) -> None:
        """Gives up an executor whose step is too late: it hangs, or was stopped."""
        limit = self.config.scheduler.step_timeout
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            late = self.core.overdue(clock.monotonic())
            if late > limit:
                self.link.give_up(f"the step in flight is {late:.1f} s late")

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(at - clock.monotonic(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self.mailbox.put_control, Woken())

    # --- what others see ---------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        snapshot = self.core.snapshot(clock.monotonic())
        now = clock.monotonic()
        self.observer.scrape(snapshot, self.intake.dead, len(self.ledger))
        self.observer.line(snapshot, now)
        reason = self.link.why_not
        if not reason and snapshot.overdue > OVERDUE:
            reason = f"the step in flight is {snapshot.overdue:.0f} s late"
        state = self._state or ("unready" if reason else "ready")
        if state == "ready" and self.controls.draining:
            state, reason = "draining", DRAINING
        stands = Heartbeat(
            replica=self.replica,
            epoch=self.lease.epoch,
            state=state,
            reason=reason,
            facts=self._facts,
            last_entry=self.intake.last,
            generation=self._generation,
            controlled=self.controls.followed,
            step_budget=self.observer.budget,
            prefilled=self.observer.prefilled,
            decoded=self.observer.decoded,
            step_time=self.observer.step_time,
        )
        return heartbeat(stands, snapshot, self.config.admission.credit_seconds)

    # --- life --------------------------------------------------------------------------------------

    async def acquire(self) -> None:
        """Waits for the lease."""
        log.info("replica %s: asks for the lease", self.replica)
        await self.lease.acquire()
        log.info("replica %s: lease held, epoch %d", self.replica, self.lease.epoch)

    async def drain(self) -> None:
        """Takes no new work and lets what runs end."""
        self._state = "draining"
        self.link.ending = True
        self.beat.changed()
        await self.intake.lock.acquire()  # for good: what is read from now on waits for the next holder
        while len(self.ledger) or not self.publisher.idle or len(self.mailbox):
            await asyncio.sleep(0.02)
        await self.leave()

    async def leave(self) -> None:
        """What is left stays in the run stream, in order: its next holder, be it the successor or another
        replica, is its first.
        """
        if len(self.ledger):
            log.info("%s left to others", counted(len(self.ledger), "request"))
        if self.lease.epoch:
            await self._group.hand_on(self.lease)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._recorder is not None:
            self._recorder.close()
        try:
            async with asyncio.timeout(2.0):
                if self.lease.epoch:
                    await self.lease.release()
                    self._state = "gone"
                    await self.beat.send()
        except (TimeoutError, RedisError, OSError) as error:
            log.warning("the lease is not released, it ends by itself: %s", error)
        for connection in self._connections:
            await connection.close()


def _recorder(settings: Scheduler, core: Core) -> Recorder | None:
    """Raises ConfigError."""
    if settings.record is None:
        return None
    known = msgspec.structs.replace(settings, record=None)  # where it lies is nobody's business
    header = Header(VERSION, settings.replica, clock.wall(), known)
    folder = Path(settings.record).expanduser()
    return Recorder(folder, header, settings.record_bytes, lambda: checkpoint(core))


async def run(config: Config) -> int:
    """Serves until SIGTERM. Returns the exit code."""
    if config.stack.redis is None:
        log.error("the scheduler needs --redis URL; `pillion up` starts an embedded one")
        return Exit.USAGE
    try:
        service = Service(config, config.stack.redis)
    except ConfigError as error:
        log.error("%s", error)
        return Exit.USAGE
    supervisor = Supervisor(f"scheduler {service.replica}", config.gateway.drain_timeout)

    async def lead() -> None:
        """Everything else starts when the lease is held, and ends with it."""
        await service.acquire()
        await service.controls.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.lease.keep())
            tasks.create_task(service.think())
            tasks.create_task(service.watch())
            tasks.create_task(service.publisher.run())
            tasks.create_task(service.link.run(service.lease.epoch))
            tasks.create_task(service.read_cancels())
            tasks.create_task(service.controls.run())
            tasks.create_task(service.read_entries())
            tasks.create_task(service.pardon())
            tasks.create_task(service.beat.run())
            tasks.create_task(service.gateways.run())
            tasks.create_task(service.data.run())
            tasks.create_task(service.explaining.run())

    async def led() -> None:
        try:
            await lead()
        except* Stop as group:
            raise next(error for error in group.exceptions if isinstance(error, Stop)) from None

    # The core's state cannot be mended in place; a successor process reads the journal instead.
    supervisor.add("replica", led, max_restarts=0)
    supervisor.add("metrics", lambda: endpoint(service.observer.metrics, config.telemetry))
    supervisor.on_drain(service.drain, service.leave)
    try:
        return int(await supervisor.run())
    finally:
        await service.close()
