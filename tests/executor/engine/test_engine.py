"""Plans: what ends a sequence, what is skipped, refused, and what stands after a failure."""

import math

import numpy as np
import pytest
import torch

from pillion.config import ConfigError
from pillion.contracts import executor_pb2 as pb
from pillion.executor.engine import Engine
from pillion.executor.memory import OutOfMemory, size_pool
from pillion.executor.slots import BadPlan

PROMPT = [5, 9, 100, 7, 8, 200, 31]


@pytest.fixture(scope="module")
def engine(tiny_model, make_engine) -> Engine:
    return make_engine(
        tiny_model("llama3"), num_kv_blocks=20, max_model_len=256, max_num_seqs=4, block_size=16
    )


def greedy(driver, count, **sampling):
    sequence = driver.add(PROMPT, count, **sampling)
    driver.finish([sequence])
    return sequence


def test_facts(engine, tiny_model, make_engine):
    facts = engine.facts
    assert (facts.max_model_len, facts.num_blocks, facts.block_size, facts.max_num_seqs) == (256, 20, 16, 4)
    assert (facts.dtype, facts.backend, facts.vocab_size, facts.tp, facts.pp) == (
        "float32",
        "torch",
        320,
        1,
        1,
    )
    assert facts.fingerprint
    again = make_engine(tiny_model("llama3"), num_kv_blocks=9).facts.fingerprint
    other = [make_engine(tiny_model("llama3", seed=1)), make_engine(tiny_model("llama3"), "bfloat16"),
             make_engine(tiny_model("llama3"), backend="reference"),
             make_engine(tiny_model("llama3"), backend="reference", kv_cache_dtype="int8")]  # fmt: skip
    assert again == facts.fingerprint
    assert len({facts.fingerprint, *(e.facts.fingerprint for e in other)}) == 5


def test_the_two_backends_agree(engine, tiny_model, make_engine, drive):
    reference = make_engine(tiny_model("llama3"), num_kv_blocks=20, backend="reference", block_size=16)
    assert engine.facts.backend_reason == "the best that runs float32 on cpu"
    assert reference.facts.backend_reason == "asked for"
    tokens = [greedy(drive(e), 20, ignore_eos=True).output for e in (engine, reference)]
    assert tokens[0] == tokens[1]


def test_ends(engine, drive):
    whole = greedy(drive(engine), 12, ignore_eos=True)
    assert (len(whole.output), whole.finish) == (12, pb.LENGTH)
    stop = whole.output[5]
    first = whole.output.index(stop)
    ended = greedy(drive(engine), 12, ignore_eos=True, stop_token_ids=[stop])
    assert (ended.output, ended.finish) == (whole.output[: first + 1], pb.STOP)
    held = greedy(drive(engine), 12, ignore_eos=True, stop_token_ids=[stop], min_tokens=first + 3)
    assert len(held.output) >= first + 3
    assert stop not in held.output[: first + 3]


def test_end_tokens(engine, drive):
    """With a bias that makes an end token the likeliest."""
    (end, *_) = engine.facts.end_tokens
    bias = {end: 1000.0}
    assert greedy(drive(engine), 9, logit_bias=bias).output == [end]
    assert greedy(drive(engine), 9, logit_bias=bias, ignore_eos=True).output == [end] * 9
    held = greedy(drive(engine), 9, logit_bias=bias, min_tokens=4)
    assert (len(held.output), held.output[4], held.finish) == (5, end, pb.STOP)


def test_the_context_ends(engine, drive):
    driver = drive(engine)
    sequence = driver.add([7] * 250, 100, ignore_eos=True)
    driver.finish([sequence])
    assert (len(sequence.tokens), sequence.finish) == (256, pb.LENGTH)


def test_a_prompt_may_fill_the_context(engine, drive):
    """Its last row brings a token, behind which there is nothing; its neighbour in the arrays is whole."""
    driver = drive(engine)
    sequence, other = driver.add([7] * 256, 1, ignore_eos=True), driver.add(PROMPT, 3, ignore_eos=True)
    driver.finish([sequence, other])
    assert (len(sequence.output), sequence.finish) == (1, pb.LENGTH)
    assert other.output == greedy(drive(engine), 3).output


