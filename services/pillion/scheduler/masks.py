"""What stands in a recording for users' tokens: numbers that are equal exactly where prefixes are. Pure.

Plans depend on tokens only by which prefixes are equal. The number for a token is a keyed hash (BLAKE2b) of
the salt and of all tokens up to it: two sequences have the same numbers as far as they have the same tokens,
and nothing in common behind that. So a replay finds the same prefix hits, whatever the block size. The key is
drawn for one recording and written nowhere: who has the file cannot even try a guess at a prompt.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b

import msgspec

from pillion.contracts.entries import Constraint, Request, Sampling

from .checkpoint import Checkpoint, Indexed
from .messages import Command, Connected, Event, Publish, Refuse, SendPlan, StepDone, Submitted

KEY = 32  # bytes
PAUSE_EVERY = 256  # tokens
_STATE = 16  # bytes


class _Chain:
    """A sequence's hash so far."""

    __slots__ = ("_key", "_pause", "incarnations", "state")

    def __init__(self, key: bytes, state: bytes, pause: Callable[[], None]) -> None:
        self._key = key
        self._pause = pause
        self.state = state
        self.incarnations: list[int] = []

    def go_on(self, tokens: Iterable[int]) -> tuple[int, ...]:
        key, state, numbers = self._key, self.state, []
        for index, token in enumerate(tokens, 1):
            state = blake2b(state + token.to_bytes(8, "little"), key=key, digest_size=_STATE).digest()
            numbers.append(int.from_bytes(state[:4], "little") >> 1)
            if not index % PAUSE_EVERY:
                self._pause()
        self.state = state
        return tuple(numbers)


class Masks:
    """Follows the events of one core, each with the commands that it led to."""

    def __init__(self, key: bytes, pause: Callable[[], None] = lambda: None) -> None:
        """`pause` is called every few hundred tokens: whoever else wants to run then does."""
        self._key = key
        self._pause = pause
        self._live: dict[str, dict[int, _Chain]] = {}
        self._incarnations: dict[int, _Chain] = {}

    def masked(self, event: Event, commands: list[Command]) -> Event:
        """The event without users' tokens, salts, logprobs and what else plans do not depend on."""
        match event:
            case Submitted():
                event = self._submitted(event)
            case StepDone():
                event = self._step_done(event, commands)
            case Connected():
                self._incarnations.clear()  # they count anew
        for command in commands:
            self._follow(command)
        return event

    def begun(self, held: Checkpoint) -> Checkpoint:
        """The same, masked; from now on events and commands that come behind it are followed."""
        self._live.clear()
        self._incarnations.clear()
        requests = {request.id: request for request, _ in held.requests}
        bare = {}
        for request in requests.values():
            root = self._root(request)
            prompts = tuple(_Chain(self._key, root, self._pause).go_on(each) for each in request.prompts)
            bare[request.id] = self._bare(request, prompts, root)
            self._live[request.id] = {}
        known = set(held.attached.known) if held.attached else set()
        sequences = []
        for place, each in enumerate(held.sequences):
            chain = _Chain(self._key, self._root(requests[each.request]), self._pause)
            sequences.append(msgspec.structs.replace(each, tokens=chain.go_on(each.tokens)))
            self._live[each.request][each.choice] = chain
            if place in known:
                chain.incarnations.append(each.incarnation)
                self._incarnations[each.incarnation] = chain
        attached = held.attached
        return msgspec.structs.replace(
            held,
            requests=tuple((bare[request.id], left) for request, left in held.requests),
            sequences=tuple(sequences),
            attached=attached
            and msgspec.structs.replace(
                attached,
                entries=self._entries(attached.entries),
                grammars=tuple(
                    msgspec.structs.replace(each, constraint=self._named(each.constraint))
                    for each in attached.grammars
                ),
            ),
        )

    def _entries(self, entries: Iterable[Indexed]) -> tuple[Indexed, ...]:
        masked: list[Indexed] = []
        states: list[bytes] = []
        for entry in entries:
            root = self._digest(b"salt:" + entry.salt.encode())
            chain = _Chain(self._key, states[entry.parent] if entry.parent >= 0 else root, self._pause)
            salt = root.hex() if entry.salt else ""
            masked.append(msgspec.structs.replace(entry, tokens=chain.go_on(entry.tokens), salt=salt))
            states.append(chain.state)
        return tuple(masked)

    def _root(self, request: Request) -> bytes:
        return self._digest(b"salt:" + request.cache_salt.encode())

    def _submitted(self, event: Submitted) -> Submitted:
        request = event.request
        root = self._root(request)
        prompts, chains, done = [], {}, {}
        for index, prompt in enumerate(request.prompts):
            chain = _Chain(self._key, root, self._pause)
            prompts.append(chain.go_on(prompt))
            for choice in range(index * request.n, (index + 1) * request.n):
                own = chains[choice] = _Chain(self._key, chain.state, self._pause)
                if choice in event.done:
                    done[choice] = own.go_on(event.done[choice])
        self._live.setdefault(request.id, chains)  # it may be delivered again
        return Submitted(self._bare(request, tuple(prompts), root), done, event.ended)

    def _step_done(self, event: StepDone, commands: list[Command]) -> StepDone:
        taken = {
            (item.request, item.choice)
            for command in commands
            if isinstance(command, Publish)
            for item in command.items
            if item.tokens
        }
        counted = {id(self._live[request][choice]) for request, choice in taken if request in self._live}
        rows = []
        for row in event.rows:
            chain = self._incarnations.get(row.incarnation)
            # What came too late or from a lost plan is no part of its sequence.
            counts = chain is not None and id(chain) in counted
            tokens = chain.go_on(row.tokens) if chain is not None and counts else (0,) * len(row.tokens)
            rows.append(replace(row, tokens=tokens, logprobs=None, error=None, prompt_logprobs=b""))
        return replace(event, rows=tuple(rows))

    def _follow(self, command: Command) -> None:
        match command:
            case SendPlan(plan):
                for take in plan.take:
                    chain = self._live[take.request.id][take.choice]
                    chain.incarnations.append(take.incarnation)
                    self._incarnations[take.incarnation] = chain
            case Publish():
                for request in (*command.finished, *command.parked):
                    self._over(request)
            case Refuse(refusal):
                self._over(refusal.request)

    def _over(self, request: str) -> None:
        for chain in self._live.pop(request, {}).values():
            for incarnation in chain.incarnations:
                if self._incarnations.get(incarnation) is chain:
                    del self._incarnations[incarnation]

    def _bare(self, request: Request, prompts: tuple[tuple[int, ...], ...], root: bytes) -> Request:
        constraint = request.sampling.constraint
        return msgspec.structs.replace(
            request,
            prompts=prompts,
            cache_salt=root.hex() if request.cache_salt else "",
            sampling=Sampling(
                seed=0,
                constraint=constraint and self._named(constraint),
                prompt_logprobs=request.sampling.prompt_logprobs,
            ),
            tenant="",
            traceparent="",
            fingerprint="",
        )

    def _named(self, constraint: Constraint) -> Constraint:
        """Plans depend on which are equal."""
        name = self._digest(b"constraint:" + msgspec.msgpack.encode(constraint))
        return Constraint(constraint.kind, name.hex())

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, key=self._key, digest_size=_STATE).digest()
