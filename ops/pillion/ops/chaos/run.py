"""One run: the undisturbed answers first, then the same requests over and over while the blows fall."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from pillion.bus import Connection, Keys
from pillion.config import load
from pillion.contracts.entries import Heartbeat, decode
from pillion.ops import stack as files
from pillion.ops.chaos.compare import Answer, compare
from pillion.ops.chaos.report import Record, Struck
from pillion.ops.chaos.schedule import Blow
from pillion.ops.chaos.stack import Broken, Stack
from pillion.ops.chaos.streams import Stream, play
from pillion.ops.chaos.victims import strike
from pillion.ops.chaos.workload import Sizes, Work, requests

RECOVERY_SECONDS = 120.0  # from a blow to a stack that is ready and brings tokens
END_SECONDS = 300.0  # for what still runs after the last blow
_LOOK = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    streams: int
    seed: int
    output: int
    blows: Sequence[Blow]


async def run(options: Options, stack: Stack, say: Say) -> Record:
    """Raises Broken where the stack does not start. What goes wrong later is in the record."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await stack.start()
        sizes = await _sizes(stack, options.output)
        works = requests(options.seed, options.streams, sizes)
        say(f"{stack.url}: {len(works)} requests, undisturbed first")
        quiet = [Stream(work, "quiet") for work in works]
        await asyncio.gather(*(play(session, stack.url, stream) for stream in quiet))
        if failed := next((stream for stream in quiet if stream.error), None):
            raise Broken(f"the undisturbed run failed: {failed.error}\n{stack.tail()}")
        expected = [stream.answer for stream in quiet]
        say(f"{sum(answer.tokens for answer in expected)} tokens; now {len(options.blows)} blows")
        record = Record(
            {"streams": options.streams, "seed": options.seed, "output": options.output,
             "blows": len(options.blows)}, time.monotonic(),
        )  # fmt: skip
        await _Storm(options, stack, session, works, record, say).rage()
        judge(record, expected)
        return record


def judge(record: Record, expected: Sequence[Answer]) -> None:
    """Compares every stream."""
    for stream in record.streams:
        name = f"request {stream.work.index}, {stream.salt}"
        if stream.error is not None or stream.ended is None:
            record.faults.append(f"{name}: {stream.error or 'it has not ended'}")
            continue
        found = compare(expected[stream.work.index], stream.answer)
        if found is not None:
            record.lost += found.lost
            record.doubled += found.doubled
            record.differences.append({"stream": name, "words": found.words})


async def _sizes(stack: Stack, output: int) -> Sizes:
    """What the model can take, from its replica's heartbeat."""
    settings = next(stack.state.glob("*/stack.toml"))
    config = load(environ={}, file=files.settings_file(settings.parent)).config
    connection = Connection(config.stack.redis or "", "chaos")
    try:
        beats = await connection.call("HVALS", Keys(config.stack.stack).replicas)
    finally:
        await connection.close()
    facts = next(facts for beat in beats if (facts := decode(beat, Heartbeat).facts) is not None)
    return Sizes(facts.vocab_size, facts.max_model_len, output)


class _Storm:
    """The clients and the blows, side by side."""

    def __init__(
        self, options: Options, stack: Stack, session: aiohttp.ClientSession, works: Sequence[Work],
        record: Record, say: Say,
    ) -> None:  # fmt: skip
        self._options = options
        self._stack = stack
        self._session = session
        self._works = works
        self._record = record
        self._say = say
        self._over = False  # the last blow has fallen: nobody asks anew
        self._dice = random.Random(f"storm {options.seed}")

    async def rage(self) -> None:
        clients = [asyncio.create_task(self._client(work)) for work in self._works]
        try:
            for number, blow in enumerate(self._options.blows):
                await self._strike(number, blow)
            await self._recovered()
        except Broken as broken:
            self._record.faults.append(str(broken))
        self._over = True
        _, late = await asyncio.wait(clients, timeout=END_SECONDS if not self._record.faults else 10.0)
        for client in late:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, work: Work) -> None:
        """The same request again and again, never with a prefix that was computed before."""
        turn = 0
        while not self._over:
            stream = Stream(work, f"turn {turn}")
            self._record.streams.append(stream)
            await play(self._session, self._stack.url, stream)
            if stream.error:
                return
            turn += 1

    async def _strike(self, number: int, blow: Blow) -> None:
        if not blow.at_once:
            await self._recovered()
        await asyncio.sleep(blow.after)
        counts = await self._stack.scheduled(self._session)
        struck = await strike(self._stack, blow, self._dice.random())
        struck.prefilling, struck.decoding = counts["prefilling"], counts["decoding"]
        struck.waiting = counts["waiting"]
        self._record.struck.append(struck)
        if not struck.died:
            self._record.faults.append(f"{blow.role} {struck.pid} did not feel a {blow.kind}")
        self._say(
            f"{time.monotonic() - self._record.began:6.1f} s  {number + 1}/{len(self._options.blows)}"
            f"  {blow.kind} {blow.role} {struck.pid}: {counts['prefilling']} in prefill,"
            f" {counts['decoding']} in decode"
        )

    async def _recovered(self) -> None:
        """Waits until every role has a process, the gateway is ready, and tokens have come since. Raises
        Broken where that takes too long."""
        end = time.monotonic() + RECOVERY_SECONDS
        while not await self._whole():
            if time.monotonic() > end:
                raise Broken(f"not whole again after {RECOVERY_SECONDS:g} s:\n{self._stack.tail()}")
            await asyncio.sleep(_LOOK)
        whole = time.monotonic()
        while not any(stream.times and stream.times[-1] > whole for stream in self._record.streams[-512:]):
            if time.monotonic() > end:
                raise Broken(f"no token after {RECOVERY_SECONDS:g} s:\n{self._stack.tail()}")
            await asyncio.sleep(_LOOK)
        for struck in self._record.struck:
            if struck.back is None:
                struck.back = time.monotonic()
                self._settle(struck)

    async def _whole(self) -> bool:
        pids = self._stack.pids()
        for struck in self._record.struck:
            role = struck.blow.role
            if struck.blow.kind != "stop" and struck.back is None and (
                not pids.get(role) or struck.pid in pids[role]
            ):  # fmt: skip
                return False
        return await self._stack.ready(self._session)

    def _settle(self, struck: Struck) -> None:
        """Looks who came after a process that died, and how it ended."""
        role, pid = struck.blow.role, struck.pid
        struck.new_pid = max((p for p in self._stack.pids().get(role, ()) if p != pid), default=None)
        if struck.blow.kind == "stop":
            return
        if struck.new_pid is None:
            self._record.faults.append(f"nobody came after {role} {pid}")
        for line in self._stack.lines:
            if line.role == "up" and (
                ended := re.search(rf"{role}(?:-\S+)? {pid} ended: exit code (\d+)", line.text)
            ):
                struck.code = int(ended[1])
        if struck.blow.kind == "term" and struck.code != 0:
            self._record.faults.append(f"{role} {pid} was asked to end and ended with {struck.code}, not 0")
