"""One run: the undisturbed answers first, then the same requests over and over while the blows fall."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import takewhile

import aiohttp

from pillion.ops import web
from pillion.ops.chaos.beside import second_gateway
from pillion.ops.chaos.compare import Answer, compare
from pillion.ops.chaos.data import Data
from pillion.ops.chaos.report import Record, Struck
from pillion.ops.chaos.schedule import Blow, each
from pillion.ops.chaos.streams import Stream, play
from pillion.ops.chaos.victims import processes, strike, wake
from pillion.ops.chaos.workload import Sizes, Work, requests
from pillion.ops.rig import Rig, RigError

RECOVERY_SECONDS = 120.0  # from a blow to a stack that is ready and brings tokens
END_SECONDS = 300.0  # for what still runs after the last blow
_LOOK = 0.05
_SEQUENCES = re.compile(r'^pillion_sequences\{state="(\w+)"\} (\S+)', re.MULTILINE)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    streams: int
    seed: int
    output: int
    blows: Sequence[Blow]
    gateways: int = 1  # two: one that is never struck beside the stack's


async def run(options: Options, rig: Rig, say: Say) -> Record:
    """Raises RigError where the stack does not start. What goes wrong later is in the record."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        urls = (await asyncio.to_thread(lambda: rig.url),)
        data = Data(rig.config.stack)
        try:
            # Its wait is short, and a child dies with the thread that made it: this one.
            with second_gateway(rig) if options.gateways > 1 else nullcontext() as beside:
                return await _run(options, rig, (*urls, beside) if beside else urls, session, data, say)
        finally:
            await data.close()


async def _run(
    options: Options, rig: Rig, urls: Sequence[str], session: aiohttp.ClientSession, data: Data, say: Say
) -> Record:
    counts = {role: len(pids) for role, pids in rig.processes().items()}
    options = replace(options, blows=each(options.blows, counts))
    facts = await data.facts()
    works = requests(
        options.seed, options.streams, Sizes(facts.vocab_size, facts.max_model_len, options.output)
    )
    say(f"{', '.join(urls)}: {len(works)} requests, undisturbed first")
    quiet = [Stream(work, "quiet") for work in works]
    await asyncio.gather(*(play(session, urls, stream) for stream in quiet))
    if failed := next((stream for stream in quiet if stream.error), None):
        raise RigError(f"the undisturbed run failed: {failed.error}\n{rig.tail()}")
    expected = [stream.answer for stream in quiet]
    say(f"{sum(answer.tokens for answer in expected)} tokens; now {len(options.blows)} blows")
    record = Record(
        {"streams": options.streams, "seed": options.seed, "output": options.output,
         "blows": len(options.blows), "gateways": options.gateways,
         "replicas": len(processes(rig, "scheduler"))}, time.monotonic(),
    )  # fmt: skip
    await _Storm(options, rig, urls, session, data, works, record, say).rage()
    judge(record, expected)
    if not record.faults:  # else it is known that something is left
        record.faults += await data.left()
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


