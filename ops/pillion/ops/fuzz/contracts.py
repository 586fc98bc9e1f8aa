"""Mutated entries in the real streams of a running stack, between requests that must be served as ever."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from pillion import ids
from pillion.bus import Connection, Keys, append
from pillion.contracts.entries import (
    Cancel,
    Control,
    Facts,
    Heartbeat,
    Refusal,
    Request,
    Sampling,
    Spent,
    StepLimits,
    StepOutput,
    Struct,
    TokenLogprob,
    Tokens,
    UnknownSchema,
    Usage,
    decode,
    encode,
)
from pillion.ops.fuzz.findings import Findings
from pillion.ops.fuzz.mutate import bent, flipped
from pillion.ops.soak.wire import Closed, Wire, request

_BATCH = 40  # entries between two requests that must be served
_PATIENCE = 60.0  # seconds for such a request: what was mutated may be valid, and runs before it
_GATEWAY = "fuzz"  # whose answers nobody reads
_ENDS = 300  # seconds after which what is addressed to it goes


class Contracts:
    """The streams of one stack."""

    def __init__(self, url: str, redis: str, stack: str, model: str, seed: int) -> None:
        self._url = url
        self._model = model
        self._keys = Keys(stack)
        self._connection = Connection(redis, "fuzz")
        self._rng = random.Random(seed)
        self.findings = Findings("contracts")

    async def run(self, seconds: float) -> Findings:
        until = time.monotonic() + seconds
        try:
            gateways = await self._gateways()
            while time.monotonic() < until:
                # It lives, else all that is addressed to it is given up at once.
                await self._connection.call("SET", self._keys.lease(f"gateway:{_GATEWAY}"), 1, "EX", _ENDS)
                sent = [await self._entry(gateways) for _ in range(_BATCH)]
                await self._serve(sent)
        finally:
            await self._connection.call(
                "DEL", self._keys.out(_GATEWAY), self._keys.lease(f"gateway:{_GATEWAY}")
            )
            await self._connection.close()
        return self.findings

    async def _entry(self, gateways: list[str]) -> tuple[str, bytes]:
        """Adds one mutated entry. Its stream and payload."""
        stream, made = self._rng.choice(
            (
                (self._keys.submit, self._request),
                (self._keys.run("0"), self._request),
                (self._keys.cancel, self._cancel),
                (self._keys.control("0"), self._control),
                (self._keys.beats, self._beat),
                (self._keys.out(self._rng.choice(gateways)), self._output),
                (self._keys.usage, self._usage),
            )
        )
        payload = self._mutated(made)
        if self._lies(stream, payload):
            self.findings.note("left out")
            return stream, b""
        self.findings.note(stream.split(":")[2])
        await append(self._connection, stream, payload)
        return stream, payload

    def _mutated(self, make: Callable[[], Struct]) -> bytes:
        entry = encode(make())
        if self._rng.random() < 0.4:
            return flipped(self._rng, entry, [encode(make())])
        try:
            return msgspec.msgpack.encode(bent(self._rng, msgspec.msgpack.decode(entry)))
        except (OverflowError, TypeError, ValueError):
            return self._rng.randbytes(40)  # no MessagePack can hold it

    def _lies(self, stream: str, payload: bytes) -> bool:
        """Whether it is a valid word on the stack's own replica: who may write to Redis can say anything."""
        if stream != self._keys.beats:
            return False
        try:
            beat = decode(payload, Heartbeat)
        except (UnknownSchema, msgspec.DecodeError):
            return False
        return beat.replica == "0" or (beat.facts is not None and beat.facts.model == self._model)

    async def _serve(self, sent: list[tuple[str, bytes]]) -> None:
        """A request right through the stack, after all that was sent."""
        body = msgspec.json.encode({"prompt": "still there?", "max_tokens": 2, "temperature": 0})
        start, seen = time.monotonic(), ""
        while time.monotonic() - start < _PATIENCE:
            wire = Wire(self._url, _PATIENCE)
            try:
                await wire.send(request("POST", "/v1/completions", body))
                head, answer = await wire.answer()
                if head.status == 200:
                    self.findings.note("served")
                    break
                seen = f"{head.status} {answer[:300]!r}"
                if head.status not in (429, 503):
                    self._blame(f"a request after them got {seen}", sent)
                    return
            except (Closed, ConnectionError, TimeoutError, ValueError) as error:
                seen = repr(error)
            finally:
                wire.close()
            await asyncio.sleep(0.5)
        else:
            self._blame(f"no request was served for {_PATIENCE:g} s after them: {seen}", sent)
        for stream, payload in sent:
            await self._end(stream, payload)

    async def _end(self, stream: str, payload: bytes) -> None:
        """What was still a valid request is ended, so that it takes nobody's time."""
        if stream not in (self._keys.submit, self._keys.run("0")):
            return
        try:
            identity = decode(payload, Request).id
        except (UnknownSchema, msgspec.DecodeError):
            return
        await self._connection.call("SET", self._keys.tombstone(identity), "fuzz", "EX", _ENDS)
        await append(self._connection, self._keys.cancel, encode(Cancel(identity)), 10_000)

    def _blame(self, reason: str, sent: list[tuple[str, bytes]]) -> None:
        self.findings.blame(reason, "\n".join(f"{stream} {payload.hex()}" for stream, payload in sent))

    async def _gateways(self) -> list[str]:
        """Those that live."""
        prefix = self._keys.lease("gateway:")
        found = await self._connection.call("KEYS", prefix.replace("{", "[{]").replace("}", "[}]") + "*")
        return [key.decode().removeprefix(prefix) for key in found] or [_GATEWAY]

    # --- what is mutated ---------------------------------------------------------------------------

    def _request(self) -> Request:
        rng = self._rng
        sampling = Sampling(
            seed=rng.getrandbits(40), temperature=1.0, top_p=0.9, top_k=40, frequency_penalty=0.5,
            logit_bias={5: 1.0}, stop_token_ids=(7,), logprobs=2, min_tokens=1,
        )  # fmt: skip
        prompt = tuple(rng.choices(range(3, 250), k=rng.randint(1, 40)))
        return Request(
            id=ids.request_id(), gateway=_GATEWAY, model=self._model, prompts=(prompt,), sampling=sampling,
            arrival=time.time(), n=rng.randint(1, 2), max_tokens=4, priority=0, cache_salt="s", tenant="t",
            deadline=time.time() + 60, traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
        )  # fmt: skip

    def _cancel(self) -> Cancel:
        return Cancel(ids.request_id(), 0, "fuzz", f"00-{'a' * 32}-{'b' * 16}-01")

    def _control(self) -> Control:
        """For a holder of the lease that there never was."""
        return Control(5, True, True, StepLimits(16, 0.1))

    def _beat(self) -> Heartbeat:
        facts = Facts(
            model="fuzz", fingerprint="f", max_model_len=512, vocab_size=320, end_tokens=(2,), block_size=16,
            num_blocks=33, max_num_seqs=8, max_step_tokens=64, tile=16, dtype="float32", backend="torch",
        )  # fmt: skip
        return Heartbeat(
            replica="fuzz", epoch=5, state="ready", reason="r", facts=facts, last_entry="1-1", uncomputed=3,
            credit=100, prefill_rate=50.0, running=1, waiting=1, free_blocks=9, kv_usage=0.5, steps=4,
            stalled=0.1, step_budget=64, prefilled=900, decoded=80, step_time=2.5, preemptions=1,
        )  # fmt: skip

    def _usage(self) -> Usage:
        request = ids.request_id()
        return Usage("0", ((request, 0.5),), (Spent(request, 30, 4),))

    def _output(self) -> StepOutput:
        logprobs = (TokenLogprob(-1.0, 1, ((5, -1.0),)),)
        item: Any = Tokens(ids.request_id(), 0, 0, (5,), "stop", 5, 3, logprobs, "e")
        refusal = Refusal(ids.request_id(), 400, "m", param="p", code="c", retry_after=1.0)
        return StepOutput("0", 1, 1, (item,), (refusal,))
