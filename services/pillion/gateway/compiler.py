"""Compiles a constraint before its request is accepted, so that what is wrong with it is said at once."""

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pillion import clock
from pillion.contracts.entries import Constraint
from pillion.gateway.model import Model
from pillion.gateway.protocol.errors import ApiError, bad, unavailable
from pillion.gateway.protocol.request import Shape
from pillion.gateway.turns import Turns
from pillion.grammar import Grammars, GrammarsGone

log = logging.getLogger(__name__)

SECONDS = 0.5  # of the processor for one; the executor, which compiles it again, has more patience
MAX_WAITING = 16  # of a tenant's
PATIENCE = 15.0  # seconds that a request waits for a verdict
RETRY = 2.0  # seconds
KEPT = 512  # verdicts


@dataclass(slots=True, eq=False)
class _Job:
    """What to compile, for all of a tenant's requests that ask for the same."""

    model: Model
    constraint: Constraint
    verdict: "asyncio.Future[str]"
    askers: int = 0


class Compiler:
    """One grammar process, one at a time, beside the event loop; tenants take turns."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar")
        self._grammars: Grammars | None = None
        self._turns: Turns[_Job] = Turns(MAX_WAITING)
        self._jobs: dict[tuple[str, Constraint], _Job] = {}
        self._working: asyncio.Task[None] | None = None
        self._known: OrderedDict[Constraint, str] = OrderedDict()

    async def check(self, model: Model, shape: Shape, tenant: str = "") -> None:
        """Raises ApiError: 400 for what cannot be compiled, 429 where too much of the tenant's waits, 503
        where it cannot be told.
        """
        for part in shape.parts:
            await self.check(model, part, tenant)
        error = self._known.get(shape.constraint)
        if error is None:
            error = await self._verdict(model, shape.constraint, tenant)
        else:
            self._known.move_to_end(shape.constraint)
        if error:
            code = "invalid_schema" if shape.constraint.kind == "json" else "invalid_grammar"
            raise bad(shape.param, f"{shape.param}: {error}.", code)

    async def _verdict(self, model: Model, constraint: Constraint, tenant: str) -> str:
        job = self._jobs.get((tenant, constraint)) or self._add(model, constraint, tenant)
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
                self._turns.drop(tenant, job)
                self._jobs.pop((tenant, constraint), None)

    def _add(self, model: Model, constraint: Constraint, tenant: str) -> _Job:
        job = _Job(model, constraint, asyncio.get_running_loop().create_future())
        if not self._turns.add(tenant, len(constraint.text), job):
            raise ApiError(
                429,
                f"{MAX_WAITING} constraints of yours wait to be compiled already. Try again later; one that "
                "several requests have in common is compiled once.",
                type="rate_limit_error",
                code="grammar_queue_full",
                retry_after=RETRY,
            )
        self._jobs[tenant, constraint] = job
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="grammars")
        return job

    async def _work(self) -> None:
        """Until nothing waits."""
        while (taken := self._turns.take()) is not None:
            tenant, job = taken
            begun = clock.monotonic()
            try:
                error = await self._compile(job)
            except Exception as raised:  # noqa: BLE001 - it is told to who asked
                if not job.askers:
                    log.warning("a constraint could not be compiled: %s", raised)
                elif not job.verdict.done():
                    job.verdict.set_exception(raised)
            else:
                if not job.verdict.done():
                    job.verdict.set_result(error)
            finally:
                self._turns.charge(tenant, clock.monotonic() - begun)
                if self._jobs.get((tenant, job.constraint)) is job:
                    del self._jobs[tenant, job.constraint]

    async def _compile(self, job: _Job) -> str:
        error = self._known.get(job.constraint)  # another tenant may have asked for the same
        if error is None:
            if self._grammars is None:
                self._grammars = Grammars(job.model.located, job.model.tokenizer.vocab_size, seconds=SECONDS)
            check = partial(self._grammars.check, job.constraint)
            error = await asyncio.get_running_loop().run_in_executor(self._pool, check)
        self._known[job.constraint] = error
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
