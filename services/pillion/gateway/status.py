"""What the status page shows: the stack as its heartbeats tell it, and the streams of this gateway.

Nothing in it is anybody's text. Requests are told to whom they belong to, and to administrators.
"""

from pillion import clock
from pillion.bus import UNREACHABLE
from pillion.contracts.entries import Heartbeat, Queue
from pillion.gateway.call import Call
from pillion.gateway.recent import Spread
from pillion.gateway.state import State
from pillion.version import VERSION

KEPT = 0.5  # seconds that what is the same for all is told again: many pages cost little more than one
REPLICAS = 64  # that are told one by one, those that are not ready first
REQUESTS = 50  # that are told, the oldest first

Told = dict[str, object]


class Board:
    """Makes the status. Not for two event loops at once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._common: Told = {}
        self._at = float("-inf")

    async def status(self, tenant: str | None) -> Told:
        """With the tenant's requests, or everybody's for None."""
        now = clock.monotonic()
        if now - self._at > KEPT:
            self._common, self._at = self._told(await self._queue(), now), now
        calls = [each for each in self._state.calls.values() if tenant in (None, each.request.tenant)]
        rows = [_request(call, now, whose=tenant is None) for call in calls[:REQUESTS]]
        return {**self._common, "at": round(clock.wall(), 3), "running": len(calls), "requests": rows}

    def _told(self, queue: Queue | None, now: float) -> Told:
        state = self._state
        verdict = state.verdict()
        seen = state.replicas.minutes(now)
        seen.sort(key=lambda each: (each[0]["reason"] == "", each[1].replica))
        minutes = [steps.minute(now) for _, _, steps in seen]
        recent, accounts = state.recent, state.accounts
        return {
            "ready": verdict.ready,
            "reason": verdict.reason or None,
            "message": verdict.message or None,
            "gateway": {
                "id": state.id, "version": VERSION, "started": state.started, "running": len(state.calls),
            },
            "stack": {
                "name": state.config.stack.stack,
                "replicas": len(seen),
                "ready": sum(row["reason"] == "" for row, _, _ in seen),
                "running": sum(beat.running for _, beat, _ in seen),
                "waiting": sum(beat.waiting for _, beat, _ in seen),
                "minute": {
                    kind: [sum(column) for column in zip(*(each[kind] for each in minutes), strict=True)]
                    for kind in ("prefill", "decode", "running")
                },
            },
            "queue": None if queue is None else {"waiting": queue.waiting, "tokens": queue.tokens},
            "latency": {
                "ttft": _times(recent.ttft, accounts.slo_ttft, now),
                "tbt": {**_times(recent.tbt, accounts.slo_tbt, now), "heat": recent.tbt.heat(now)},
            },
            "replicas": [
                {**row, **_load(beat), "minute": minute}
                for (row, beat, _), minute in zip(seen[:REPLICAS], minutes[:REPLICAS], strict=True)
            ],
        }  # fmt: skip

    async def _queue(self) -> Queue | None:
        """None where admission says nothing, or cannot be heard."""
        try:
            word = await self._state.connections["read"].call("GET", self._state.names.queue)
        except UNREACHABLE:
            return None
        return None if word is None else self._state.reader(word, Queue, "of admission")


def _times(spread: Spread, target: float | None, now: float) -> Told:
    return {"target": target, **spread.summary(now), "worsts": spread.worsts(now)}


def _load(beat: Heartbeat) -> Told:
    facts = beat.facts
    blocks = max(facts.num_blocks - 1, 1) if facts else 0
    used = round(beat.kv_usage * blocks)
    return {
        "model": facts.model if facts else None,
        "backend": facts.backend if facts else None,
        "dtype": facts.dtype if facts else None,
        "blocks": {
            "used": used,
            "cached": max(blocks - used - beat.free_blocks, 0),
            "free": min(beat.free_blocks, blocks),
        },
        "seats": beat.seats,
        "budget": beat.step_budget,
        "most": beat.step_limit,
        "target": beat.step_target or None,
        "prefill_rate": round(beat.prefill_rate, 1),
        "uncomputed": beat.uncomputed,
        "preemptions": beat.preemptions,
    }


def _request(call: Call, now: float, whose: bool) -> Told:
    request, account, answer = call.request, call.account, call.answer
    first, last = account.first, account.last
    return {
        "id": request.id,
        **({"tenant": request.tenant} if whose else {}),
        "model": request.model,
        "replica": call.replica or None,
        "priority": request.priority,
        "age": round(now - account.start, 3),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "output_tokens": answer.output_tokens,
        "max_tokens": request.max_tokens,
        "ttft": None if first is None or account.resumed else round(first - account.start, 4),
        "since": None if first is None else round(now - last, 4),
        "worst_gap": round(account.worst, 4) if account.gaps else None,
        "gaps": [round(gap, 4) for gap in account.gaps],
    }
