"""One supervisor a process: runs actors, restarts what fails, drains on SIGTERM.

An actor is a coroutine function `run()` that owns its state; it ends by returning (its work is done), by
raising (it failed) or by being cancelled (the process ends). `drain` hooks are called once, in order, when
the process shall end; when they have returned, or the grace period is over, the actors are cancelled. What
can be left to a successor is handed on then, and the end is an orderly one.
"""

import asyncio
import enum
import logging
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pillion import clock
from pillion.words import counted

log = logging.getLogger(__name__)

Run = Callable[[], Awaitable[None]]

LAST_WORDS = 10.0  # seconds that cancelled actors have to end; then the process ends without them


class Exit(enum.IntEnum):
    """Exit codes of every service."""

    DRAINED = 0  # asked to end, and ended in order: what ran is finished or handed on
    FAILED = 1  # an actor kept failing
    USAGE = 2  # a setting or an argument is wrong
    ENGINE_DIED = 70  # the model's engine cannot go on (EX_SOFTWARE)
    UNAVAILABLE = 69  # something that it needs is not there (EX_UNAVAILABLE)
    LEASE_LOST = 75  # another process took over (EX_TEMPFAIL)
    FORCED = 130  # a second signal, or the grace period was over and nobody can go on with the rest


class Stop(Exception):
    """Raised by an actor to end the process with a code; never restarted."""

    def __init__(self, code: Exit, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(slots=True)
class Actor:
    name: str
    run: Run
    max_restarts: int = 5  # within `window`; one more ends the process
    window: float = 60.0  # seconds
    backoff: float = 0.1  # seconds before the first restart, doubled for each further one in the window
    restarts: deque[float] = field(default_factory=deque)

    def delay(self, now: float) -> float | None:
        """Seconds to wait before a restart, or None where there were too many."""
        while self.restarts and self.restarts[0] < now - self.window:
            self.restarts.popleft()
        if len(self.restarts) >= self.max_restarts:
            return None
        self.restarts.append(now)
        return float(min(self.backoff * 2 ** (len(self.restarts) - 1), 5.0))


class Supervisor:
    """Runs a process's actors to its end."""

    def __init__(self, name: str, grace: float) -> None:
        self.name = name
        self.grace = grace  # seconds for the drain hooks
        self._actors: list[Actor] = []
        self._drains: list[tuple[Run, Run | None]] = []
        self._signals = 0
        self._end: asyncio.Future[tuple[Exit, str]] | None = None
        self._drain_asked = asyncio.Event()

    def add(self, name: str, run: Run, max_restarts: int = 5) -> None:
        """An actor that runs as long as the process. One that returns is not started again."""
        self._actors.append(Actor(name, run, max_restarts))

    def on_drain(self, hook: Run, hand_on: Run | None = None) -> None:
        """`hook` is awaited when the process shall end, before the actors are cancelled. Where the grace
        period is over before it returns, `hand_on` leaves the rest to a successor, within LAST_WORDS; the
        hooks behind it are then left out."""
        self._drains.append((hook, hand_on))

    def drain(self) -> None:
        """Asks for the orderly end, as SIGTERM does."""
        self._drain_asked.set()

    async def run(self) -> Exit:
        """Returns the exit code when everything has ended."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        tasks = [asyncio.create_task(self._keep(actor), name=actor.name) for actor in self._actors]
        drain = asyncio.create_task(self._drain(), name="drain")
        try:
            code, reason = await self._end
        finally:
            for task in (drain, *tasks):
                task.cancel()
            _, left = await asyncio.wait((drain, *tasks), timeout=LAST_WORDS)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        log.log(logging.INFO if code is Exit.DRAINED else logging.ERROR, "%s ends: %s", self.name, reason)
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            log.error("%s did not end within %g s of being cancelled: %s", self.name, LAST_WORDS, names)
            logging.shutdown()
            os._exit(Exit.FORCED)  # the event loop would wait for them without end
        return code

    def _finish(self, code: Exit, reason: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result((code, reason))

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("%s got %s, draining for up to %g s", self.name, signal.Signals(number).name, self.grace)
            self._drain_asked.set()
        else:
            self._finish(Exit.FORCED, "a second signal")

    async def _drain(self) -> None:
        await self._drain_asked.wait()
        late = asyncio.get_running_loop().time() + self.grace
        rest = ""
        try:
            for hook, hand_on in self._drains:
                try:
                    async with asyncio.timeout_at(late) as grace:
                        await hook()
                except TimeoutError:
                    if hand_on is None or not grace.expired():
                        raise
                    async with asyncio.timeout(LAST_WORDS):
                        await hand_on()
                    rest = f"; what had not ended within {self.grace:g} s is handed on"
                    break  # no time is left for the other hooks
        except TimeoutError:
            self._finish(Exit.FORCED, f"not drained within {self.grace:g} s")
        except Stop as stop:
            self._finish(stop.code, stop.reason)
        except Exception as error:
            log.exception("drain failed")
            self._finish(Exit.FAILED, f"drain failed: {error!r}")
        else:
            self._finish(Exit.DRAINED, "drained" + rest)

    async def _keep(self, actor: Actor) -> None:
        while True:
            try:
                await actor.run()
            except Stop as stop:
                self._finish(stop.code, stop.reason)
                return
            except (Exception, asyncio.CancelledError) as error:
                # Cancelled from within (a closed connection, a lost task), the actor failed; else we end.
                if isinstance(error, asyncio.CancelledError) and _cancelled():
                    raise
                delay = actor.delay(clock.monotonic())
                if delay is None:
                    log.exception("%s failed %s", actor.name, counted(actor.max_restarts + 1, "time"))
                    self._finish(Exit.FAILED, f"{actor.name} kept failing: {error!r}")
                    return
                log.exception("%s failed, starting again in %.1f s", actor.name, delay)
                await asyncio.sleep(delay)
            else:
                return


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
