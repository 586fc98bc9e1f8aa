"""The sampler against an independent float64 description of what it should do, and its promises on bits."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from pillion.contracts import executor_pb2
from pillion.contracts.entries import Sampling
from pillion.executor.penalties import History
from pillion.executor.random import philox, uniforms
from pillion.executor.sampling import Sampler, from_wire, logprob
from pillion.kernels import filters
from pillion.kernels.interface import Backend
from pillion.kernels.reference import ReferenceBackend
from tests.cpu_kernels import cpu_backend
from tests.executor.distributions import agree, oracle

V = 512
END = (0, 2)
DRAWS = 6000


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Whose draws they are: the oracle's or the kernel's."""
    return ReferenceBackend() if request.param == "reference" else cpu_backend()


def logits(rows: int, seed: int = 0, scale: float = 2.0, vocabulary: int = V) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def drawn(
    backend: Backend,
    row: torch.Tensor,
    sampling: Sampling,
    prompt: list[int],
    output: list[int],
    choices: int,
) -> np.ndarray:
    """How often each token comes over `choices` choices, in one batch."""
    sampler = Sampler(backend, row.numel(), END, choices)
    for choice in range(choices):
        sampler.add(choice, sampling, choice, prompt + output, len(prompt))
    counts = np.zeros(row.numel(), np.int64)
    for start in range(0, choices, 500):
        slots = range(start, min(start + 500, choices))
        draws = sampler.sample(row.expand(len(slots), -1), slots, [len(output)] * len(slots))
        np.add.at(counts, draws.tokens, 1)
    return counts


