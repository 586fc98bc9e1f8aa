"""Who is suspected of killing the executor, who runs alone, and who is given up."""

import pytest

from pillion.scheduler.messages import Disconnected


def strike(drive, deadly, limit=5000):
    """Runs to the end; the executor dies of each oldest plan that `deadly(plan, rows)` names, `rows` being
    (id, end) pairs. Answers how many sequences were named by the plans that it died in."""
    deaths = []
    for _ in range(limit):
        assert not drive.core._suspects or len(drive.in_flight) <= 1
        if drive.in_flight:
            plan = drive.in_flight[0]
            rows = [
                (drive.holders[slot][0], start + count)
                for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True)
            ]
            if deadly(plan, rows):
                deaths.append(len(plan.slots))
                drive.disconnect()
                drive.connect()
                continue
        if not drive.advance():
            return deaths
    raise AssertionError("not finished")


def test_who_kills_it_each_time_runs_alone_and_is_given_up_and_the_rest_go_on(make, toy):
    drive = make({"max_num_batched_tokens": 128})
    innocent = [toy.request(str(i), toy.prompt(20, i), max_tokens=30, ignore_eos=True) for i in range(4)]
    poison = toy.request("poison", toy.prompt(20, 9), arrival=1.0, max_tokens=30, ignore_eos=True)
    drive.submit(*innocent, poison)
    deaths = strike(drive, lambda plan, rows: any(name == "poison" for name, _ in rows))
    assert len(deaths) == 4
    assert min(deaths[:2]) > 1 and deaths[2:] == [1, 1]  # it took others with it, and then nobody
    assert drive.streams["poison", 0].finish == "error"
    assert drive.streams["poison", 0].error == "the step failed each time: the executor was lost"
    drive.check_outputs("0", "1", "2", "3")
    assert drive.core.snapshot().executors_lost == 4 and drive.core.snapshot().poisonous == 1
    assert (
        sum(plan.steps for plan in drive.plans if plan.decodes == 4) > 20
    )  # who was cleared runs with the others again


def test_a_death_in_the_plan_behind_counts_too(make, toy):
    """The result of a step may die with the executor that the next one kills."""
    drive = make({"max_num_batched_tokens": 64}, {}, lambda plan: 0.05)
    drive.submit(toy.request("a", toy.prompt(60), max_tokens=9), toy.request("b", toy.prompt(60, 1)))
    while len(drive.in_flight) < 2:
        drive.advance()
    assert {name for step in drive.named.values() for name, _ in step} == {"a", "b"}
    for _ in range(2):
        while len(drive.in_flight) < 2:
            drive.advance()
        drive.disconnect()
        drive.connect()
    assert [sequence.failures for sequence in drive.core._waiting + drive.core._roster.running] == [2, 2]
    drive.run()
    drive.check_outputs()


@pytest.mark.parametrize("chunk", [1, 3])
def test_who_kills_it_behind_its_first_chunks_is_found_as_well(make, toy, chunk):
    drive = make({"max_num_batched_tokens": 32})
    drive.submit(toy.request("innocent", toy.prompt(90, 1), max_tokens=40, ignore_eos=True))
    drive.submit(toy.request("poison", toy.prompt(150), arrival=1.0))
    deaths = strike(drive, lambda plan, rows: any(n == "poison" and end > 32 * chunk for n, end in rows))
    assert 2 <= len(deaths) <= 6 and deaths[-2:] == [1, 1]
    assert drive.streams["poison", 0].finish == "error"
    drive.check_outputs("innocent")


def test_who_comes_further_each_time_is_never_given_up(make, toy):
    """A long prompt under fire: eight deaths, none of them its own."""
    drive = make({"max_num_batched_tokens": 32})
    drive.submit(toy.request("long", toy.prompt(32 * 9), max_tokens=20, ignore_eos=True))
    fatal = {32 * number for number in range(2, 10)}

    def deadly(plan, rows):
        hit = fatal.intersection(end for _, end in rows)
        fatal.difference_update(hit)
        return bool(hit)

    assert len(strike(drive, deadly)) == 8
    drive.check_outputs()
    assert drive.core.snapshot().poisonous == 0


def test_an_executor_that_was_asked_to_end_is_nobodys_fault(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    drive.submit(*(toy.request(str(i), toy.prompt(20, i), max_tokens=30) for i in range(4)))
    for _ in range(6):
        drive.executor = None
        drive.in_flight.clear()
        drive.ends = drive.wake = None
        drive.handle(Disconnected(orderly=True))
        drive.connect()
    drive.run()
    drive.check_outputs()
    assert drive.core.snapshot().executors_lost == 0
    assert max(plan.decodes for plan in drive.plans) == 4
