"""Constraints are compiled beside the steps: who waits for its own, and who does not."""

from pillion.scheduler.grammars import PATIENCE
from pillion.scheduler.messages import Compiled


def taken(drive):
    """Ids in the order of their slots' taking."""
    return [take.request.id for plan in drive.plans for take in plan.take]


def test_nobody_is_let_in_before_its_constraint_is_there_and_nobody_else_waits(make, toy):
    drive = make({"max_num_batched_tokens": 64}, {"grammars": 4})
    drive.submit(toy.request("free", toy.prompt(20), max_tokens=200, ignore_eos=True))
    drive.submit(
        toy.request("first", toy.prompt(20, 1), regex="a"),
        toy.request("same", toy.prompt(20, 2), regex="a", n=2),
        toy.request("late", toy.prompt(20, 3)),
    )
    assert [constraint.text for constraint in drive.compiling.values()] == ["a"]
    for _ in range(20):
        drive.finish_step()
    assert taken(drive) == ["free", "late"] and len(drive.output("free")) >= 20
    drive.compile()
    drive.run()
    drive.check_outputs()
    assert taken(drive)[2:] == ["first", "same", "same"]
    drive.submit(toy.request("again", toy.prompt(20, 4), regex="a"))
    assert not drive.compiling and taken(drive)[-1] == "again", "it is there still"


def test_with_nothing_else_to_do_its_answer_starts_the_step(make, toy):
    drive = make({}, {"grammars": 4})
    drive.submit(toy.request("one", toy.prompt(20), regex="a"))
    assert not drive.in_flight and drive.wake is None
    drive.compile()
    assert [plan.counts for plan in drive.in_flight] == [(20,)]


def test_another_executor_is_asked_again_and_late_answers_are_nobodys(make, toy):
    drive = make({}, {"grammars": 4})
    drive.submit(toy.request("one", toy.prompt(20), regex="a", max_tokens=50, ignore_eos=True))
    drive.compile()
    drive.finish_step()
    drive.disconnect()
    drive.connect()
    assert [constraint.text for constraint in drive.compiling.values()] == ["a"] and not drive.in_flight
    drive.handle(Compiled(3 - next(iter(drive.compiling))))  # of a place that nothing was asked of
    assert not drive.in_flight
    drive.run()
    drive.check_outputs()


def test_an_executor_that_does_not_answer_is_late(make, toy):
    drive = make({}, {"grammars": 4})
    for name in "ab":
        drive.submit(toy.request(name, toy.prompt(20), regex=name))
    late = drive.core.overdue
    assert late(PATIENCE) == 0 and late(PATIENCE + 5) == 5
    drive.now = 20.0
    drive.compile()  # the other one is in work since
    while drive.in_flight:
        drive.finish_step()
    assert late(20 + PATIENCE) == 0 and late(20 + PATIENCE + 5) == 5
    drive.cancel("b")
    drive.run()
    assert late(1e6) == 0


def test_places_go_to_those_who_are_next_and_are_taken_from_those_who_were(make, toy):
    drive = make({"max_num_seqs": 1}, {"grammars": 4})
    running = toy.request("running", toy.prompt(20), max_tokens=300, ignore_eos=True)
    drive.submit(running)

    def compile_all():
        while drive.compiling:
            drive.compile()
        return sorted(constraint.text for constraint in drive.compiled.values())

    for priority, name in ((5, "c"), (4, "b"), (3, "a")):
        drive.submit(toy.request(name, toy.prompt(20), regex=name, priority=priority))
    assert compile_all() == ["a", "b", "c"]  # the last one came to be third
    drive.submit(toy.request("d", toy.prompt(20), regex="d", priority=1))
    assert compile_all() == ["a", "b", "c", "d"]
    drive.submit(toy.request("e", toy.prompt(20), regex="e", priority=2))
    assert compile_all() == ["a", "b", "d", "e"] and drive.given_away == 1, (
        "c was needed last the longest ago"
    )
    drive.run()
    assert taken(drive) == ["running", "d", "e", "a", "b", "c"] and drive.given_away == 2
    drive.check_outputs()


def test_an_executor_without_places_is_asked_nothing(make, toy):
    drive = make({}, {"grammars": 0})
    drive.compiled[0] = toy.request("x", (1,), regex="a").sampling.constraint  # it compiles in its step
    drive.submit(toy.request("one", toy.prompt(20), regex="a"))
    assert not drive.compiling and taken(drive) == ["one"]


def test_while_a_suspects_constraint_is_compiled_the_others_go_on(make, toy):
    drive = make({"max_num_batched_tokens": 64}, {"grammars": 4})
    drive.submit(
        toy.request("suspect", toy.prompt(20), regex="a", arrival=0.0, max_tokens=30, ignore_eos=True)
    )
    drive.submit(toy.request("other", toy.prompt(20, 1), arrival=1.0, max_tokens=60, ignore_eos=True))
    drive.compile()
    while not {"suspect", "other"} <= set(taken(drive)):
        drive.finish_step()
    for _ in range(2):  # twice it dies with both
        while not drive.in_flight or len(drive.in_flight[0].slots) < 2:
            drive.advance()
        drive.disconnect()
        drive.connect()
        if not drive.core._suspects:
            drive.compile()
    assert drive.core._suspects[0].request.id == "suspect" and drive.compiling
    before = len(drive.output("other"))
    while len(drive.output("other")) < before + 5:
        drive.finish_step()
    assert drive.compiling
    drive.run()
    drive.check_outputs()