CASES = {
    "plain": Sampling(seed=1),
    "cold": Sampling(seed=2, temperature=0.5),
    "hot": Sampling(seed=3, temperature=3.0),
    "top-k": Sampling(seed=4, top_k=7),
    "top-k 1": Sampling(seed=5, top_k=1),
    "top-k all": Sampling(seed=6, top_k=V),
    "top-p": Sampling(seed=7, top_p=0.8),
    "top-p tiny": Sampling(seed=8, top_p=1e-6),
    "top-p of top-k": Sampling(seed=9, top_k=20, top_p=0.7, temperature=1.3),
    "min-p": Sampling(seed=10, min_p=0.1),
    "min-p and top-p": Sampling(seed=11, min_p=0.02, top_p=0.95, temperature=1.2),
    "repetition": Sampling(seed=12, repetition_penalty=1.7, top_k=30),
    "frequency": Sampling(seed=13, frequency_penalty=1.1),
    "presence": Sampling(seed=14, presence_penalty=1.9),
    "negative penalties": Sampling(seed=15, frequency_penalty=-0.7, presence_penalty=-0.4, top_p=0.9),
    "bias": Sampling(seed=16, logit_bias={11: 4.0, 12: -100.0}),
    "min tokens": Sampling(seed=17, min_tokens=9, stop_token_ids=(5,), logit_bias={0: 50.0}),
    "allowed": Sampling(seed=19, allowed_token_ids=(0, 3, 14, 15, 400), temperature=3.0),
    "bad words": Sampling(
        seed=20, temperature=0.5, bad_words=((7,), (14, 15, 20), (14, 14, 15, 21), (13, 22), (15, 23))
    ),
    "all": Sampling(
        seed=18, temperature=1.4, top_k=60, top_p=0.9, min_p=0.01, repetition_penalty=1.2,
        frequency_penalty=0.3, presence_penalty=0.2, logit_bias={3: 2.0}, min_tokens=9, stop_token_ids=(3, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_the_distribution(backend: Backend, name: str) -> None:
    row = logits(1, seed=3)[0]
    row[0] = 3.0
    prompt, output = [11, 12, 13, 13], [13, 14, 14, 14, 15]
    expected = oracle(row.numpy(), CASES[name], prompt, output)
    agree(drawn(backend, row, CASES[name], prompt, output, DRAWS), expected)


@pytest.mark.parametrize("name", CASES)
def test_filters_keep_exactly_the_described_tokens(name: str) -> None:
    sampling = CASES[name]
    for seed in range(20):
        row = logits(1, seed=seed, scale=0.5 + seed % 5)[0].numpy()
        neutral = Sampling(
            seed=0,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        expected = oracle(row, neutral, [], [])
        ids, weights = filters.candidates(
            row, neutral.temperature, neutral.top_k, neutral.top_p, neutral.min_p
        )
        found = np.zeros(V)
        found[slice(None) if ids is None else ids] = weights / weights.sum()
        assert np.array_equal(found > 0, expected > 0)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=0)


def test_equal_logits_are_kept_by_lowest_id() -> None:
    row = np.zeros(V, np.float32)
    row[[40, 300]] = 1.0
    assert filters.likeliest(row, 5).tolist() == [0, 1, 2, 40, 300]
    assert filters.likeliest(row, 1).tolist() == [40]
    ids, _ = filters.candidates(np.zeros(V, np.float32), 1.0, 0, 10 / V, 0.0)
    assert ids is not None
    assert ids.tolist() == list(range(10))


def test_greedy_takes_the_lowest_of_equal_ids(backend: Backend) -> None:
    rows = logits(4)
    for row, tied in enumerate(([7, 400], [0, 511], [255, 256], [1, 2])):
        rows[row, tied] = 50.0
    for extra in (
        {},
        {"repetition_penalty": 1.5},
        {"logprobs": 2},
        {"logit_bias": {9: -1.0}},
        {"min_tokens": 1},
    ):
        sampler = Sampler(backend, V, (500,), 64)
        for slot in range(4):
            sampler.add(slot, Sampling(seed=slot, temperature=0, **extra), 0, [3], 1)
        assert sampler.sample(rows, range(4), [0] * 4).tokens == [7, 0, 255, 1]


def test_a_cold_temperature_is_greedy(backend: Backend) -> None:
    rows = logits(64)
    rows[:, 7] = 100.0
    rows[:, 8] = 100.0 - 1e-5  # a draw would take it now and then
    sampler = Sampler(backend, V, END, 64)
    for slot in range(64):
        sampler.add(slot, Sampling(seed=slot, temperature=9e-6), 0, [3], 1)
    assert sampler.sample(rows, range(64), [0] * 64).tokens == [7] * 64


def test_positions_of_one_sequence_are_independent_draws(backend: Backend) -> None:
    row = logits(1, seed=3)[0]
    expected = oracle(row.numpy(), CASES["top-k"], [], [])
    sampler = Sampler(backend, V, END, 64)
    sampler.add(0, CASES["top-k"], 0, [1], 1)
    draws = sampler.sample(row.expand(DRAWS, -1), [0] * DRAWS, range(DRAWS))
    counts = np.bincount(draws.tokens, minlength=V)
    kept = expected > 0
    assert counts[kept].sum() == DRAWS
    wanted = expected[kept] * DRAWS
    assert ((counts[kept] - wanted) ** 2 / wanted).sum() < 22.5  # 6 degrees of freedom, 0.1 %


@pytest.mark.parametrize("name", ["repetition", "frequency", "presence", "negative penalties", "all"])
def test_penalties_change_the_logits_as_described(name: str) -> None:
    sampling = CASES[name]
    row = logits(1, seed=8)[0].numpy()
    row[[11, 13]] = [-1.5, 1.5]
    prompt, output = [11, 12, 13, 13], [13, 14, 14, 14, 15, 11]
    expected = row.astype(np.float64)
    for token in {*prompt, *output}:
        r = sampling.repetition_penalty
        expected[token] = expected[token] / r if expected[token] > 0 else expected[token] * r
    for token, count in Counter(output).items():
        expected[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    history = History(np.array(prompt + output[:2], np.int32), len(prompt))
    for token in output[2:]:
        history.note(token)
    assert np.count_nonzero(expected != row) >= 4
    history.penalize(row, sampling)
    np.testing.assert_allclose(row, expected, rtol=1e-6)


MIXED = (
    Sampling(seed=1),
    Sampling(seed=2, temperature=0),
    Sampling(seed=3, temperature=0.7, top_p=0.9),
    Sampling(seed=4, top_k=9, logprobs=3),
    Sampling(seed=5, repetition_penalty=1.3, frequency_penalty=0.5),
    Sampling(seed=6, temperature=0, logprobs=0, min_tokens=50),
    Sampling(seed=7, min_p=0.05, logit_bias={4: 3.0}),
)


@pytest.mark.parametrize("vocabulary", [V, 1021])  # odd rows are not aligned in memory
def test_a_row_is_the_same_in_every_batch(backend: Backend, vocabulary: int) -> None:
    """Alone, among others, in any order, with one thread or two: same token, same bits of log-probability."""
    rows = logits(40, vocabulary=vocabulary)

    def sampler() -> Sampler:
        made = Sampler(backend, vocabulary, END, 64)
        for slot in range(40):
            made.add(slot, MIXED[slot % len(MIXED)], slot, [1, 2, 3, slot], 2)
        return made

    positions = [slot % 5 for slot in range(40)]
    alone = [sampler().sample(rows[slot : slot + 1].clone(), [slot], [positions[slot]]) for slot in range(40)]
    tokens = [draws.tokens[0] for draws in alone]
    logprobs = [draws.logprobs[0] for draws in alone]
    assert sum(found is not None for found in logprobs) > 10
    before = torch.get_num_threads()
    generator = torch.Generator().manual_seed(1)
    try:
        for size in (2, 3, 7, 16, 39, 40):
            torch.set_num_threads(1 + size % 2)
            slots = torch.randperm(40, generator=generator)[:size].tolist()
            draws = sampler().sample(rows[slots], slots, [positions[slot] for slot in slots])
            assert draws.tokens == [tokens[slot] for slot in slots]
            assert draws.logprobs == [logprobs[slot] for slot in slots]
    finally:
        torch.set_num_threads(before)


def test_sampling_leaves_the_logits_alone(backend: Backend) -> None:
    rows = logits(len(MIXED))
    kept = rows.clone()
    sampler = Sampler(backend, V, END, 64)
    for slot, sampling in enumerate(MIXED):
        sampler.add(slot, sampling, 0, [1, 2, 3], 2)
    sampler.sample(rows, range(len(MIXED)), [0] * len(MIXED))
    assert torch.equal(rows, kept)


def generate(sampler: Sampler, slot: int, choice: int, start: int, length: int) -> list[int]:
    """A model whose logits come again every five positions, so that penalties have something to do."""
    tokens = []
    for position in range(start, length):
        draws = sampler.sample(logits(1, seed=1000 + position % 5), [slot], [position])
        sampler.note(slot, draws.tokens[0])
        tokens.append(draws.tokens[0])
    return tokens


def test_four_choices_of_one_seed_differ_and_repeat(backend: Backend) -> None:
    runs = []
    for _ in range(2):
        sampler = Sampler(backend, V, END, 64)
        for choice in range(4):
            sampler.add(choice, Sampling(seed=77), choice, [1], 1)
        runs.append([tuple(generate(sampler, choice, choice, 0, 12)) for choice in range(4)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=5, repetition_penalty=1.5, frequency_penalty=0.9, presence_penalty=0.8, top_k=4),
        Sampling(seed=5, temperature=0, frequency_penalty=1.5),
        Sampling(seed=6, min_tokens=30, stop_token_ids=(9,), logit_bias={0: 6.0, 9: 6.0}),
    ],
)
def test_state_is_rebuilt_from_the_tokens(backend: Backend, sampling: Sampling) -> None:
    """Interrupted after any token and taken up in another slot, a sequence goes on as if it had not been."""
    prompt = [3, 4, 4, 5]
    whole = Sampler(backend, V, END, 64)
    whole.add(0, sampling, 2, prompt, len(prompt))
    expected = generate(whole, 0, 2, 0, 40)
    plain = Sampler(backend, V, END, 64)
    plain.add(
        0, Sampling(seed=sampling.seed, temperature=sampling.temperature, top_k=sampling.top_k), 2, prompt, 4
    )
    assert generate(plain, 0, 2, 0, 40) != expected  # what is rebuilt matters
    for cut in (1, 7, 29, 39):
        sampler = Sampler(backend, V, END, 64)
        sampler.add(3, sampling, 2, prompt, len(prompt))
        first = generate(sampler, 3, 2, 0, cut)
        sampler.remove(3)
        sampler.add(1, sampling, 2, np.array(prompt + first, np.int32), len(prompt))
        assert first + generate(sampler, 1, 2, cut, 40) == expected


def test_nothing_ends_before_min_tokens(backend: Backend) -> None:
    sampler = Sampler(backend, V, END, 64)
    sampling = Sampling(
        seed=6, min_tokens=10, stop_token_ids=(9,), ignore_eos=True, logit_bias={0: 90.0, 2: 90.0, 9: 95.0}
    )
    sampler.add(0, sampling, 0, [1], 1)
    tokens = generate(sampler, 0, 0, 0, 11)
    assert not {0, 2, 9} & set(tokens[:10])
    assert tokens[10] == 9


def test_logprobs_are_of_the_raw_distribution(backend: Backend) -> None:
    rows = logits(30, scale=3.0)
    sampler = Sampler(backend, V, END, 64)
    for slot in range(30):
        sampling = Sampling(
            seed=slot,
            temperature=2.0,
            top_k=50,
            logit_bias={slot: 5.0},
            repetition_penalty=1.4,
            logprobs=slot % 6,
        )
        sampler.add(slot, sampling, 0, [1, 2, 3], 2)
    draws = sampler.sample(rows, range(30), [4] * 30)
    reference = torch.log_softmax(rows.double(), dim=1)
    ranks = []
    for slot, (token, found) in enumerate(zip(draws.tokens, draws.logprobs, strict=True)):
        assert found is not None
        assert found.logprob == pytest.approx(float(reference[slot, token]), abs=1e-9)
        assert found.rank == 1 + int((rows[slot] > rows[slot, token]).sum())
        values, ids = reference[slot].topk(slot % 6)
        assert [token for token, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-9)
        ranks.append(found.rank)
    assert max(ranks) > 1


def test_ranks_and_alternatives_agree_on_ties() -> None:
    row = np.zeros(V, np.float32)
    row[[9, 40]] = 2.0
    found = logprob(row, 40, 4)
    assert found.rank == 2
    assert [token for token, _ in found.top] == [9, 40, 0, 1]
    assert logprob(row, 1, 4).rank == 4


def test_a_broken_row_is_its_own_error(backend: Backend) -> None:
    rows = logits(4)
    clean = rows.clone()
    rows[1, 100] = math.nan
    rows[3, 100] = math.inf
    sampler = Sampler(backend, V, END, 64)
    for slot in range(4):
        sampler.add(slot, Sampling(seed=slot, logprobs=1), 0, [1], 1)
    draws = sampler.sample(rows, range(4), [0] * 4)
    assert sorted(draws.errors) == [1, 3]
    assert "nan" in draws.errors[1]
    whole = sampler.sample(clean, range(4), [0] * 4)
    assert draws.tokens == [whole.tokens[0], -1, whole.tokens[2], -1]
    assert draws.logprobs == [whole.logprobs[0], None, whole.logprobs[2], None]


def test_a_row_whose_every_token_is_banned_is_its_own_error(backend: Backend) -> None:
    rows = logits(2)
    rows[0] = -math.inf
    rows[0, END[1]] = 1.0
    sampler = Sampler(backend, V, END, 64)
    for slot in range(2):
        sampler.add(slot, Sampling(seed=slot, min_tokens=5, logprobs=0), 0, [1], 1)
    held = sampler.sample(rows, range(2), [4] * 2)
    assert held.tokens[0] == -1 and held.logprobs[0] is None and held.tokens[1] not in (-1, *END)
    assert held.impossible == {
        0: "No token is left to draw after 4 tokens of the answer, by min_tokens. Ask for less of it."
    }
    assert not held.errors, "the model's numbers are sound"
    assert sampler.sample(rows, range(2), [5] * 2).tokens[0] == END[1]


@pytest.mark.parametrize("extra", [{"logit_bias": {V: 1.0}}, {"stop_token_ids": (V + 3,)}])
def test_ids_outside_the_vocabulary_are_refused(backend: Backend, extra: dict) -> None:
    sampler = Sampler(
        backend, V, (*END, V + 1), 64
    )  # an end token that the model cannot produce does not matter
    with pytest.raises(ValueError, match=f"{next(iter(extra))} names token {V}|names token {V + 3}"):
        sampler.add(0, Sampling(seed=1, **extra), 0, [1], 1)
    sampler.add(0, Sampling(seed=1, min_tokens=3), 0, [1], 1)
    assert sampler.sample(logits(1), [0], [0]).tokens[0] not in END


@pytest.mark.parametrize("temperature", [1e-5, 1e30])
def test_extreme_temperatures_still_draw(backend: Backend, temperature: float) -> None:
    row = logits(1)[0]
    counts = drawn(backend, row, Sampling(seed=1, temperature=temperature), [1], [], 400)
    assert counts.sum() == 400
    assert (counts[int(row.argmax())] == 400) == (temperature < 1)
    assert (np.count_nonzero(counts) > 200) == (temperature > 1)


@pytest.mark.parametrize("penalty", [1e-6, 1e-40, 1e-300])
@pytest.mark.parametrize("wish", [{}, {"top_p": 0.5}, {"top_k": 5}, {"min_p": 0.5}, {"temperature": 0.0}])
def test_a_repetition_penalty_beyond_float32_still_draws(
    backend: Backend, penalty: float, wish: dict[str, float]
) -> None:
    """It may be asked for; a row that raised would take the whole step with it."""
    row = logits(1)[0]
    seen = int(row.argmax())
    counts = drawn(backend, row, Sampling(seed=1, repetition_penalty=penalty, **wish), [seen, 7], [7], 50)
    assert counts.sum() == 50
    assert counts[seen] > 0 and counts[[token for token in range(V) if token not in (seen, 7)]].sum() == 0


def test_philox_known_answers() -> None:
    """The vectors that the authors' Random123 1.14 publishes for philox4x32-10."""
    ones = 0xFFFFFFFF
    counters = [(0,) * 4, (ones,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    keys = [(0, 0), (ones, ones), (0xA4093822, 0x299F31D0)]
    blocks = philox(np.array(counters, np.uint64).T, np.array(keys, np.uint64).T)
    assert blocks.T.tolist() == [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ]


def test_uniforms_are_even_and_tell_all_arguments_apart() -> None:
    keys = np.array([(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1 + (1 << 40), 0, 0)], np.uint64).T
    together = uniforms(*keys)
    assert len(set(together.tolist())) == 5
    assert [float(uniforms(*key)[0]) for key in np.split(keys, 5, axis=1)] == together.tolist()
    choices, positions = np.divmod(np.arange(10000, dtype=np.uint64), np.uint64(500))
    values = uniforms(np.full(10000, 9, np.uint64), choices, positions)
    assert values.min() >= 0
    assert values.max() < 1
    cells = np.histogram(values, bins=50, range=(0, 1))[0]
    assert ((cells - 200) ** 2 / 200).sum() < 85.4  # 49 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    # Which words make a number, and of what: a change would change every seeded answer.
    assert uniforms(*np.array([[(1 << 64) - 1], [3], [70000]], np.uint64)).tolist() == [0.8760250169196161]


def test_bad_words_are_banned_as_tokens_come(backend: Backend) -> None:
    """Also those that began before the sequence took its slot."""
    rows = logits(1)
    rows[0, 7], rows[0, 8] = 90.0, 50.0
    sampler = Sampler(backend, V, END, 2)
    wish = Sampling(seed=1, temperature=0, bad_words=((5, 6, 7), (9, 7)))
    sampler.add(0, wish, 0, [9, 5], 1)
    assert sampler.sample(rows, [0], [1]).tokens == [7]
    sampler.note(0, 6)
    assert sampler.sample(rows, [0], [2]).tokens == [8]
    sampler.note(0, 6)
    assert sampler.sample(rows, [0], [3]).tokens == [7]
    sampler.note(0, 9)
    assert sampler.sample(rows, [0], [4]).tokens == [8]
    sampler.add(1, wish, 0, [1, 5, 6], 1)
    assert sampler.sample(rows, [1], [2]).tokens == [8]
    sampler.add(1, Sampling(seed=1, temperature=0, bad_words=((7,), (8, 9))), 0, [1, 5, 6], 1)
    assert sampler.sample(rows, [1], [2]).tokens == [8]
    with pytest.raises(ValueError, match="bad_words names token 512"):
        sampler.add(1, Sampling(seed=1, bad_words=((V,),)), 0, [1], 1)


def test_the_last_uniform_stays_inside() -> None:
    for size in (1, 3, 1000):
        weights = np.full(size, 0.1)
        assert filters.draw(None, weights, 1 - 2**-53) == size - 1
        assert filters.draw(None, np.append(weights, 0.0), 1 - 2**-53) == size - 1
    assert filters.draw(np.array([4, 9]), np.array([0.0, 1.0]), 0.0) == 9


def test_the_wire_brings_the_same_parameters() -> None:
    sampling = CASES["all"]
    message = executor_pb2.Sampling(**{name: getattr(sampling, name) for name in Sampling.__struct_fields__})
    assert from_wire(message) == sampling
    assert from_wire(executor_pb2.Sampling(seed=3, logprobs=0)) == Sampling(
        seed=3, temperature=0.0, logprobs=0
    )