def test_rows_after_the_end_are_skipped(engine, drive):
    """Plans that were sent before the end was known."""
    driver = drive(engine)
    sequence, other = driver.add(PROMPT, 2, ignore_eos=True), driver.add(PROMPT[::-1], 5, ignore_eos=True)
    driver.step([(sequence, 7), (other, 7)])
    late = pb.Plan(step=3, slot=[sequence.slot, other.slot], start=[8, 8], count=[1, 1], sample=[1, 1])
    result = driver.step([(sequence, 1), (other, 1)])
    assert list(result.finish) == [pb.LENGTH, pb.RUNNING]
    result = engine.run(late)
    assert list(result.incarnation) == [other.incarnation]
    assert list(result.finish) == [pb.RUNNING]


def test_release_and_take_in_one_plan(engine, drive):
    driver = drive(engine)
    former = driver.add(PROMPT, 9, ignore_eos=True)
    driver.step([(former, 7)])
    driver.drop(former)
    driver.slots = [former.slot if former.slot >= 0 else 0, *driver.slots[:-1]]
    later = driver.add(PROMPT, 3, ignore_eos=True)
    assert later.slot == 0
    result = driver.step([(later, 7)])
    assert list(result.incarnation) == [later.incarnation] == [2]


def test_a_row_without_finite_logits_fails_alone(engine, drive):
    driver = drive(engine, record=False)
    good, bad = driver.add(PROMPT, 3, ignore_eos=True), driver.add(PROMPT, 3, ignore_eos=True)
    alone = greedy(drive(engine), 3, ignore_eos=True).output
    driver = drive(engine, record=False)
    good, bad = driver.add(PROMPT, 3, ignore_eos=True), driver.add(PROMPT, 3, ignore_eos=True)
    logits = engine.model.logits

    def poisoned(hidden):
        found = logits(hidden)
        found[1] = math.nan
        return found

    engine.model.logits = poisoned
    try:
        result = driver.step([(good, 7), (bad, 7)])
    finally:
        del engine.model.logits
    assert list(result.finish) == [pb.RUNNING, pb.ERROR]
    assert "logit" in bad.error
    assert bad.output == []
    driver.finish([good])
    assert good.output == alone


def test_blocks_of_a_broken_sequence_do_no_harm(engine, drive):
    """NaN left behind in blocks is not seen by who gets them next."""
    expected = greedy(drive(engine), 8, ignore_eos=True).output
    for tensor in (engine._cache.k, engine._cache.v):
        tensor[:, :, : engine.facts.num_blocks] = math.nan
    assert greedy(drive(engine), 8, ignore_eos=True).output == expected


def test_a_step_that_raises_adds_nothing(engine, drive):
    driver = drive(engine)
    sequence = driver.add(PROMPT, 9, ignore_eos=True)
    driver.step([(sequence, 7)])
    plan = driver.plan([(sequence, 1)])
    sequence.done = 7
    logits = engine.model.logits

    def raising(hidden):
        raise RuntimeError("no memory")

    engine.model.logits = raising
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            engine.run(plan)
    finally:
        engine.model.logits = logits
        del engine.model.logits
    # A plan that was sent behind it needs a token that is not there.
    with pytest.raises(BadPlan, match="positions 8 to 8"):
        engine.run(pb.Plan(step=3, slot=[sequence.slot], start=[8], count=[1], sample=[1]))
    driver.finish([sequence])
    assert sequence.output == greedy(drive(engine), 9, ignore_eos=True).output


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 3, "logprobs": 2},
        {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 7},
        {"presence_penalty": 1.5, "logit_bias": {9: 3.0}, "stop_token_ids": list(range(0, 320, 9))},
    ],
)
def test_several_steps_are_as_many_plans(engine, drive, sampling):
    """Penalties, positions of draws, min_tokens, ends, and what is told of each token."""
    found = []
    for steps in (1, 4):
        driver = drive(engine)
        sequence = driver.add(PROMPT, 18, **sampling)
        driver.finish([sequence], steps=steps)
        told = [logprob.SerializeToString() for logprob in sequence.logprobs]
        found.append((sequence.output, sequence.finish, told, driver.rows))
    assert found[0] == found[1]
    assert len(found[0][2]) == (18 if "logprobs" in sampling else 0)


