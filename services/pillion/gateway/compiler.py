"""Compiles a constraint before its request is accepted, so that what is wrong with it is said at once."""

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pillion import clock
from pillion.contracts.entries import Constraint
from pillion.gateway.model import Model
from pillion.gateway.protocol.errors import ApiError, bad, contradiction, unavailable
from pillion.gateway.protocol.request import Shape, Wishes
from pillion.gateway.turns import Turns, Who
from pillion.grammar import Grammars, GrammarsGone

log = logging.getLogger(__name__)

SECONDS = 0.5  # of the processor for one; the executor, which compiles it again, has more patience
MAX_WAITING = 32  # of a sender's
MAX_OF_TENANT = 256
PATIENCE = 15.0  # seconds that a request waits for a verdict
RETRY = 2.0  # seconds
KEPT = 512  # verdicts
KEPT_TOKENS = 256  # of a question; one with more is asked again


@dataclass(frozen=True, slots=True)
class Question:
    """Whether the constraint compiles; or, with `only` or `never`, whether one of these tokens, if there are
    any, and none of those can come first.
    """

    constraint: Constraint
    only: tuple[int, ...] = ()
    never: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Job:
    """A question, for all of a sender's requests that have the same."""

    model: Model
    question: Question
    verdict: "asyncio.Future[str]"
    askers: int = 0


class Compiler:
    """One grammar process, one at a time, beside the event loop; tenants take turns, and senders within."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar")
        self._grammars: Grammars | None = None
        self._turns: Turns[_Job] = Turns(MAX_WAITING, MAX_OF_TENANT)
        self._jobs: dict[tuple[Who, Question], _Job] = {}
        self._working: asyncio.Task[None] | None = None
        self._known: OrderedDict[Question, str] = OrderedDict()

    async def check(self, model: Model, shape: Shape, who: Who) -> None:
        """Raises ApiError: 400 for what cannot be compiled, 429 where too much of theirs waits, 503
        where it cannot be told.
        """
        for part in shape.parts:
            await self.check(model, part, who)
        if error := await self._verdict(model, Question(shape.constraint), who):
            code = "invalid_schema" if shape.constraint.kind == "json" else "invalid_grammar"
            raise bad(shape.param, f"{shape.param}: {error}.", code)

    async def begins(self, model: Model, shape: Shape, wishes: Wishes, words: set[int], who: Who) -> None:
        """Raises ApiError: 400 where none of the tokens that may come first can be drawn. `words`: the tokens
        that are bad words by themselves. For a shape that has passed the check.
        """
        barred = {"bad_words": words, "stop_token_ids": set(wishes.stop_token_ids)}
        question = Question(shape.constraint, wishes.allowed_token_ids, frozenset().union(*barred.values()))
        if (question.only or question.never) and await self._verdict(model, question, who):
            fields = {"allowed_token_ids": question.only, **barred}
            raise contradiction([shape.param, *(name for name, tokens in fields.items() if tokens)])

    async def _verdict(self, model: Model, question: Question, who: Who) -> str:
        if (known := self._known.get(question)) is not None:
            self._known.move_to_end(question)
            return known
        job = self._jobs.get((who, question)) or self._add(model, question, who)
        job.askers += 1
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(job.verdict)
        except TimeoutError:
            raise unavailable(
                "grammar_busy", "Too many constraints wait to be compiled. Try again."
            ) from None
        except GrammarsGone as error:
            raise unavailable("grammar_unavailable", f"Constraints cannot be compiled: {error}.") from None
        finally:
            job.askers -= 1
            if not job.askers and not job.verdict.done():
                self._turns.drop(who, job)
                self._jobs.pop((who, question), None)

    def _add(self, model: Model, question: Question, who: Who) -> _Job:
        job = _Job(model, question, asyncio.get_running_loop().create_future())
        if not self._turns.add(who, len(question.constraint.text), job):
            raise ApiError(
                429,
                f"{MAX_WAITING} constraints of yours wait to be compiled already. Try again later; one that "
                "several requests have in common is compiled once.",
                type="rate_limit_error",
                code="grammar_queue_full",
                retry_after=RETRY,
            )
        self._jobs[who, question] = job
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="grammars")
        return job

    async def _work(self) -> None:
        """Until nothing waits."""
        while (taken := self._turns.take()) is not None:
            who, job = taken
            begun = clock.monotonic()
            try:
                error = await self._answer(job)
            except Exception as raised:  # noqa: BLE001 - it is told to who asked
                if not job.askers:
                    log.warning("a constraint could not be compiled: %s", raised)
                elif not job.verdict.done():
                    job.verdict.set_exception(raised)
            else:
                if not job.verdict.done():
                    job.verdict.set_result(error)
            finally:
                self._turns.charge(who, clock.monotonic() - begun)
                if self._jobs.get((who, job.question)) is job:
                    del self._jobs[who, job.question]

    async def _answer(self, job: _Job) -> str:
        if self._grammars is None:
            self._grammars = Grammars(job.model.located, job.model.tokenizer.vocab_size, 1, SECONDS)
        question = job.question
        known = self._known.get(question)  # another one may have asked the same
        if known is not None:
            return known
        error = await asyncio.get_running_loop().run_in_executor(
            self._pool, _answer, self._grammars, question
        )
        if len(question.only) + len(question.never) <= KEPT_TOKENS:
            self._known[question] = error
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return error

    def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
        for job in self._jobs.values():
            job.verdict.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.end()


def _answer(grammars: Grammars, question: Question) -> str:
    if not (question.only or question.never):
        return grammars.check(question.constraint)
    grammars.open(0, question.constraint, ())
    grammars.ask((0,))
    masked = grammars.answer().get(0)
    if masked is None or masked.error or masked.accepting:
        return ""  # it cannot be told, or the text may be empty
    return "" if _left(bytearray(masked.bits), question) else "no token is left"


def _left(bits: bytearray, question: Question) -> bool:
    """Whether a token is left of the mask `bits`."""
    size = len(bits) * 8
    if question.only:
        allowed = {token for token in question.only if token < size and bits[token >> 3] >> (token & 7) & 1}
        return not allowed <= question.never
    for token in question.never:
        if token < size:
            bits[token >> 3] &= ~(1 << (token & 7))
    return any(bits)
