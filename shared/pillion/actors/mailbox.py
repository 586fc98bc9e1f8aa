"""A bounded mailbox: control messages are taken before data."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

M = TypeVar("M")


class Full(Exception):
    """The mailbox has no room, and the sender did not want to wait."""


class Mailbox(Generic[M]):
    """One reader, any number of writers, all on one event loop.

    Data is bounded by `capacity` and `put` waits for room. Control has a bound of its own, so that a cancel
    or a drain never waits behind data; a full control lane is a defect and raises.
    """

    def __init__(self, capacity: int, control_capacity: int = 4096) -> None:
        self.capacity = capacity
        self.control_capacity = control_capacity
        self._control: deque[M] = deque()
        self._data: deque[M] = deque()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def __len__(self) -> int:
        return len(self._control) + len(self._data)

    async def put(self, message: M) -> None:
        while len(self._data) >= self.capacity:
            self._writable.clear()
            await self._writable.wait()
        self._data.append(message)
        self._readable.set()

    def put_nowait(self, message: M) -> None:
        """Raises Full."""
        if len(self._data) >= self.capacity:
            raise Full(f"mailbox holds {self.capacity} messages")
        self._data.append(message)
        self._readable.set()

    def put_control(self, message: M) -> None:
        """Raises Full."""
        if len(self._control) >= self.control_capacity:
            raise Full(f"mailbox holds {self.control_capacity} control messages")
        self._control.append(message)
        self._readable.set()

    def take(self) -> M | None:
        """The next message, or None. Does not wait."""
        if self._control:
            return self._control.popleft()
        if self._data:
            message = self._data.popleft()
            self._writable.set()
            return message
        return None

    async def get(self) -> M:
        while (message := self.take()) is None:
            self._readable.clear()
            await self._readable.wait()
        return message