class _Storm:
    """The clients and the blows, side by side."""

    def __init__(
        self, options: Options, rig: Rig, urls: Sequence[str], session: aiohttp.ClientSession, data: Data,
        works: Sequence[Work], record: Record, say: Say,
    ) -> None:  # fmt: skip
        self._options = options
        self._rig = rig
        self._urls = urls
        self._session = session
        self._data = data
        self._works = works
        self._record = record
        self._say = say
        self._frozen: list[asyncio.Task[None]] = []  # each wakes a process that is stopped
        self._over = False  # the last blow has fallen: nobody asks anew
        self._counts = {role: len(pids) for role, pids in rig.processes().items()}

    async def rage(self) -> None:
        clients = [asyncio.create_task(self._client(work)) for work in self._works]
        try:
            for number, blow in enumerate(self._options.blows):
                await self._strike(number, blow)
            await self._recovered()
        except RigError as broken:
            self._record.faults.append(str(broken))
        finally:
            for waking in self._frozen:
                waking.cancel()
            await asyncio.gather(*self._frozen, return_exceptions=True)
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
            await play(self._session, self._urls, stream)
            if stream.error:
                return
            turn += 1

    async def _strike(self, number: int, blow: Blow) -> None:
        if not blow.at_once:
            await self._recovered()
        await asyncio.sleep(blow.after)
        counts = {
            scheduler.replica: await asyncio.to_thread(self._scheduled, scheduler.pid)
            for scheduler in processes(self._rig, "scheduler")
        }
        running = {s.request: s for s in self._record.streams if s.request and s.running(time.monotonic())}
        holders = await self._data.holders(running)
        if blow.kind == "flush":
            await self._answered()
        struck = await strike(self._rig, self._data, blow)
        if blow.kind == "stop":
            self._frozen.append(asyncio.create_task(wake(struck)))
        if struck.replica:  # it held those, and no others
            counts = {name: count for name, count in counts.items() if name == struck.replica}
            struck.requests = frozenset(name for name, who in holders.items() if who == struck.replica)
        struck.prefilling, struck.decoding, struck.waiting = (
            sum(count[state] for count in counts.values()) for state in ("prefilling", "decoding", "waiting")
        )
        self._record.struck.append(struck)
        if not struck.died:
            self._record.faults.append(f"{struck.name} {struck.pid} did not feel a {blow.kind}")
        self._say(
            f"{time.monotonic() - self._record.began:6.1f} s  {number + 1}/{len(self._options.blows)}"
            f"  {blow.kind} {struck.name} {struck.pid}: {struck.prefilling} in prefill,"
            f" {struck.decoding} in decode"
        )

    def _scheduled(self, pid: int) -> dict[str, int]:
        """Sequences by state, as the metrics of this scheduler have them now."""
        counts = {"waiting": 0, "prefilling": 0, "decoding": 0}
        with suppress(KeyError, web.Unreachable):  # it is just starting, or has just died
            _, text = web.get(self._rig.scrapes[pid], timeout=1.0)
            for state, count in _SEQUENCES.findall(text):
                counts[state] = counts.get(state, 0) + int(float(count))
        return counts

    async def _answered(self) -> None:
        """Waits until streams run and a gateway has each that has brought something: one that is on its way
        back to a gateway stands in Redis alone. Raises RigError."""
        end = time.monotonic() + RECOVERY_SECONDS
        while True:
            begun = [stream for stream in self._record.streams if stream.identity and stream.ended is None]
            if begun and all(stream.connected for stream in begun):
                return
            if time.monotonic() > end:
                raise RigError(f"a stream is at no gateway after {RECOVERY_SECONDS:g} s:\n{self._rig.tail()}")
            await asyncio.sleep(_LOOK)

    async def _recovered(self) -> None:
        """Waits until every role has a process, the gateway is ready, and tokens have come since. Raises
        RigError where that takes too long."""
        end = time.monotonic() + RECOVERY_SECONDS
        while not await self._whole():
            if time.monotonic() > end:
                raise RigError(f"not whole again after {RECOVERY_SECONDS:g} s:\n{self._rig.tail()}")
            await asyncio.sleep(_LOOK)
        whole = time.monotonic()
        while not any(stream.times and stream.times[-1] > whole for stream in self._record.streams[-512:]):
            if time.monotonic() > end:
                raise RigError(f"no token after {RECOVERY_SECONDS:g} s:\n{self._rig.tail()}")
            await asyncio.sleep(_LOOK)
        for struck in self._record.struck:
            if struck.back is None:
                struck.back = time.monotonic()
                self._settle(struck)

    async def _whole(self) -> bool:
        """Whether all processes are there and awake, each that died was followed, and what was lost
        is put back."""
        pids = self._rig.processes()
        if not all(waking.done() for waking in self._frozen):
            return False
        if any(len(pids.get(role, ())) < count for role, count in self._counts.items()):
            return False
        open_ = [struck for struck in self._record.struck if struck.back is None]
        if not all(map(self._followed, open_)) or not await asyncio.to_thread(lambda: self._rig.ready):
            return False
        if not any(struck.blow.kind == "flush" for struck in open_):
            return True
        answered = {stream.request for stream in self._record.streams if stream.connected and stream.identity}
        return await self._data.whole(filter(None, answered), self._counts.get("scheduler", 1))

    def _followed(self, struck: Struck) -> bool:
        if struck.blow.kind not in ("kill", "term"):
            return True
        if struck.pid in self._rig.processes().get(struck.blow.role, ()):
            return False
        return struck.blow.role not in ("scheduler", "executor") or any(
            line.role == struck.named("scheduler") and "executor attached" in line.text
            for line in takewhile(lambda line: line.at > struck.at, reversed(self._rig.said))
        )

    def _settle(self, struck: Struck) -> None:
        """Looks who came after a process that died, and how it ended."""
        role, pid = struck.blow.role, struck.pid
        others = (process for process in processes(self._rig, role) if process.replica == struck.replica)
        struck.new_pid = max((process.pid for process in others if process.pid != pid), default=None)
        if struck.blow.kind not in ("kill", "term"):
            return
        if struck.new_pid is None:
            self._record.faults.append(f"nobody came after {struck.name} {pid}")
        for line in self._rig.said:
            if line.role == "up" and (
                ended := re.search(rf"{struck.name} {pid} ended: exit code (\d+)", line.text)
            ):
                struck.code = int(ended[1])
        if struck.blow.kind == "term" and struck.code != 0:
            self._record.faults.append(
                f"{struck.name} {pid} was asked to end and ended with {struck.code}, not 0"
            )
