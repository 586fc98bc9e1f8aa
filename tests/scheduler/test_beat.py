"""What a heartbeat tells of the core's load."""

from pillion.contracts.entries import Heartbeat
from pillion.scheduler.beat import RATE_GUESS, heartbeat


def test_a_heartbeat_is_how_the_replica_stands_with_what_its_core_tells(make, toy):
    drive = make({"max_num_seqs": 4}, {"num_blocks": 65})
    stands = Heartbeat("r", 3, "ready", facts=drive.facts, last_entry="5-1", generation="g", controlled="4-0")
    idle = heartbeat(stands, drive.core.snapshot(), 2.0)
    assert (idle.replica, idle.epoch, idle.last_entry, idle.generation) == ("r", 3, "5-1", "g")
    assert idle.facts.max_model_len == 64 * 16 + 1 < drive.facts.max_model_len  # what the pool can hold
    assert (idle.credit, idle.running, idle.kv_usage) == (2 * RATE_GUESS, 0, 0.0)
    drive.submit(*(toy.request(f"r{i}", toy.prompt(100, i), max_tokens=60) for i in range(6)))
    while drive.core.snapshot().decoding < 4 or not drive.core.snapshot().prefill_rate:
        drive.advance()
    seen = drive.core.snapshot()
    busy = heartbeat(stands, seen, 2.0)
    assert (busy.running, busy.waiting, busy.uncomputed) == (4, 2, 200)
    assert busy.kv_usage == seen.referenced_blocks / 64 > 0.3
    assert busy.prefill_rate == seen.prefill_rate > 0 and busy.credit == int(2 * seen.prefill_rate)
    gone = heartbeat(Heartbeat("r", 3, "unready"), drive.core.snapshot(), 2.0)
    assert gone.facts is None


def test_an_unattached_core_has_no_load(make):
    beat = heartbeat(Heartbeat("r", 1, "unready"), make(connect=False).core.snapshot(), 2.0)
    assert (beat.facts, beat.kv_usage, beat.step_limit) == (None, 0.0, 0)