def test_steps_end_where_nobody_is_left(engine, drive):
    driver = drive(engine)
    whole = greedy(driver, 12, ignore_eos=True).output
    short, other = (driver.add(PROMPT, 12, ignore_eos=True, stop_token_ids=[stop]) for stop in whole[3:5])
    driver.step([(short, 7), (other, 7)])
    result = driver.step([(short, 1), (other, 1)], steps=8)
    assert list(result.finish) == [pb.STOP, pb.STOP]
    assert [short.output, other.output] == [whole[: whole.index(token) + 1] for token in (whole[3], whole[4])]
    assert result.steps == len(engine.parts) == max(result.token_count)
    assert [parts.tokens for parts in engine.parts] == [
        sum(count > number for count in result.token_count) for number in range(result.steps)
    ]
    late = pb.Plan(step=9, slot=[short.slot], start=[short.done], count=[1], sample=[1])
    assert engine.run(late).steps == 0


def test_a_row_fails_alone_in_a_later_step(engine, drive):
    driver = drive(engine, record=False)
    alone = greedy(driver, 6, ignore_eos=True).output
    good, bad = driver.add(PROMPT, 6, ignore_eos=True), driver.add(PROMPT, 6, ignore_eos=True, logprobs=0)
    driver.step([(good, 7), (bad, 7)])
    logits, calls = engine.model.logits, []

    def poisoned(hidden):
        found = logits(hidden)
        calls.append(len(hidden))
        if len(calls) == 3:
            found[1] = math.nan
        return found

    engine.model.logits = poisoned
    try:
        result = driver.step([(good, 1), (bad, 1)], steps=5)
    finally:
        del engine.model.logits
    assert [good.output, bad.output] == [alone, alone[:3]]
    assert list(result.finish) == [pb.LENGTH, pb.ERROR]
    assert "logit" in bad.error
    assert len(bad.logprobs) == 3


def test_a_later_step_that_raises_adds_nothing_either(engine, drive):
    """Tokens, ends and penalties are as before the plan."""
    driver = drive(engine, record=False)
    wish = {"ignore_eos": True, "frequency_penalty": 1.0, "repetition_penalty": 1.2}
    alone = greedy(driver, 9, **wish).output
    ended, sequence = driver.add(PROMPT, 2, **wish), driver.add(PROMPT, 9, **wish)
    driver.step([(ended, 7), (sequence, 7)])
    plan = driver.plan([(ended, 1), (sequence, 1)], steps=6)
    logits, calls = engine.model.logits, []

    def raising(hidden):
        calls.append(len(hidden))
        if len(calls) == 4:
            raise RuntimeError("no memory")
        return logits(hidden)

    engine.model.logits = raising
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            engine.run(plan)
    finally:
        del engine.model.logits
    assert len(calls) == 4
    assert [engine._slots[each.slot].output for each in (ended, sequence)] == [1, 1]
    driver.finish([ended, sequence])
    assert [ended.output, sequence.output] == [alone[:2], alone]


