"""Those who send requests and wait for tokens. Times of tokens are kept only while a request runs."""

from array import array
from collections.abc import Callable, Iterator, Sequence

from pillion.contracts.entries import Refusal, Request, Sampling, Tokens
from pillion.ops.measure import FAILED, FINISHED, UNFINISHED, Tally, outcome
from pillion.ops.traces import Arrival, Closed, tokens
from pillion.scheduler.messages import Plan

from .bubbles import Bubbles
from .clock import Clock
from .executor import Ran
from .stages import Passage
from .watch import Watch

MODEL = "simulated"
EVERY = 100  # requests between two words of progress


class Stream:
    """A request that runs."""

    __slots__ = ("at", "cached", "delay", "prompt", "result", "times")

    def __init__(self, at: float, prompt: int) -> None:
        self.at = at
        self.prompt = prompt
        self.cached = 0
        self.delay: float | None = None
        self.result = FINISHED
        self.times = array("d")


class Clients:
    """Sends what arrives, and counts what becomes of it. A listener of every replica."""

    def __init__(
        self,
        clock: Clock,
        arrivals: Iterator[Arrival],
        closed: Closed | None,
        tally: Tally,
        watch: Watch,
        seed: int,
        progress: Callable[[int, float], None] | None,
        bubbles: Bubbles | None = None,
    ) -> None:
        """With `closed` the arrivals' times are not looked at. `bubbles`: where executors have stages."""
        self.sent = 0
        self.last = 0.0  # when the last was due
        self._clock = clock
        self._arrivals = arrivals
        self._closed = closed
        self.tally = tally
        self._watch = watch
        self._seed = seed
        self._progress = progress
        self._bubbles = bubbles
        self._streams: dict[str, Stream] = {}
        self._over = False  # nothing more arrives

    def start(self, submit: Callable[[Request], None]) -> None:
        """`submit` takes each request when it is sent."""
        self._submit = submit
        for _ in range(1 if self._closed is None else self._closed.clients):
            self._next()

    @property
    def busy(self) -> bool:
        """Whether anything is still to arrive or to end."""
        return bool(self._streams) or not self._over

    def stop(self) -> None:
        """Nothing more arrives, and what has not ended counts as unfinished."""
        self._over = True
        for id in list(self._streams):
            self._end(id, UNFINISHED)

    def _next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._over = True
        else:
            self._clock.at(self._clock.now if self._closed else arrival.at, self._send, arrival)

    def _send(self, arrival: Arrival) -> None:
        at, id = self._clock.now, str(self.sent)
        request = Request(
            id=id,
            gateway="simulated",
            model=MODEL,
            prompts=(tokens(self._seed, self.sent, arrival),),
            sampling=Sampling(seed=0, ignore_eos=True),
            arrival=at,
            max_tokens=arrival.output,
            priority=arrival.priority,
            tenant=arrival.tenant,
        )
        self.sent += 1
        self.last = at
        self._streams[id] = Stream(at, arrival.prompt)
        self._submit(request)
        if self._progress is not None and self.sent % EVERY == 0:
            self._progress(self.sent, at)
        if self._closed is None:
            self._next()

    def _end(self, id: str, result: str) -> None:
        stream = self._streams.pop(id)
        if self._bubbles is not None:
            self._bubbles.ended(id)
        self.tally.add(
            *outcome(
                stream.at,
                stream.times,
                prompt=stream.prompt,
                result=result,
                cached=stream.cached,
                delay=stream.delay,
            )
        )
        if self._closed is not None and result != UNFINISHED:
            self._clock.at(self._clock.now + self._closed.think, self._next)

    # --- as a listener -----------------------------------------------------------------------------

    def ran(self, replica: str, plan: Plan, done: Ran, passage: Passage) -> None:
        for take in plan.take:
            stream = self._streams[take.request.id]
            if stream.delay is None:
                stream.delay = passage.start - stream.at
        self._watch.ran(plan, done, passage.start)
        if self._bubbles is not None:
            self._bubbles.ran(replica, plan, done.seconds, passage)

    def brought(self, replica: str, items: Sequence[Tokens], finished: Sequence[str], at: float) -> None:
        streams = self._streams
        for item in items:
            stream = streams[item.request]
            for _ in item.tokens:
                stream.times.append(at)
            if not item.position:
                stream.cached = item.cached
            if item.finish == "error":
                stream.result = FAILED
        for id in finished:
            self._clock.at(at, self._end, id, streams[id].result)

    def refused(self, refusal: Refusal, at: float) -> None:
        self._clock.at(at, self._end, refusal.request, refusal.code or str(refusal.status))

    def changed(self, replica: str) -> None:
        """Nothing that a client sees."""
