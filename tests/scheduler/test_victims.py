"""Who gives its blocks to whom."""

from pillion.scheduler.victims import last, lower, victim_of, yielding


def test_who_may_be_a_victim(make, toy):
    drive = make()
    drive.submit(*(toy.request(str(i), toy.prompt(5, i), arrival=float(i), max_tokens=50) for i in range(3)))
    drive.submit(toy.request("low", toy.prompt(5, 9), priority=1, arrival=-1.0, max_tokens=50))
    while drive.core.snapshot().decoding < 4:
        drive.advance()
    roster = drive.core._roster
    oldest, middle, latest, low = sorted(roster.decoding, key=lambda sequence: sequence.rank)
    assert victim_of(oldest, roster.running) is low  # the lowest priority, though it arrived first
    assert last(lower(oldest, roster.running)) is low
    assert victim_of(low, roster.running) is None  # never one that goes before
    roster.preempt(low, toy.draft(99))
    assert victim_of(oldest, roster.running) is latest
    assert last(lower(oldest, roster.running)) is None
    latest.preemptions = 3
    assert victim_of(oldest, roster.running) is middle
    middle.preemptions = 3
    assert victim_of(oldest, roster.running) is None  # no victim of its own priority any more
    middle.priority = 1
    assert victim_of(oldest, roster.running) is middle  # of a higher one it still is


def test_who_was_preempted_too_often_yields_last_and_the_oldest_never(make, toy):
    drive = make()
    drive.submit(*(toy.request(str(i), toy.prompt(5, i), arrival=float(i), max_tokens=50) for i in range(3)))
    while drive.core.snapshot().decoding < 3:
        drive.advance()
    roster = drive.core._roster
    oldest, middle, latest = sorted(roster.decoding, key=lambda sequence: sequence.rank)
    assert yielding(roster.running, roster.suspect) is latest
    latest.preemptions = 3
    assert yielding(roster.running, roster.suspect) is middle
    latest.priority = 1
    assert yielding(roster.running, roster.suspect) is latest  # the others are of a higher priority
    latest.priority, middle.preemptions = 0, 3
    assert yielding(roster.running, roster.suspect) is latest
    roster.suspect = latest
    assert (
        yielding(roster.running, roster.suspect) is oldest
    )  # whoever is in the way of one that is to run alone
