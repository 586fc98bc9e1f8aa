"""Parts sum to what they are parts of, and the sentence names the largest."""

import pytest

from pillion.contracts.timeline import (
    FAILED,
    LOST,
    PREEMPTED,
    TAKEN,
    ChoiceSeen,
    Delivery,
    GapSeen,
    SpanSeen,
    StepSeen,
    Timeline,
)
from pillion.gateway.explanation import explanation, parts, why


def step(
    number: int, seconds: float, *, own: int = 1, chunks: tuple[int, ...] = (), **more: float
) -> StepSeen:
    values = {"sent": 10.0, "ended": 11.0, "idle": 0.0, "predicted": 0.03} | more
    return StepSeen(
        number,
        values["sent"],
        values["ended"],
        seconds,
        values["idle"],
        values["predicted"],
        512,
        3,
        chunks,
        own=own,
    )


def gap(seconds: float, *steps: StepSeen, position: int = 5, **more: object) -> GapSeen:
    return GapSeen(position, 100.0, seconds, steps, **more)  # type: ignore[arg-type]


def named(gap: GapSeen) -> dict[str, float]:
    return {part.what: pytest.approx(part.seconds) for part in parts(gap)}


def test_a_long_step_is_named_with_what_it_carried() -> None:
    seen = gap(0.35, step(7, 0.3, chunks=(200, 56), idle=0.02))
    assert named(seen) == {"executor idle": 0.02, "step": 0.3, "results on their way": 0.03}
    assert why(parts(seen), seen) == (
        "step 7 took 300 ms, 30 ms were predicted: 3 decodes and 2 chunks of 256 tokens"
    )


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (gap(0.30, step(7, 0.05, idle=0.2)), "executor idle took 200 ms"),
        (gap(0.30, step(7, 0.05)), "results on their way took 250 ms"),
        (
            gap(0.30, step(7, 0.2, own=0), step(8, 0.05), more=3, more_seconds=0.04),
            "steps without it took 240 ms: no KV block was free, or others had their turn",
        ),
        (
            gap(1.0, step(7, 0.1, own=0, ended=100.1), marks=((PREEMPTED, 100.2), (TAKEN, 100.7))),
            "it was preempted, as others needed its KV blocks: steps without it 200 ms, preempted 500 ms,"
            " prefill anew 300 ms",
        ),
        (
            gap(1.0, step(7, 0.1), marks=((FAILED, 100.0), (TAKEN, 100.1), (LOST, 100.2), (TAKEN, 100.9))),
            "a step failed and the executor was lost: failed 100 ms, prefill anew 100 ms, lost 700 ms,"
            " prefill anew 100 ms",
        ),
    ],
)
def test_every_cause_has_its_sentence_and_parts_add_up(seen: GapSeen, said: str) -> None:
    assert sum(part.seconds for part in parts(seen)) == pytest.approx(seen.seconds)
    assert why(parts(seen), seen) == said


def timeline(*choices: ChoiceSeen, **more: float) -> Timeline:
    times = {"arrival": 90.0, "forwarded": 90.5, "accepted": 90.6, "attached": 80.0} | more
    return Timeline("r", "0", **times, choices=choices)


CHOICE = ChoiceSeen(
    0, 300, 0, 9, planned=92.0, first=95.0, ahead=4, running=2, full=3, no_slot=9, no_room=1, cached=44,
    chunks=(step(3, 0.2, own=256, chunks=(256,)),),
    gaps=(gap(0.35, step(7, 0.3)), gap(0.2, step(9, 0.2), position=8)),
)  # fmt: skip


