"""What a constraint does to a draw, with a real grammar process: the mask, where a text may and must end."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from pillion.contracts.entries import Constraint, Sampling
from pillion.executor.sampling import Sampler
from pillion.grammar import Grammars
from pillion.kernels.interface import Backend
from pillion.kernels.reference import ReferenceBackend
from pillion.modelfiles import locate
from pillion.modelfiles.vocabulary import vocabulary
from tests.conftest import TinyModel
from tests.cpu_kernels import cpu_backend
from tests.executor.distributions import agree, oracle
from tests.executor.test_sampling import CASES, DRAWS, logits

V = 320  # of which 259 are tokens: every byte and three special ones
END = 2


@pytest.fixture(scope="module")
def bytes_of(tiny_model: TinyModel) -> tuple[bytes, ...]:
    return vocabulary(locate(str(tiny_model("llama3")))).pieces


@pytest.fixture(scope="module")
def grammars(tiny_model: TinyModel) -> Iterator[Grammars]:
    grammars = Grammars(locate(str(tiny_model("llama3"))), V, 64)
    yield grammars
    grammars.end()


@pytest.fixture(params=["reference", "cpu"])
def sampler(request: pytest.FixtureRequest, grammars: Grammars) -> Iterator[Sampler]:
    backend: Backend = ReferenceBackend() if request.param == "reference" else cpu_backend()
    sampler = Sampler(backend, V, (END,), 64, grammars)
    yield sampler
    sampler.clear()


def ids(bytes_of: tuple[bytes, ...], text: str) -> list[int]:
    return [bytes_of.index(bytes([byte]), 3) for byte in text.encode()]


def regex(text: str, **sampling: object) -> Sampling:
    return Sampling(seed=sampling.pop("seed", 1), constraint=Constraint("regex", text), **sampling)  # type: ignore[arg-type]


def allowed(sampler: Sampler, sampling: Sampling, tokens: list[int]) -> set[int]:
    """Those that are drawn if they are the likeliest."""
    sampler.add(0, msgspec.structs.replace(sampling, temperature=0.0), 0, [5, *tokens], 1)
    draws = sampler.sample(torch.eye(V), [0] * V, [len(tokens)] * V)
    sampler.remove(0)
    return {liked for liked, token in enumerate(draws.tokens) if liked == token}


def test_exactly_what_fits_can_be_drawn(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    letters = set(ids(bytes_of, "abc"))
    wish = regex("[abc]{2,3}x?")
    assert allowed(sampler, wish, []) == letters
    assert allowed(sampler, wish, ids(bytes_of, "a")) == letters
    assert allowed(sampler, wish, ids(bytes_of, "ab")) == {*letters, *ids(bytes_of, "x"), END}
    assert allowed(sampler, wish, ids(bytes_of, "abc")) == {*ids(bytes_of, "x"), END}
    assert allowed(sampler, wish, ids(bytes_of, "abx")) == {END}  # complete: nothing else is left
    free = Sampling(seed=1)
    assert allowed(sampler, free, []) == set(range(V))


def test_stop_ids_end_only_where_the_text_may(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    a, b, x = ids(bytes_of, "abx")
    wish = regex("[ab]{2,3}", stop_token_ids=(a, x))
    assert allowed(sampler, wish, [b]) == {b}
    assert allowed(sampler, wish, [b, b]) == {a, b, x, END}
    assert allowed(sampler, wish, [b, b, b]) == {a, x, END}


def test_a_complete_text_ends_whatever_else_was_wished(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    a, b = ids(bytes_of, "ab")
    for wish in (regex("a{1,2}", min_tokens=5), regex("a{1,2}", ignore_eos=True)):
        assert allowed(sampler, wish, [a]) == {a}
        assert allowed(sampler, wish, [a, a]) == {END}
    assert allowed(sampler, regex("a{1,2}", min_tokens=1), [a]) == {a, END}
    assert allowed(sampler, regex("a|b", stop_token_ids=(b,), min_tokens=9), [a]) == {b, END}


def test_a_constraint_may_begin_behind_a_text(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    constraint = Constraint("regex", "[ab]", "</x>")
    wish = Sampling(seed=1, constraint=constraint)
    thought = allowed(sampler, wish, ids(bytes_of, "a </x no"))
    assert {*ids(bytes_of, "ab<{\n")} <= thought and END not in thought
    behind = allowed(sampler, wish, ids(bytes_of, "a </x no</x>"))
    assert behind == {*ids(bytes_of, "ab \n")}
    assert allowed(sampler, wish, ids(bytes_of, "</x>\n\nb")) == {END}


def test_what_no_token_fits_is_an_error_of_the_row(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    (a,) = ids(bytes_of, "a")
    sampler.add(0, regex("aa", stop_token_ids=(a,)), 0, [5], 1)
    sampler.add(1, Sampling(seed=1), 0, [5], 1)
    draws = sampler.sample(torch.zeros(2, V), [0, 1], [0, 0])
    assert list(draws.impossible) == [0] and "stop_token_ids" in draws.impossible[0]
    assert draws.tokens[0] == -1 < draws.tokens[1]


def test_masked_draws_are_the_distribution_of_what_fits(
    sampler: Sampler, bytes_of: tuple[bytes, ...]
) -> None:
    """After penalties and bias, before temperature and filters."""
    (row,) = logits(1, seed=4, vocabulary=V)
    output = ids(bytes_of, "hello")
    fits = {*ids(bytes_of, "abcdefghijklmnopqrst"), END}
    for number, name in enumerate(("plain", "cold", "hot", "top-k", "top-p", "min-p", "frequency", "bias")):
        wish = msgspec.structs.replace(CASES[name], seed=number, constraint=Constraint("regex", "[a-t]+"))
        sampler.add(0, wish, 0, [5, *output], 1)
        draws = sampler.sample(row.expand(DRAWS, -1), [0] * DRAWS, range(5, 5 + DRAWS))
        sampler.remove(0)
        masked = row.numpy().astype(np.float64)
        masked[[token for token in range(V) if token not in fits]] = -np.inf
        agree(np.bincount(draws.tokens, minlength=V), oracle(masked, wish, [5], output, (END,)))


def test_log_probabilities_are_of_the_models_logits(sampler: Sampler, bytes_of: tuple[bytes, ...]) -> None:
    rows = logits(2, seed=5, vocabulary=V)
    rows[1] = rows[0]
    sampler.add(0, regex("[ab]", logprobs=3), 0, [5], 1)
    sampler.add(1, Sampling(seed=1, logprobs=3), 0, [5], 1)
    constrained, free = sampler.sample(rows, [0, 1], [0, 0]).logprobs
    assert constrained is not None and free is not None
    assert constrained.top == free.top and constrained.rank > 3
    assert np.isclose(
        np.exp(constrained.logprob),
        torch.softmax(rows[0].double(), 0)[sampler.sample(rows, [0, 1], [0, 0]).tokens[0]],
    )


def test_masks_are_made_while_something_else_runs_and_a_step_that_raised_leaves_nothing(
    sampler: Sampler, bytes_of: tuple[bytes, ...]
) -> None:
    a, b = ids(bytes_of, "ab")
    for slot in range(3):
        sampler.add(slot, regex("ab|ba", seed=slot), 0, [5], 1)
    sampler.expect([0, 1, 2])  # and then the forward pass raised
    sampler.remove(1)
    sampler.note(0, a)
    sampler.note(2, b)
    sampler.expect([0, 2])
    assert sampler.sample(torch.zeros(2, V), [0, 2], [1, 1]).tokens == [b, a]
