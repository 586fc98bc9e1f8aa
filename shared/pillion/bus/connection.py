"""One connection with one owner."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as NoAnswer

log = logging.getLogger(__name__)

R = TypeVar("R")


class Unwritable(RedisError):
    """Redis is there and takes no writes now: its memory or its disk is full, or it is a replica."""


UNREACHABLE = (ConnectionError, NoAnswer, BusyLoadingError, Unwritable, OSError)
"""Redis is gone or not ready; the command may or may not have run. Time may heal it."""

_DISK_FULL = "MISCONF"


class Denied(RedisError):
    """Redis is there and does not know the user or the password. Time does not heal it."""


COMMAND_DEADLINE = 10.0  # seconds, beyond what a blocking command blocks


class Connection:
    """A single Redis connection. Commands of several tasks queue up; none shares an answer.

    A command that was sent is never abandoned in mid-answer: a cancelled caller goes at once, the command
    itself runs to its end (or the deadline), and only then does the next one start. So no caller ever gets
    another's answer.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.commands = 0  # sent over the life of this object
        self._lock = asyncio.Lock()
        # Retries are the caller's: only it knows whether a command may run twice.
        self._redis = aioredis.Redis.from_url(
            url,
            max_connections=1,  # pipelines too; the lock sees to it that one is enough
            client_name=name,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=5.0,
            socket_timeout=None,
        )
        self._redis.response_callbacks.clear()  # plain answers, of one shape for every version
        self._tasks: set[asyncio.Task[Any]] = set()

    async def call(self, *args: Any, deadline: float = COMMAND_DEADLINE) -> Any:
        """Runs one command and returns its plain RESP answer. Raises redis.exceptions.RedisError."""
        return await self._whole(lambda client: _execute(client, *args), deadline)

    async def pipeline(self, *commands: tuple[Any, ...], deadline: float = COMMAND_DEADLINE) -> list[Any]:
        """Runs commands in one round trip, not as a transaction. The first error is raised."""

        async def run(client: "aioredis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

        return await self._whole(run, deadline)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()

    async def _whole(self, run: Callable[["aioredis.Redis"], Awaitable[R]], deadline: float) -> R:
        task = asyncio.ensure_future(self._serial(run, deadline))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled no longer asks for it

    async def _serial(self, run: Callable[["aioredis.Redis"], Awaitable[R]], deadline: float) -> R:
        async with self._lock:
            self.commands += 1
            try:
                # On a timeout redis-py closes the connection, and with it the late answer.
                async with asyncio.timeout(deadline):
                    return await run(self._redis)
            except ConnectionError as error:
                if isinstance(error.__cause__, AuthenticationError):
                    raise Denied(f"Redis refuses the user or password of --redis: {error}") from None
                raise
            except ResponseError as error:
                if isinstance(error, OutOfMemoryError | ReadOnlyError) or _DISK_FULL in str(error):
                    raise Unwritable(str(error)) from None
                raise
            except TimeoutError:
                raise NoAnswer(f"{self.name}: no answer from Redis within {deadline:g} s") from None


async def _execute(client: "aioredis.Redis", *args: Any) -> Any:
    return await client.execute_command(*args)  # type: ignore[no-untyped-call]


async def retrying(
    what: str,
    attempt: Callable[[], Awaitable[R]],
    give_up_after: float | None = None,
) -> R:
    """Repeats `attempt` while Redis cannot be reached, with growing pauses (50 ms to 2 s).

    Only for what may run twice. Raises the last error when `give_up_after` seconds are over.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    pause = 0.05
    while True:
        try:
            result = await attempt()
        except UNREACHABLE as error:
            if give_up_after is not None and loop.time() - start + pause > give_up_after:
                raise
            if pause == 0.05:
                why = "takes no writes" if isinstance(error, Unwritable) else "cannot be reached"
                log.warning("%s: Redis %s, trying again: %s", what, why, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
        else:
            if pause > 0.05:
                log.info("%s: Redis is back", what)
            return result


__all__ = ["UNREACHABLE", "Connection", "Denied", "RedisError", "Unwritable", "retrying"]
