"""The latest records in memory."""

from pillion.scheduler.kept import Kept


def test_the_latest_are_whole_and_of_the_others_it_is_known_that_they_are_due():
    kept = Kept(seconds=10.0, capacity=25)
    for number in range(4):
        kept.add(str(number), bytes(10), now=float(number))
    assert list(kept.present(3.0)) == ["2", "3"]
    assert kept.missing(3.0) == 2
    assert kept.missing(10.5) == 1  # the first is due no longer
    kept.add("4", bytes(5), now=20.0)
    assert list(kept.present(20.0)) == ["4"]
    assert kept.missing(20.0) == 0


def test_what_goes_on_is_no_longer_kept_and_gives_its_room_back():
    kept = Kept(seconds=10.0, capacity=20)
    kept.add("a", bytes(15), now=0.0)
    kept.drop("a")
    kept.drop("a")
    kept.add("b", bytes(20), now=0.0)
    kept.add("b", bytes(18), now=1.0)
    assert kept.present(1.0) == {"b": bytes(18)}
    assert kept.missing(1.0) == 0


def test_a_record_larger_than_all_room_is_only_counted():
    kept = Kept(seconds=10.0, capacity=20)
    kept.add("a", bytes(21), now=0.0)
    assert (kept.present(0.0), kept.missing(0.0)) == ({}, 1)
    kept.add("b", bytes(20), now=0.0)
    assert list(kept.present(0.0)) == ["b"]
