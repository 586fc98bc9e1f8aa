"""What admission's decisions cost is measured, and grows slower than the fleet."""

from click.testing import CliRunner

from pillion.ops.bench.admission import Fleet, main, measure


def test_each_has_its_cost():
    told = measure(3, 2.0, 5)
    assert list(told) == ["request", "heartbeat", "heartbeat while requests wait"]
    assert all(0 < seconds < 1 for seconds in told.values())
    done = CliRunner().invoke(main, ["--replicas", "2", "--count", "3"])
    assert done.exit_code == 0 and done.output.startswith("2 replicas: request ")


def test_requests_go_on_while_there_is_room_and_wait_then():
    fleet = Fleet(2, None, 1)
    for _ in range(5):
        fleet.arrive()
    assert len(fleet._policy.line) == 0 and sum(entry != "0-0" for entry in fleet._last.values()) == 2
    fleet.told(credit=1)
    fleet.arrive()
    assert len(fleet._policy.line) == 1