def test_bad_plans_change_nothing(engine, drive):
    driver = drive(engine)
    sequence = driver.add(PROMPT, 9, ignore_eos=True)
    driver.step([(sequence, 7)])
    tokens = np.array(PROMPT, "<i4").tobytes()
    slot = sequence.slot
    take = pb.Take(slot=slot, incarnation=9, tokens=tokens, prompt_length=7, max_tokens=1)
    free = pb.Take(slot=3, incarnation=9, tokens=tokens, prompt_length=7, max_tokens=1)
    row = {"slot": [slot], "start": [7], "count": [1], "sample": [1]}
    bad = {
        "holds no sequence": pb.Plan(release=[2]),
        "another sequence holds it": pb.Plan(take=[take]),
        "taken twice": pb.Plan(take=[free, free]),
        "do not fit": pb.Plan(take=[pb.Take(slot=3, tokens=tokens, prompt_length=8)]),
        "differ in length": pb.Plan(slot=[slot], start=[7]),
        "does not match": pb.Plan(**row, blocks=[3]),
        "two rows": pb.Plan(slot=[slot, slot], start=[7, 7], count=[1, 1], sample=[1, 1]),
        "is released and has a row": pb.Plan(release=[slot], **row),
        "is not one of 1 to 19": pb.Plan(**row, block_count=[1], blocks=[0]),
        "are the most": pb.Plan(**row, block_count=[16], blocks=[3] * 16),
        "not of decodes alone": pb.Plan(slot=[slot, 2], start=[7, 0], count=[1, 4], sample=[2, 1]),
        "of decodes alone": pb.Plan(slot=[slot, 2], start=[7, 0], count=[1, 1], sample=[2, 0]),
    }
    for message, plan in bad.items():
        with pytest.raises(BadPlan, match=message):
            engine.run(plan)
    for start, count, sample, message in [
        (6, 3, 1, "positions 6 to 8"), (7, 0, 0, "positions 7 to 6"), (6, 1, 1, "positions 6 to 6"),
    ]:  # fmt: skip
        with pytest.raises(BadPlan, match=message):
            engine.run(pb.Plan(slot=[slot], start=[start], count=[count], sample=[sample]))
    with pytest.raises(BadPlan, match="position 16 is beyond its 1 blocks"):
        engine.run(pb.Plan(slot=[slot], start=[7], count=[1], sample=[10]))
    driver.finish([sequence])
    assert sequence.output == greedy(drive(engine), 9, ignore_eos=True).output


def test_parameters_that_cannot_be_fail_their_sequence(engine, drive):
    driver = drive(engine)
    sequence = driver.add(PROMPT, 3, stop_token_ids=[320])
    driver.step([(sequence, 7)])
    assert (sequence.finish, sequence.output) == (pb.ERROR, [])
    assert "320" in sequence.error


def test_logprobs(engine, drive):
    sequence = greedy(drive(engine), 4, ignore_eos=True, logprobs=3)
    assert len(sequence.logprobs) == 4
    for token, found in zip(sequence.output, sequence.logprobs, strict=True):
        assert found.rank == 1
        assert (found.top_tokens[0], len(found.top_tokens)) == (token, 3)
        assert found.logprob == found.top_logprobs[0] < 0


def test_reset(engine, drive):
    driver = drive(engine)
    sequence = driver.add(PROMPT, 3)
    driver.step([(sequence, 7)])
    engine.reset()
    with pytest.raises(BadPlan, match="holds no sequence"):
        engine.run(driver.plan([(sequence, 1)]))


def pool(**changes):
    given = {
        "block_bytes": 1 << 20, "block_size": 16, "max_model_len": 1024, "max_num_seqs": 4,
        "num_blocks": None, "memory": None, "available": 1 << 34,
    }  # fmt: skip
    return size_pool(**(given | changes))


def test_pool():
    assert pool().num_blocks == 4 * 64 + 1  # what the slots can fill, and block 0
    assert pool(memory=100 << 20).num_blocks == 100
    assert pool(memory=100 << 20).max_model_len == 1024
    assert pool(num_blocks=9999).num_blocks == 9999
    lowered = pool(num_blocks=11)
    assert lowered.max_model_len == 160
    assert "from 1024 to 160" in lowered.notes[0]
    with pytest.raises(OutOfMemory, match="--kv-cache-memory"):
        pool(memory=1 << 20)
    with pytest.raises(OutOfMemory, match="--num-kv-blocks"):
        pool(num_blocks=1)


def test_settings_that_cannot_be(tiny_model, make_engine):
    path = tiny_model("llama3")
    for leaves, message in [
        ({"backend": "fast"}, "there is no backend fast"),
        ({"block_size": 24}, "no multiple of 16"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"max_model_len": 2049}, "more than the model's context of 2048"),
    ]:
        if "device" in leaves and torch.cuda.is_available():
            continue
        with pytest.raises(ConfigError, match=message):
            make_engine(path, **leaves)