def test_the_first_tokens_way_adds_up() -> None:
    told = explanation("finished", timeline(CHOICE), Delivery(submitted=90.1, first=95.25))
    assert told["ttft"]["seconds"] == pytest.approx(5.25)
    assert told["ttft"]["scheduling_delay"] == pytest.approx(2.0)
    assert {part["what"]: part["seconds"] for part in told["ttft"]["parts"]} == {
        "preparation at the gateway": pytest.approx(0.1),
        "admission": pytest.approx(0.4),
        "way to the scheduler": pytest.approx(0.1),
        "queue at the scheduler": pytest.approx(1.4),
        "prefill": pytest.approx(3.0),
        "delivery": pytest.approx(0.25),
    }
    assert told["queue"]["why"] == "all slots were taken"
    assert (told["prefill"]["cached_tokens"], told["prefill"]["chunks"][0]["own_tokens"]) == (44, 256)
    alone = explanation("running", timeline(CHOICE), None)
    assert alone["ttft"]["parts"][0]["what"] == "gateway and admission"
    assert alone["ttft"]["seconds"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("changes", "attached", "said"),
    [
        ({"no_slot": 0}, 80.0, "steps had no tokens left for it"),
        ({"no_slot": 0, "full": 0}, 80.0, "the KV cache had no room for it, or the policy let nobody in"),
        ({"no_slot": 0, "full": 0, "no_room": 0}, 80.0, "the step that ran had to end first"),
        ({"no_slot": 0, "full": 0, "no_room": 0, "running": 0}, 80.0, "nothing held it"),
        ({"no_slot": 0, "full": 0, "no_room": 0}, 91.6, "no executor was there"),
        ({"planned": 0.0, "first": 0.0}, 0.0, "no executor is there"),
    ],
)
def test_what_held_it_is_said(changes: dict[str, float], attached: float, said: str) -> None:
    values = {name: getattr(CHOICE, name) for name in ChoiceSeen.__struct_fields__} | changes
    told = explanation("running", timeline(ChoiceSeen(**values), attached=attached), None)
    assert told["queue"]["why"] == said
    assert told["status"] == ("queued" if "planned" in changes else "running")


def test_the_gateways_gap_is_joined_with_the_replicas() -> None:
    here = Delivery(first=95.25, choice=0, position=8, began=101.0, seconds=0.6)
    told = explanation("finished", timeline(CHOICE), here)["worst_gap"]
    assert (told["position"], told["seconds"], told["steps"][0]["step"]) == (8, pytest.approx(0.6), 9)
    assert {part["what"]: part["seconds"] for part in told["parts"]} == {
        "executor idle": 0.0,
        "step": pytest.approx(0.2),
        "results on their way": 0.0,
        "delivery": pytest.approx(0.4),
    }
    assert told["why"] == "delivery took 400 ms"


def test_a_gap_that_the_replica_did_not_see_is_the_deliverys() -> None:
    here = Delivery(first=95.25, choice=0, position=6, began=101.0, seconds=0.9)
    told = explanation("finished", timeline(CHOICE), here)
    parts_ = {part["what"]: part["seconds"] for part in told["worst_gap"]["parts"]}
    assert parts_ == {"at the replica, at most": pytest.approx(0.2), "delivery": pytest.approx(0.7)}
    assert [each["position"] for each in told["replica_gaps"]] == [5, 8]


def test_of_several_choices_the_worst_is_told() -> None:
    other = ChoiceSeen(3, 300, 0, 9, planned=92.0, first=94.0, gaps=(gap(0.5, step(7, 0.5)),))
    told = explanation("finished", timeline(other, CHOICE), None)
    assert told["worst_gap"]["choice"] == 3
    here = Delivery(first=94.2, choice=0, position=5, began=101.0, seconds=0.6)
    assert explanation("finished", timeline(other, CHOICE), here)["worst_gap"]["choice"] == 0
    assert told["ttft"]["parts"][-1]["seconds"] == pytest.approx(2.0)
    one = ChoiceSeen(0, 300, 0, 1, planned=92.0, first=94.0)
    assert explanation("finished", timeline(one), None)["worst_gap"] is None
    resumed = ChoiceSeen(0, 300, 7, 9, planned=92.0, first=94.0)
    assert explanation("finished", timeline(resumed), None)["ttft"] is None


def test_all_gaps_are_told_from_the_first_token_on() -> None:
    spans = (SpanSeen(95.1, 2, 0.06), SpanSeen(95.6, 1, 0.5))
    one = ChoiceSeen(0, 300, 0, 4, planned=92.0, first=95.0, spans=spans)
    assert explanation("finished", timeline(one), None)["replica_spans"] == [
        {"began": 95.0, "ended": 95.1, "gaps": 2, "longest_seconds": 0.06},
        {"began": 95.1, "ended": 95.6, "gaps": 1, "longest_seconds": 0.5},
    ]
