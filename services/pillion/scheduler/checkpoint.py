"""All that a core's answers depend on, as plain data: so a recording can begin in the midst of a life.

This module alone looks into the core's parts. `restored(settings, checkpoint(core))` answers as `core` does;
counts that only tell what happened go along.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import astuple

import msgspec

from pillion.config import Scheduler
from pillion.contracts.entries import Facts, Request
from pillion.steptime import StepTime, Work

from .blocks import Pool
from .budget import Budget
from .core import Core, Live
from .correction import Corrected
from .flights import Flight
from .grammars import Placed
from .prefix import Entry
from .roster import Counters, Roster
from .sequence import Sequence, State


class Indexed(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the prefix index. `parent`: its place among all, -1 for none."""

    parent: int
    tokens: tuple[int, ...]
    salt: str
    block: int
    step: int
    found: bool  # or taken out of the index, and a parent still


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A sequence; what follows from its request is left out."""

    request: str
    choice: int
    tokens: tuple[int, ...]
    order: int
    state: str
    preemptions: int
    reached: int
    failures: int
    cached: int | None
    incarnation: int
    step: int
    taken: int
    told: float
    max_tokens: int
    slot: int
    computed: int
    blocks: tuple[int, ...]
    sent: int
    entries: tuple[int, ...]  # places among all entries
    indexed: bool


class Flown(msgspec.Struct, frozen=True, array_like=True):
    """A plan in flight. Rows of what has ended since are left out: nothing comes of them."""

    step: int
    rows: tuple[int, ...]
    ends: tuple[int, ...]
    work: Work
    sent: float
    predicted: float
    pipelined: bool | None
    lost: bool


class Attached(msgspec.Struct, frozen=True):
    """What is there while an executor is. Sequences by their place among all; blocks in their order."""

    facts: Facts
    measured: StepTime | None
    learned: tuple[float, ...]  # by the cost model
    decoding: tuple[int, ...]
    known: tuple[int, ...]  # sequences whose results count
    incarnation: int
    returned: int
    free_slots: tuple[int, ...]
    releasing: tuple[int, ...]
    free: tuple[int, ...]
    cached: tuple[int, ...]
    entries: tuple[Indexed, ...]
    grammars: tuple[Placed, ...] = ()
    compiling: float = 0.0


class Checkpoint(msgspec.Struct, frozen=True):
    settings: Scheduler  # with an administrator's limits
    requests: tuple[tuple[Request, int], ...]  # each with its choices that have not ended
    sequences: tuple[Held, ...]
    suspects: tuple[int, ...]
    flights: tuple[Flown, ...]
    order: int
    step: int
    left: tuple[float, ...]  # when the last plan that returned left each stage
    lead: float
    woken_at: float | None
    counters: tuple[int, ...]
    attached: Attached | None


class BadCheckpoint(ValueError):
    """It is none that a core could have had."""


def checkpoint(core: Core) -> Checkpoint:
    """Takes milliseconds: a copy of all tokens of live requests and cached blocks."""
    sequences = [sequence for live in core._requests.values() for sequence in live.sequences]
    places = {id(sequence): place for place, sequence in enumerate(sequences)}
    roster = core._roster
    entries = _ordered(sequences, roster.pool) if roster else []
    where = {id(entry): place for place, entry in enumerate(entries)}

    def held(sequence: Sequence) -> Held:
        return Held(
            sequence.request.id, sequence.choice, tuple(sequence.tokens), sequence.rank[2],
            sequence.state.name, sequence.preemptions, sequence.reached, sequence.failures, sequence.cached,
            sequence.incarnation, sequence.step, sequence.taken, sequence.told, sequence.max_tokens,
            sequence.slot, sequence.computed, tuple(sequence.blocks), sequence.sent,
            tuple(where[id(entry)] for entry in sequence.entries), sequence.indexed,
        )  # fmt: skip

    return Checkpoint(
        settings=msgspec.structs.replace(core._settings, record=None),
        requests=tuple((live.request, live.left) for live in core._requests.values()),
        sequences=tuple(map(held, sequences)),
        suspects=tuple(places[id(sequence)] for sequence in core._suspects),
        flights=tuple(_flown(flight, places) for flight in core._flights),
        order=core._order,
        step=core._step,
        left=tuple(core._flights._left),
        lead=core._flights.lead,
        woken_at=core._woken_at,
        counters=astuple(core._counters),
        attached=None if roster is None else _attached(core, roster, places, entries),
    )


def _flown(flight: Flight, places: dict[int, int]) -> Flown:
    rows = [
        (places[id(sequence)], end)
        for sequence, end in zip(flight.rows, flight.ends, strict=True)
        if sequence.state is not State.ENDED
    ]
    return Flown(
        flight.step, tuple(row for row, _ in rows), tuple(end for _, end in rows), flight.work, flight.sent,
        flight.predicted, flight.pipelined, flight.lost,
    )  # fmt: skip


def _attached(core: Core, roster: Roster, places: dict[int, int], entries: list[Entry]) -> Attached:
    assert core._facts is not None and core._budget is not None
    pool, cost = roster.pool, core._budget.cost
    where = {id(entry): place for place, entry in enumerate(entries)}
    return Attached(
        facts=core._facts,
        measured=cost.model if isinstance(cost, Corrected) else None,
        learned=cost.learned,
        decoding=tuple(places[id(sequence)] for sequence in roster.decoding),
        known=tuple(sorted(places[id(sequence)] for sequence in roster.by_incarnation.values())),
        incarnation=roster._incarnation,
        returned=roster.returned,
        free_slots=tuple(roster.free_slots),
        releasing=tuple(roster._releasing),
        free=tuple(pool._free),
        cached=tuple(pool._cached),
        entries=tuple(
            Indexed(
                where[id(entry.parent)] if entry.parent else -1, entry.tokens, entry.salt, entry.block,
                entry.step, pool._entries[entry.block] is entry,
            )
            for entry in entries
        ),
        grammars=roster.grammars.held,
        compiling=roster.grammars.since,
    )  # fmt: skip


def _ordered(sequences: Iterable[Sequence], pool: Pool) -> list[Entry]:
    """All entries that somebody refers to, parents first."""
    found: dict[int, Entry] = {}
    starts = [entry for entry in pool._entries if entry is not None]
    starts += [entry for sequence in sequences for entry in sequence.entries]
    for entry in starts:
        chain: list[Entry] = []
        ancestor: Entry | None = entry
        while ancestor is not None and id(ancestor) not in found:
            chain.append(ancestor)
            ancestor = ancestor.parent
        found |= {id(one): one for one in reversed(chain)}
    return list(found.values())


# --- and back --------------------------------------------------------------------------------------


def restored(settings: Scheduler, held: Checkpoint) -> Core:
    """`settings`: as configured. Raises BadCheckpoint, policies.UnknownPolicy."""
    core = Core(settings)
    try:
        _fill(core, held)
        core.check()
    except (LookupError, TypeError, ValueError, AssertionError) as error:
        raise BadCheckpoint(f"it begins with a state that no scheduler has: {error!r}") from None
    return core


def _fill(core: Core, held: Checkpoint) -> None:
    core._settings = held.settings
    core._order, core._step, core._woken_at = held.order, held.step, held.woken_at
    core._flights.attach(len(held.left))
    core._flights._left, core._flights.lead = list(held.left), held.lead
    core._counters = Counters(*held.counters)
    requests = {request.id: request for request, _ in held.requests}
    sequences = [_sequence(requests[each.request], each, core._settings) for each in held.sequences]
    for request, left in held.requests:
        core._requests[request.id] = Live(request, [], left)
    for sequence in sequences:
        core._requests[sequence.request.id].sequences.append(sequence)
        if sequence.state is State.WAITING:
            core._waiting.join(sequence)
    core._suspects.extend(sequences[place] for place in held.suspects)
    for flown in held.flights:
        rows = [sequences[place] for place in flown.rows]
        core._flights.append(
            Flight(
                flown.step, rows, flown.ends, flown.work, flown.sent, flown.predicted, flown.pipelined,
                flown.lost,
            )
        )  # fmt: skip
    if held.attached is not None:
        _attach(core, held.attached, held.sequences, sequences)


def _sequence(request: Request, held: Held, settings: Scheduler) -> Sequence:
    sequence = Sequence(
        request,
        held.choice,
        done=(),
        max_tokens=held.max_tokens,
        order=held.order,
        ageing=settings.priority_ageing,
    )
    sequence.tokens = list(held.tokens)
    sequence.state = State[held.state]
    for name in ("preemptions", "reached", "failures", "cached", "incarnation", "step", "taken", "told"):
        setattr(sequence, name, getattr(held, name))
    for name in ("slot", "computed", "sent", "indexed"):
        setattr(sequence, name, getattr(held, name))
    sequence.blocks = list(held.blocks)
    return sequence


def _attach(core: Core, held: Attached, all_held: Iterable[Held], sequences: list[Sequence]) -> None:
    facts, settings = held.facts, core._settings
    pool = Pool(facts.num_blocks, facts.block_size, settings.enable_prefix_caching, core._hash)
    slots = min(settings.max_num_seqs, facts.max_num_seqs)
    reserves = core._policy.reserves
    roster = Roster(
        core._waiting, pool, slots, settings.watermark, core._counters, reserves, facts.pp, facts.grammars
    )
    roster.grammars.go_on(held.grammars, held.compiling)
    core._facts, core._roster = facts, roster
    core._budget = Budget(settings, facts, held.measured)
    core._budget.cost.go_on(held.learned)
    entries: list[Entry] = []
    for each in held.entries:
        parent = entries[each.parent] if each.parent >= 0 else None
        entry = pool.index.make(parent, each.tokens, each.salt, each.block, each.step)
        if each.found:
            pool.index.put(entry)
            pool._entries[each.block] = entry
        entries.append(entry)
    pool._free = list(held.free)
    pool._cached = OrderedDict.fromkeys(held.cached)
    for sequence, each_held in zip(sequences, all_held, strict=True):
        sequence.entries = [entries[place] for place in each_held.entries]
        sequence.capacity = len(sequence.blocks) * facts.block_size
        if sequence.state is State.PREFILLING:
            roster.prefilling.join(sequence)
        for block in sequence.blocks:
            pool._references[block] += 1
    roster.decoding = [sequences[place] for place in held.decoding]
    roster.by_incarnation = {sequences[place].incarnation: sequences[place] for place in held.known}
    roster.returned, roster._incarnation = held.returned, held.incarnation
    roster.free_slots, roster._releasing = list(held.free_slots), list(held.releasing)
