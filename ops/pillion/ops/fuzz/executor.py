"""Mutated messages to a real executor of its own: it answers, refuses or ends the stream, and lives."""

import asyncio
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pillion.contracts import executor_pb2 as pb
from pillion.contracts.entries import SCHEMA
from pillion.ops.fuzz.findings import Findings
from pillion.ops.fuzz.mutate import flipped
from pillion.ops.rig import tracebacks

_METHOD = "/pillion.contracts.Executor/Attach"
_READY_SECONDS = 180.0
_STEP_SECONDS = 30.0  # for one answer
_QUIET = 0.3  # seconds without an answer, after which the next message goes out
_HIGHEST = (1 << 64) - 1


class _Overtaken(Exception):
    """Our epoch is over."""


class Executor:
    """A process, and the stream that tries it."""

    def __init__(self, folder: Path, flags: Sequence[str], seed: int) -> None:
        self.log = folder / "executor.log"
        self._address = f"unix:{folder / 'x.sock'}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pillion.ops", "executor", "--executor", self._address),
                    *("--state-dir", str(folder), "--log-format", "text", *flags),
                ],
                env=environ, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._rng = random.Random(seed)
        self._epoch = 1
        self._facts = pb.Facts()
        self.findings = Findings("executor")

    async def run(self, seconds: float) -> Findings:
        """Between two mutated streams one that must run as ever."""
        try:
            # Bytes go out as they are: what is mutated need not be a message.
            async with grpc.aio.insecure_channel(self._address) as channel:
                attach = channel.stream_stream(_METHOD, None, None)
                if not await self._ready(attach):
                    self.findings.blame(f"it did not become ready: {self._last()}")
                    return self.findings
                until = time.monotonic() + seconds
                while time.monotonic() < until and self._process.poll() is None:
                    sent = await self._hostile(attach)
                    if not await self._as_ever(attach):
                        hexes = "\n".join(data.hex() for data in sent)
                        self.findings.blame(f"it does not serve any more: {self._last()}", hexes)
                        return self.findings
                    self.findings.note("served")
        finally:
            code = self._process.poll()
            if code is not None:
                self.findings.blame(f"it died with {code}: {self._last()}")
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)
        for text in tracebacks(self.log.read_text(errors="replace").splitlines()):
            self.findings.blame(f"it logged a traceback: {text}")
        return self.findings

    def _last(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _ready(self, attach: Any) -> bool:
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if await self._as_ever(attach):
                return True
            await asyncio.sleep(0.2)
        return False

    async def _as_ever(self, attach: Any) -> bool:
        """Whether a sequence is prefilled and decoded."""
        call = attach()
        try:
            async with asyncio.timeout(_STEP_SECONDS):
                facts = await self._open(call)
                if facts is None:
                    return False
                self._facts = facts
                tokens = 0
                for plan in self._plans():
                    await call.write(pb.ToExecutor(plan=plan).SerializeToString())
                    answer = pb.FromExecutor.FromString(await call.read())
                    tokens += len(answer.result.tokens)
                return tokens == 2
        except _Overtaken:
            return await self._as_ever(attach)
        except (grpc.aio.AioRpcError, TimeoutError, TypeError):  # read gives EOF, which is no bytes
            return False
        finally:
            call.cancel()

    async def _open(self, call: Any) -> pb.Facts | None:
        await call.write(self._opening().SerializeToString())
        answer = pb.FromExecutor.FromString(await call.read())
        if answer.WhichOneof("message") == "refused" and answer.refused.reason == "epoch":
            self._epoch = _HIGHEST  # a mutated Open had a higher one than ours
            raise _Overtaken
        return answer.facts if answer.WhichOneof("message") == "facts" else None

    async def _hostile(self, attach: Any) -> list[bytes]:
        """One stream with mutated messages in it. What was sent."""
        rng, sent = self._rng, []
        call = attach()
        seeds = [self._opening(), *(pb.ToExecutor(plan=plan) for plan in self._plans())]
        messages = [message.SerializeToString() for message in seeds]
        try:
            for index, message in enumerate(seeds):
                data = messages[index]
                if rng.random() < (0.1 if index == 0 else 0.6):
                    data = self._mutated(message, messages)
                sent.append(data)
                await call.write(data)
                async with asyncio.timeout(_STEP_SECONDS if data == messages[index] else _QUIET):
                    answer = await call.read()
                if not isinstance(answer, bytes):
                    break
                self.findings.note(pb.FromExecutor.FromString(answer).WhichOneof("message") or "nothing")
        except grpc.aio.AioRpcError as error:
            self.findings.note(error.code().name.lower())
        except TimeoutError:
            self.findings.note("no answer")
        finally:
            call.cancel()
        return sent

    def _mutated(self, message: pb.ToExecutor, messages: Sequence[bytes]) -> bytes:
        """Of the bytes, or of one field."""
        if self._rng.random() < 0.4 or message.WhichOneof("message") != "plan":
            return flipped(self._rng, message.SerializeToString(), messages)
        copy = pb.ToExecutor()
        copy.CopyFrom(message)
        for _ in range(self._rng.choice((1, 1, 2))):
            _bend_plan(self._rng, copy.plan)
        return copy.SerializeToString()

    def _opening(self) -> pb.ToExecutor:
        return pb.ToExecutor(open=pb.Open(schema=SCHEMA, epoch=self._epoch, replica="fuzz"))

    def _plans(self) -> list[pb.Plan]:
        """A sequence of eight tokens that is computed, decoded once, and released."""
        take = pb.Take(
            slot=0, incarnation=1, tokens=struct.pack("<8i", *range(3, 11)), prompt_length=8, blocks=[1, 2],
            max_tokens=4, sampling=pb.Sampling(
                seed=1, temperature=1.0, top_p=0.9, top_k=5, repetition_penalty=1.1, logit_bias={5: 1.0},
                ignore_eos=True, stop_token_ids=[7], min_tokens=2, logprobs=1,
            ),
            traceparent=f"00-{'a' * 32}-{'b' * 16}-01", request="r",
        )  # fmt: skip
        return [
            pb.Plan(step=1, take=[take], slot=[0], start=[0], count=[8], sample=[1]),
            pb.Plan(step=2, slot=[0], start=[8], count=[1], sample=[1], block_count=[1], blocks=[3]),
            pb.Plan(step=3, release=[0]),
        ]


_INTS = (0, 1, 2, 7, 63, 64, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_LISTS = ("release", "slot", "start", "count", "sample", "block_count", "blocks")
_REALS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_VALUES = (0.0, -1.0, 1e-30, 1e300, -1e300, float("nan"), float("inf"), float("-inf"))


def _bend_plan(rng: random.Random, plan: pb.Plan) -> None:
    """Changes one field, in place."""
    if plan.take and rng.random() < 0.6:
        _bend_take(rng, plan.take[0])
        return
    name = rng.choice(("step", "take", *_LISTS))
    if name == "step":
        plan.step = rng.choice((0, plan.step + 1, 1 << 63))
    elif name == "take":
        plan.take.extend(list(plan.take))
    else:
        values = getattr(plan, name)
        if values and rng.random() < 0.6:
            values[rng.randrange(len(values))] = rng.choice(_INTS)
        elif values and rng.random() < 0.5:
            values.pop()
        else:
            values.append(rng.choice(_INTS))


def _bend_take(rng: random.Random, take: pb.Take) -> None:
    sampling = take.sampling
    match rng.randrange(9):
        case 0:
            take.slot = rng.choice(_INTS)
        case 1:
            take.tokens = struct.pack("<i", rng.choice((-1, -(1 << 31), (1 << 31) - 1, 60_000))) * rng.choice(
                (1, 8)
            )
        case 2:
            take.tokens = take.tokens * rng.choice((0, 2, 500)) + rng.choice((b"", b"\1"))
        case 3:
            setattr(take, rng.choice(("prompt_length", "max_tokens", "choice")), rng.choice(_INTS))
        case 4:
            take.blocks.append(rng.choice(_INTS))
        case 5:
            setattr(sampling, rng.choice(_REALS), rng.choice(_VALUES))
        case 6:
            setattr(sampling, rng.choice(("top_k", "min_tokens", "logprobs")), rng.choice(_INTS))
        case 7:
            sampling.logit_bias[rng.choice(_INTS)] = rng.choice(_VALUES)
        case _:
            sampling.stop_token_ids.append(rng.choice(_INTS))
