"""Random orders of everything that can happen to the core; invariants hold after each event."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pillion.contracts.entries import Control, StepLimits
from pillion.scheduler.core import Core
from pillion.scheduler.messages import Ordered
from pillion.scheduler.policies import POLICIES

BLOCK = 4
LONGEST = 60  # tokens, prompt and output
WHOLE = ("request-level", "orca", "prefill-first", "hybrid-only")  # do not split prompts


def build(toy, seen, policy, stages):
    """The machine's class; `seen` counts what happened, so that the test can tell that it did."""

    class Machine(RuleBasedStateMachine):
        @initialize(
            blocks=st.integers(LONGEST // BLOCK + 1, 40),
            budget=st.sampled_from([None, 3, 8, 24, 64]),
            slots=st.integers(1, 8),
            guard=st.sampled_from(["stretch", "turns"]),
            caching=st.booleans() | st.just(True),
            collide=st.sampled_from([False, False, True]),
            tile=st.sampled_from([1, 4, 8]),
            several=st.sampled_from([0.0, 0.02, 1.0, 1.0]),
            most=st.sampled_from([64, 20] if policy in WHOLE else [64]),
            places=st.sampled_from([0, 1, 2, 4]),
        )
        def start(self, blocks, budget, slots, guard, caching, collide, tile, several, most, places):
            options = toy.settings(
                policy=policy,
                max_num_batched_tokens=budget,
                max_num_seqs=slots,
                prefill_guard=guard,
                enable_prefix_caching=caching,
                watermark=0.05,
                multi_step_seconds=several,
            )
            core = Core(options, hash_block=(lambda content: sum(content[1]) % 3) if collide else hash)
            self.places = places
            executor = toy.facts(
                block_size=BLOCK,
                num_blocks=blocks,
                max_step_tokens=most,
                tile=tile,
                max_model_len=LONGEST,
                pp=stages,
                grammars=places,
            )
            self.drive = toy.Drive(core, executor)
            self.count = 0
            self.cancelled = set()

        @rule(
            length=st.integers(1, 40),
            family=st.integers(0, 2),
            share=st.integers(0, 40),
            output=st.none() | st.integers(1, 20),
            priority=st.sampled_from([0, 0, 0, 1, -1]),
            n=st.sampled_from([1, 1, 1, 3]),
            salt=st.sampled_from(["", "", "a"]),
            resumed=st.integers(0, 30),
            regex=st.sampled_from(["", "", "", "a", "b", "c", "d", "e"]),
        )
        def submit(self, length, family, share, output, priority, n, salt, resumed, regex):
            self.count += 1
            id = str(self.count)
            # Prompts of one family agree on their first tokens.
            prompt = (toy.prompt(share, family) + toy.prompt(40, 1000 + self.count))[:length]
            request = toy.request(
                id,
                prompt,
                max_tokens=output,
                n=n,
                priority=priority,
                cache_salt=salt,
                regex=regex if self.places else "",
                arrival=float(self.count),
                prompt_logprobs=0 if share % 5 == 0 else None,
            )
            if resumed > 20:
                tokens, _ = toy.expected(request, 0, LONGEST)
                self.drive.resume(request, {0: tokens[: min(resumed - 20, len(tokens) - 1)]})
                seen["resumed"] += 1
            else:
                self.drive.submit(request)

        @precondition(lambda self: self.drive.in_flight)
        @rule()
        def step(self):
            self.drive.finish_step()

        @precondition(lambda self: self.drive.compiling)
        @rule()
        def compile(self):
            self.drive.compile()
            seen["compiled beside"] += bool(self.drive.in_flight)

        @precondition(lambda self: self.drive.in_flight or self.drive.wake)
        @rule(times=st.integers(1, 12))
        def advance(self, times):
            for _ in range(times):
                self.drive.advance()

        @precondition(lambda self: self.drive.in_flight)
        @rule()
        def fail(self):
            seen["failed in several"] += self.drive.in_flight[0].steps > 1
            self.drive.finish_step(fail=True)
            seen["failed"] += 1

        @precondition(lambda self: self.count)
        @rule(tokens=st.none() | st.integers(1, 64))
        def order(self, tokens):
            before = self.drive.core.snapshot().flushed_blocks
            word = Control(epoch=1, flush=True, limits=StepLimits(tokens))
            self.drive.handle(Ordered(word))
            seen["flushed"] += self.drive.core.snapshot().flushed_blocks - before

        @precondition(lambda self: self.drive.executor)
        @rule(blocks=st.integers(LONGEST // BLOCK + 1, 40))
        def lose_executor(self, blocks):
            seen["lost in flight"] += bool(self.drive.in_flight)
            seen["lost in several"] += self._several()
            seen["lost compiling"] += bool(self.drive.compiling)
            self.drive.disconnect()
            self.drive.connect(
                toy.facts(
                    block_size=BLOCK,
                    num_blocks=blocks,
                    max_step_tokens=64,
                    tile=4,
                    max_model_len=LONGEST,
                    pp=stages,
                    grammars=self.places,
                )
            )

        @precondition(lambda self: self.count)
        @rule(data=st.data())
        def cancel(self, data):
            id = str(data.draw(st.integers(1, self.count)))
            choice = data.draw(st.sampled_from([None, 0]))
            open_before = id not in self.drive.finished
            seen["cancelled in several"] += open_before and self._several()
            self.drive.cancel(id, choice)
            self.cancelled.add(id)
            seen["cancelled"] += open_before

        @precondition(lambda self: self.count)
        @rule(data=st.data())
        def park(self, data):
            id = str(data.draw(st.integers(1, self.count)))
            seen["parked in several"] += id not in self.drive.finished and self._several()
            self.drive.park(id)

        @precondition(lambda self: self.count and self.drive.parked)
        @rule(data=st.data())
        def take_up(self, data):
            self.drive.take_up(data.draw(st.sampled_from(self.drive.parked)))
            seen["taken up"] += 1

        def _several(self):
            """Whether a plan of several steps is in flight."""
            return any(plan.steps > 1 for plan in self.drive.in_flight)

        @invariant()
        def bounded(self):
            if hasattr(self, "drive"):
                snapshot = self.drive.core.snapshot()
                total = snapshot.free_blocks + snapshot.cached_blocks + snapshot.referenced_blocks
                assert total == snapshot.blocks
                assert snapshot.in_flight <= stages + 1

        def teardown(self):
            if not hasattr(self, "drive"):
                return
            drive = self.drive
            for id in tuple(drive.parked):
                drive.take_up(id)
            drive.run(limit=5000)
            for id, request in drive.requests.items():
                assert drive.finished.count(id) == 1
                for choice in range(request.n):
                    stream = drive.streams[id, choice]
                    tokens, finish = toy.expected(request, choice, LONGEST)
                    if stream.finish == "cancelled":
                        assert id in self.cancelled
                        assert tuple(stream.tokens) == tokens[: len(stream.tokens)]
                    elif stream.finish == "error":  # only who was in too many failed steps
                        assert stream.error and (seen["failed"] or seen["lost in flight"])
                    else:
                        assert (tuple(stream.tokens), stream.finish) == (tokens, finish)
            snapshot = drive.core.snapshot()
            assert snapshot.running == snapshot.waiting == snapshot.referenced_blocks == 0
            seen["preempted"] += snapshot.preemptions
            seen["hits"] += snapshot.hit_tokens
            seen["late"] += snapshot.late_results
            seen["finished"] += len(drive.finished)
            seen["as many in flight as may be"] += drive.most_in_flight == stages + 1
            seen["given away"] += drive.given_away
            seen["several"] += sum(plan.steps > 1 for plan in drive.plans)
            seen["preempted in several"] += drive.preempted_in_several
            seen["told of prompts"] += drive.told
            seen["prompts begun again"] += drive.taken_again

    return Machine


HAPPENED = (
    "resumed",
    "failed",
    "lost in flight",
    "cancelled",
    "taken up",
    "preempted",
    "hits",
    "late",
    "finished",
    "flushed",
    "as many in flight as may be",
    "told of prompts",
    "prompts begun again",
    "compiled beside",
    "lost compiling",
    "given away",
    "several",
    "failed in several",
    "lost in several",
    "cancelled in several",
    "parked in several",
    "preempted in several",
)
SELDOM = {happened for happened in HAPPENED if happened.endswith("in several")}


def drive(toy, policy, examples, stages=1):
    """What happened in so many random orders under a policy, over so many stages."""
    seen = dict.fromkeys(HAPPENED, 0)
    run_state_machine_as_test(
        build(toy, seen, policy, stages),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return seen


@pytest.mark.timeout(120)
def test_everything_finishes_as_if_undisturbed(toy):
    seen = drive(toy, "stall-free", 250)
    assert all(seen.values()), seen


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"stall-free"}))
def test_so_it_does_under_every_policy(toy, policy):
    seen = drive(toy, policy, 60)
    seldom = SELDOM | ({"preempted"} if POLICIES[policy].reserves else set())
    assert all(seen[what] for what in HAPPENED if what not in seldom), seen


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("policy", "stages"), [("stall-free", 2), ("stall-free", 4), ("orca", 3)])
def test_so_it_does_over_stages(toy, policy, stages):
    seen = drive(toy, policy, 60, stages)
    several = {"several"} | SELDOM | ({"preempted"} if POLICIES[policy].reserves else set())
    assert all(seen[what] for what in HAPPENED if what not in several), seen
