"""Log-probabilities of the prompt: right, bit-equal in every schedule, few rows through the head at once."""

import math

import numpy as np
import pytest
import torch

from pillion.contracts import executor_pb2 as pb
from pillion.contracts.packed import unpack

PROMPT = [5, 9, 100, 7, 8, 200, 31, 9, 9, 300, 17, 4, 77, 250, 3, 60, 61, 5, 9, 100, 12]
LENGTH = 80


@pytest.fixture(scope="module")
def engine(tiny_model, make_engine):
    return make_engine(
        tiny_model("llama3"), num_kv_blocks=40, max_model_len=256, max_num_seqs=4, block_size=16
    )


def told(sequence, k):
    return unpack(sequence.prompt_logprobs, k)


def test_against_transformers(engine, drive, tiny_model, load_transformers):
    """In float64 from its logits; several chunks, the last of which samples."""
    with torch.inference_mode():
        logits = load_transformers(tiny_model("llama3"))(torch.tensor([PROMPT])).logits[0]
    expected = torch.log_softmax(logits.double(), -1).numpy()
    driver = drive(engine)
    sequence = driver.add(PROMPT, 1, prompt_logprobs=3)
    driver.finish([sequence], 8)
    assert driver.chunks == [(0, 8), (8, 8), (16, 5)]
    found = told(sequence, 3)
    assert len(found) == len(PROMPT) - 1
    for row, token, each in zip(expected[:-1], PROMPT[1:], found, strict=True):
        assert each.logprob == pytest.approx(row[token], abs=1e-4)
        assert each.rank == 1 + np.count_nonzero(row > row[token])
        likeliest = np.argsort(-row)[:3]
        assert [number for number, _ in each.top] == likeliest.tolist()
        assert [value for _, value in each.top] == pytest.approx(row[likeliest].tolist(), abs=1e-4)


def test_bits(demo_bfloat16, drive):
    """In one step, in chunks of any size, beside others of its kind, after a preemption."""
    engine = demo_bfloat16
    random = np.random.default_rng(5)
    prompt = random.integers(100, 40000, LENGTH).tolist()
    driver = drive(engine, record=False)
    alone = driver.add(prompt, 1, prompt_logprobs=1)
    driver.step([(alone, LENGTH)])
    assert len(told(alone, 1)) == LENGTH - 1

    driver = drive(engine, seed=1, record=False)
    ours, preempted = (driver.add(prompt, 1, prompt_logprobs=1) for _ in range(2))
    beside = [driver.add(random.integers(100, 40000, 30), 40, ignore_eos=True, **more)
              for more in ({}, {"prompt_logprobs": 4})]  # fmt: skip
    sizes = [16, 1, 17, 40, 5]
    driver.step([(beside[0], 30), (ours, 1), (preempted, 30)])
    driver.drop(preempted)
    driver.start(preempted)
    while left := [s for s in (ours, preempted) if s.done < LENGTH]:
        rows = [(beside[0], 1), *((s, min(sizes.pop(0), LENGTH - s.done)) for s in left)]
        if beside[1].done < 30:
            rows.append((beside[1], 15))
        driver.step(rows)
        sizes += [33, 40]
    assert len({count for _, count in driver.chunks}) > 6 and driver.incarnations == 5
    assert ours.prompt_logprobs == preempted.prompt_logprobs == alone.prompt_logprobs
    assert len(told(beside[1], 4)) == 29


def test_a_token_is_told_of_alike_in_prompt_and_answer(demo_bfloat16, drive):
    """So a continuation can be judged by sending it."""
    prompt = np.random.default_rng(6).integers(100, 40000, 20).tolist()
    driver = drive(demo_bfloat16, record=False)
    drawn = driver.add(prompt, 9, ignore_eos=True, logprobs=2, temperature=1.0, seed=3)
    driver.finish([drawn])
    judged = driver.add(drawn.tokens, 1, prompt_logprobs=2)
    driver.finish([judged], 13)
    answers = [
        (each.logprob, each.rank, tuple(each.top_tokens), tuple(each.top_logprobs)) for each in drawn.logprobs
    ]
    assert answers == [
        (each.logprob, each.rank, tuple(t for t, _ in each.top), tuple(v for _, v in each.top))
        for each in told(judged, 2)[-9:]
    ]


def test_what_has_output_has_brought_them(engine, drive):
    """The last token of a prompt tells of none; nor does a prompt of one."""
    driver = drive(engine)
    sequence, one = (
        driver.add(PROMPT, 3, prompt_logprobs=0, ignore_eos=True),
        driver.add([7], prompt_logprobs=0),
    )
    driver.step([(sequence, 9), (one, 1)])
    assert (len(told(sequence, 0)), len(told(one, 0)), one.finish) == (9, 0, pb.LENGTH)
    driver.step([(sequence, len(PROMPT) - 9)])
    assert len(told(sequence, 0)) == len(PROMPT) - 1 and len(sequence.output) == 1
    result = driver.step([(sequence, 1)])
    assert not result.prompt_logprobs
    driver.drop(sequence)
    driver.start(sequence)
    result = driver.step([(sequence, len(PROMPT) + 2)])
    assert not result.prompt_logprobs and list(result.token_count) == [1]


def test_few_rows_go_through_the_head_at_once(engine, drive, monkeypatch):
    """As many as a step may sample at most, over the prompts of a step together."""
    sizes, logits = [], engine.model.logits

    def counted(hidden):
        sizes.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(engine.model, "logits", counted)
    driver = drive(engine)
    rows = [(driver.add(PROMPT[:count], 1, prompt_logprobs=1), count) for count in (3, 4, 6)]
    driver.step(rows)
    assert sizes == [4, 4, 4, 4], "2 + 3 + 5 rows of prompts, then the three that sample"
    assert engine.parts[0].work.flops > 0 and [len(told(s, 1)) for s, _ in rows] == [2, 3, 5]


def test_a_vocabulary_may_be_smaller_than_what_is_asked_for(engine, drive):
    driver = drive(engine)
    sequence = driver.add(PROMPT[:3], 1, prompt_logprobs=400)
    driver.finish([sequence])
    assert [len(each.top) for each in told(sequence, 400)] == [320, 320]


@pytest.mark.parametrize("last", [False, True])
def test_a_prompt_without_numbers_fails_alone(engine, drive, monkeypatch, last):
    """In a chunk that samples nothing yet, or in the one that does."""
    driver = drive(engine)
    good, bad = (driver.add(PROMPT[:4], 2, prompt_logprobs=0, ignore_eos=True) for _ in range(2))
    logits, calls = engine.model.logits, []

    def poisoned(hidden):
        found = logits(hidden)
        calls.append(len(hidden))
        if len(calls) == 2:
            found[1 if last else 0] = math.nan
        return found

    monkeypatch.setattr(engine.model, "logits", poisoned)
    result = driver.step([(good, 4), (bad, 4 if last else 3)])
    assert dict(zip(result.slot, result.finish, strict=True)) == {good.slot: pb.RUNNING, bad.slot: pb.ERROR}
    assert "largest logit is nan" in bad.error and not bad.output and not bad.prompt_logprobs
    driver.step([(good, 1)])
    assert len(told(good, 0)) == 3 and len(good.output) == 2
