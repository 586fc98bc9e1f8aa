"""Within one numeric fingerprint a token's hidden state has the same bits, whatever runs beside it."""

import numpy as np
import pytest
import torch

LENGTH = 330
CHUNKS = [1, 16, 17, 64, 255, 256, 257, 512]


@pytest.fixture(scope="module", params=["bfloat16", "float32", "int8", "gguf_packed", "kv_int8"])
def engine(request):
    return request.getfixturevalue(f"demo_{request.param}")


@pytest.fixture(scope="module")
def prompt():
    return np.random.default_rng(5).integers(100, 40000, LENGTH).tolist()


@pytest.fixture(scope="module")
def expected(engine, drive, prompt):
    """Hidden states of the prompt in one step, alone."""
    driver = drive(engine)
    sequence = driver.add(prompt)
    driver.step([(sequence, LENGTH)])
    assert driver.chunks == [(0, LENGTH)]
    return driver.states(sequence)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks(engine, drive, prompt, expected, chunk):
    """With chunk 1 every position is computed as a decode is."""
    count = 70 if chunk == 1 else LENGTH
    driver = drive(engine, seed=chunk)
    sequence = driver.add(prompt[:count])
    driver.finish([sequence], chunk)
    most = min(chunk, count)
    assert [c for _, c in driver.chunks] == [most] * (count // most) + [count % most] * (count % most > 0)
    assert torch.equal(driver.states(sequence), expected[:count])


def test_random_schedules(engine, drive, prompt, expected):
    """Beside other sequences, in any rows, in blocks anywhere, with preemptions."""
    random = np.random.default_rng(7)
    driver = drive(engine, seed=7)
    ours = [driver.add(prompt) for _ in range(2)]
    others = [
        driver.add(random.integers(100, 40000, random.integers(1, 400)), 400, ignore_eos=True)
        for _ in range(9 if engine.facts.dtype == "bfloat16" else 4)  # float32 takes several times as long
    ]
    preempted, mixed = 0, 0
    while any(sequence.done < LENGTH for sequence in ours):
        rows = [(s, 1) for s in others if s.done == len(s.tokens) - 1 and random.random() < 0.8]
        decodes = len(rows)
        for sequence in random.permutation(np.array([*ours, *others], dtype=object)):
            left = sequence.prompt_length - sequence.done
            room = driver.facts.max_step_tokens - sum(count for _, count in rows)
            if left > 0 and room > 0 and random.random() < 0.5 and all(s is not sequence for s, _ in rows):
                rows.append((sequence, int(min(left, room, random.choice([1, 2, 3, 5, 16, 31, 64, 100])))))
        if not rows:
            continue
        mixed += decodes > 0 and len(rows) > decodes
        driver.step(rows)
        if preempted < 3 and random.random() < 0.1 and ours[1].done > 40:
            driver.drop(ours[1])
            driver.start(ours[1])
            preempted += 1
    assert preempted == 3
    assert mixed > 5
    for sequence in ours:
        assert torch.equal(driver.states(sequence), expected)


def test_decodes_preempted_and_hit(demo_bfloat16, drive, prompt):
    """Generated tokens: computed as decodes, after a preemption as chunks, and found as cached blocks."""
    driver = drive(demo_bfloat16, seed=1)
    plain = driver.add(prompt[:100], 60, ignore_eos=True)
    driver.finish([plain])
    states = driver.states(plain)

    driver = drive(demo_bfloat16, seed=2)
    sequence = driver.add(prompt[:100], 60, ignore_eos=True)
    beside = [driver.add(prompt[k : k + 50 * k], 60, ignore_eos=True) for k in (1, 2, 3, 4)]
    driver.step([(sequence, 100)])
    for _ in range(30):
        driver.step([(sequence, 1)])
    driver.drop(sequence)
    driver.start(sequence)
    assert len(sequence.tokens) == 131
    driver.step([(sequence, 77), (beside[0], 50)])
    driver.step([(sequence, 54), (beside[1], 100)])
    driver.finish([sequence, *beside])
    assert sequence.tokens == plain.tokens
    assert torch.equal(driver.states(sequence), states)

    size = driver.facts.block_size
    whole = len(sequence.blocks)
    blocks = tuple(sequence.blocks)
    for cached in (size, 2 * size, (whole - 1) * size):
        driver.rows = 0
        hit = driver.add(sequence.tokens[: cached + 9], cached=cached, blocks=blocks[: cached // size])
        driver.step([(hit, 9)])
        assert driver.rows == 9
        last = driver.hidden[id(hit)]
        assert all(
            torch.equal(last[cached + k], states[cached + k]) for k in range(9) if cached + k < len(states)
        )
    # All of the prompt is cached: its last token is computed again, into the shared block.
    hit = driver.add(sequence.tokens[: 2 * size], cached=2 * size - 1, blocks=blocks[:2])
    driver.step([(hit, 1)])
    assert torch.equal(driver.hidden[id(hit)][2 * size - 1], states[2 * size - 1])


def test_several_steps_in_one_plan(demo_bfloat16, drive, prompt):
    """Over block borders; sequences end in the first, a middle and the last step of a plan."""
    found = []
    for steps in (1, 5):
        driver = drive(demo_bfloat16, seed=steps)
        sequences = [
            driver.add(prompt[:40], 21, ignore_eos=True),
            driver.add(prompt[40:69], 12, ignore_eos=True, temperature=1.0, seed=7, top_p=0.9),
            driver.add(prompt[:9], 4, ignore_eos=True, temperature=0.8, seed=8),
        ]
        driver.finish(sequences, steps=steps)
        found.append([(sequence.tokens, driver.states(sequence)) for sequence in sequences])
    assert driver.step_number == 3 + 4  # the prompts, then twenty steps in four plans
    for (tokens, states), (others, other_states) in zip(*found, strict=True):
        assert tokens == others
        assert torch.equal(states, other_states)


def test_threads(demo_bfloat16, drive, prompt):
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            driver = drive(demo_bfloat16)
            sequence = driver.add(prompt)
            driver.finish([sequence], 200)
            found.append(driver.states(sequence))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_row_counts_were_found(engine):
    """The promise rests on a list that is short and not just one count."""
    counts = engine.row_counts.counts
    assert len(counts) > 10
    assert counts[-1] == engine.facts.max_step_tokens
