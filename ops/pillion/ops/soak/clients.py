"""Clients that act: some tasks, each with a kept connection, until the time is over."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pillion.ops.soak.traffic import Act
from pillion.ops.soak.wire import Closed, Head, Wire, request

PATIENCE = 120.0  # seconds without a byte of an answer, after which it counts as lost
_SLOW = 0.3  # seconds between two reads of a slow client
_KEPT = 20  # wrong outcomes told in full
_BUSY = (429, 503)  # right at any time, if they give a reason
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Tally:
    """What came of the acts."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)  # kind: outcome: how many
    wrong: list[str] = field(default_factory=list)  # at most `_KEPT`
    wrongs: int = 0

    def note(self, kind: str, outcome: str) -> None:
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def blame(self, act: Act, reason: str) -> None:
        self.wrongs += 1
        if len(self.wrong) < _KEPT:
            self.wrong.append(f"{act.kind}: {reason}")
        self.note(act.kind, "wrong")

    @property
    def acts(self) -> int:
        return sum(count.total() for count in self.outcomes.values())


class Client:
    """Does one act after the other. Owns its kept connection."""

    def __init__(self, url: str, tally: Tally) -> None:
        self._url = url
        self._tally = tally
        self._kept = Wire(url, PATIENCE)

    async def run(self, draw: Callable[[], Act], until: float) -> None:
        """`until`: monotonic seconds."""
        try:
            while time.monotonic() < until:
                await self.do(draw())
        finally:
            self._kept.close()

    async def do(self, act: Act) -> None:
        wire = Wire(self._url, PATIENCE) if act.fresh else self._kept
        try:
            outcome = await self._carry_out(act, wire)
        except Closed as error:
            outcome = ""
            self._tally.blame(act, f"the answer broke off: {error}")
            wire.abort()
        except TimeoutError:
            outcome = ""
            self._tally.blame(act, f"no byte of an answer for {PATIENCE:g} s")
            wire.abort()
        except (OSError, ValueError) as error:
            outcome = ""
            self._tally.blame(act, f"{type(error).__name__}: {error}")
            wire.abort()
        if outcome:
            self._tally.note(act.kind, outcome)
        if act.fresh:
            wire.close()

    async def _carry_out(self, act: Act, wire: Wire) -> str:
        """The outcome for the tally; "" where it was blamed."""
        if act.manner == "idle":
            await wire.send(b"")
            await asyncio.sleep(act.moment)
            return "left"
        if act.manner == "half":
            await wire.send(act.data[: 1 + int(act.moment * (len(act.data) - 1))])
            await asyncio.sleep(act.moment / 10)
            wire.abort()
            return "left"
        kept = wire.opened
        try:
            await wire.send(act.data)
            if act.manner == "leave" and act.moment < 0.3:
                await asyncio.sleep(act.moment)
                wire.abort()
                return "left"
            head = await wire.head()
        except (Closed, ConnectionResetError, BrokenPipeError):
            if not kept:
                raise
            # The server may close an idle connection just when we use it again.
            wire.abort()
            await wire.send(act.data)
            head = await wire.head()
        return await self._answer(act, wire, head)

    async def _answer(self, act: Act, wire: Wire, head: Head) -> str:
        if act.manner == "delete" and head.status == 200:
            await self._delete(head)
        most = int(1 / max(0.01, 1 - act.moment)) if act.manner == "leave" else 1 << 30
        pieces = []
        async for piece in wire.body(head):
            pieces.append(piece)
            if len(pieces) >= most:
                wire.abort()
                return "left"
            if act.manner == "slow":
                await asyncio.sleep(_SLOW)
        whole = b"".join(pieces)
        if head.status in _BUSY and b'"code"' in whole:
            return str(head.status)
        if head.status not in act.statuses:
            self._tally.blame(act, f"{head.status} {whole[:300].decode(errors='replace')}")
            return ""
        if act.streams and head.status == 200:
            if not whole.endswith(b"data: [DONE]\n\n"):
                self._tally.blame(act, f"a stream without its end: {whole[-200:]!r}")
                return ""
            if b'data: {"error"' in whole and act.manner != "delete":
                self._tally.blame(act, f"a stream that failed: {whole[-400:]!r}")
                return ""
        return str(head.status)

    async def _delete(self, head: Head) -> None:
        identity = _ID.search(head.headers.get("x-request-id", ""))
        if identity is None:
            raise ValueError("no x-request-id to delete by")
        other = Wire(self._url, PATIENCE)
        try:
            await other.send(request("DELETE", f"/v1/streams/{identity[0]}"))
            answer, _ = await other.answer()
        finally:
            other.close()
        if answer.status >= 500:
            raise ValueError(f"a DELETE got {answer.status}")
