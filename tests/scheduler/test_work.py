"""A step's work is what its rows say, in the draft and in the plan."""

from pillion.scheduler.work import of_rows, work_of
from pillion.steptime import Work


def test_of_rows():
    assert of_rows(2, (9, 30, 0, 64), (1, 1, 20, 10), (1, 1, 1, 0)) == Work(
        rows=32, decodes=2, context=41, chunks=2, pairs=20 * 10 + 10 * 69, sampled=3
    )
    assert of_rows(1, (5,), (1,), (4,)) == Work(rows=1, decodes=1, context=6, sampled=1)


def test_each_plans_work_is_its_drafts(make, toy, monkeypatch):
    """All prompts' rows and pairs are there once, and so is every position that a decode reads."""
    drive = make({"max_num_batched_tokens": 48}, {}, lambda plan: 0.004)
    drive.submit(
        *(toy.request(str(i), toy.prompt(50, i), seed=i, ignore_eos=True, max_tokens=9) for i in range(3))
    )
    drafts = {}
    land = drive.core._land

    def watched(step, now):
        flight = land(step, now)
        drafts[step] = flight.work
        return flight

    monkeypatch.setattr(drive.core, "_land", watched)
    drive.run()
    works = [work_of(plan) for plan in drive.plans]
    assert [drafts[plan.step] for plan in drive.plans] == works
    assert sum(work.rows - work.decodes for work in works) == 150
    assert sum(work.pairs for work in works) == 3 * 50 * 50 / 2
    assert max(work.chunks for work in works) == 2
    decoding = [work for work, plan in zip(works, drive.plans, strict=True) if plan.decodes]
    assert decoding and all(work.context > 50 * work.decodes for work in decoding)
