"""Compiles a constraint before its request is accepted, so that what is wrong with it is said at once."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pillion.contracts.entries import Constraint
from pillion.gateway.model import Model
from pillion.gateway.protocol.errors import bad, unavailable
from pillion.gateway.protocol.request import Shape
from pillion.grammar import Grammars, GrammarsGone

SECONDS = 0.5  # of the processor for one; the executor, which compiles it again, has more patience
MAX_WAITING = 32
KEPT = 512  # verdicts


class Compiler:
    """One grammar process, one at a time, beside the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "grammar")
        self._grammars: Grammars | None = None
        self._waiting = 0
        self._known: OrderedDict[Constraint, str] = OrderedDict()

    async def check(self, model: Model, shape: Shape) -> None:
        """Raises ApiError: 400 for what cannot be compiled, 503 where it cannot be told."""
        for part in shape.parts:
            await self.check(model, part)
        error = self._known.get(shape.constraint)
        if error is None:
            error = await self._compile(model, shape.constraint)
            self._known[shape.constraint] = error
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(shape.constraint)
        if error:
            code = "invalid_schema" if shape.constraint.kind == "json" else "invalid_grammar"
            raise bad(shape.param, f"{shape.param}: {error}.", code)

    async def _compile(self, model: Model, constraint: Constraint) -> str:
        if self._waiting >= MAX_WAITING:
            raise unavailable("grammar_busy", "Too many constraints wait to be compiled. Try again.")
        if self._grammars is None:
            self._grammars = Grammars(model.located, model.tokenizer.vocab_size, seconds=SECONDS)
        self._waiting += 1
        done = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(self._grammars.check, constraint)
        )
        done.add_done_callback(self._leave)
        try:
            return await asyncio.shield(done)
        except GrammarsGone as error:
            raise unavailable("grammar_unavailable", f"Constraints cannot be compiled: {error}.") from None

    def _leave(self, done: "asyncio.Future[str]") -> None:
        self._waiting -= 1
        done.cancelled() or done.exception()  # who asked may be gone

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.end()
