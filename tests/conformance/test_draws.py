"""What every backend must draw, against the distribution written out here in float64 with full sorts."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pillion.kernels.interface import WISH, Backend
from pillion.kernels.reference import ReferenceBackend
from pillion.kernels.torch import TorchBackend
from tests.cpu_kernels import cpu_backend

NEAR = 1e-6  # of a border, where rounding may choose either side
LAST = 1 - 2**-53


@pytest.fixture(scope="module", params=["reference", "torch", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return {"reference": ReferenceBackend, "torch": TorchBackend, "cpu": cpu_backend}[request.param]()


def wish(
    temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0, uniform: float = 0.0, top_k: int = 0
) -> NDArray[np.void]:
    return np.array([(temperature, top_p, min_p, uniform, top_k)], WISH)


def draw(
    backend: Backend, row: NDArray[np.float32], one: NDArray[np.void], uniforms: list[float]
) -> list[int]:
    """What each uniform number gives."""
    wishes = one.repeat(len(uniforms))
    wishes["uniform"] = uniforms
    return backend.draw(torch.from_numpy(row).expand(len(uniforms), -1), wishes).tolist()


class Described:
    """What may be drawn of one row: ids in their order, and how much of the weight lies up to each."""

    def __init__(self, row: NDArray[np.float32], wish: NDArray[np.void]) -> None:
        temperature, top_p, min_p, _, top_k = wish[0].item()
        x = row.astype(np.float64)
        weights = np.exp((x - x.max()) / temperature)
        order = np.lexsort((np.arange(x.size), -x))[: top_k or None]
        shares = weights[order].cumsum() / weights[order].sum()
        near = abs(shares[shares < 1] - top_p).min(initial=1.0) < NEAR if top_p < 1 else False
        kept = order[: 1 + int(np.count_nonzero(shares < top_p))] if top_p < 1 else order
        least = min_p * weights.max()
        near |= bool((abs(weights[kept] - least) < NEAR * least).any()) if min_p else False
        self.near = near  # a token's weight or share is so near a border that either is right
        self.ids = np.sort(kept[weights[kept] >= least])
        self.shares = weights[self.ids].cumsum() / weights[self.ids].sum()


def cases() -> Iterator[tuple[NDArray[np.float32], NDArray[np.void]]]:
    numbers = np.random.default_rng(1)
    for size in (1, 2, 5, 17, 300, 1021, 20001):
        for turn in range(30 if size < 2000 else 6):
            row = (numbers.standard_normal(size) * 2 ** numbers.integers(0, 4)).astype(np.float32)
            if turn % 3 == 0:
                row = np.round(row)  # many equal ones
            if turn % 5 == 0:
                row[numbers.random(size) < 0.3] = -np.inf
                row[numbers.integers(size)] = 1.0
            if turn % 7 == 0:
                row += 500
            yield (
                row,
                wish(
                    temperature=float(numbers.choice([0.2, 0.7, 1.0, 1.5, 4.0])),
                    top_k=int(numbers.choice([0, 0, 1, 3, 40, 700, size])),
                    top_p=float(numbers.choice([1.0, 0.05, 0.5, 0.9, 0.999])),
                    min_p=float(numbers.choice([0.0, 0.0, 0.001, 0.2, 1.0])),
                ),
            )


def test_the_kept_tokens_and_their_shares_are_those_described(backend: Backend) -> None:
    """Beside a border between two tokens, each uniform number gives the one that it must.

    A token too many or too few would move all borders behind it by its share.
    """
    numbers = np.random.default_rng(2)
    clear, looked_at, filtered = 0, 0, 0
    for row, asked in cases():
        described = Described(row, asked)
        if described.near:
            continue
        clear += 1
        filtered += len(described.ids) < np.isfinite(row).sum()
        borders = np.concatenate(([0.0], described.shares))
        wide = np.flatnonzero(np.diff(borders) > 4 * NEAR)
        some = wide if len(wide) <= 60 else numbers.choice(wide, 60, replace=False)
        looked_at += len(some)
        uniforms = [*(borders[some] + NEAR), *(borders[some + 1] - NEAR)]
        assert draw(backend, row, asked, uniforms) == [*described.ids[some], *described.ids[some]], asked
    assert clear > 130 and looked_at > 1200 and filtered > 90


def test_equal_logits_are_kept_by_lowest_id(backend: Backend) -> None:
    uniforms = [(place + 0.5) / 10 for place in range(10)]
    for size in (512, 5000):
        row = np.zeros(size, np.float32)
        for only in (wish(top_k=10), wish(top_p=10 / size), wish(top_p=10 / size, temperature=1e38)):
            assert draw(backend, row, only, uniforms) == list(range(10))
        row[[size - 2, 40]] = -1.0
        row[[3, size - 1]] = 1.0
        # Two that are likelier and the first three of the rest, a share of one each where it is so hot.
        found = draw(backend, row, wish(top_k=5, temperature=1e38), [0.1, 0.3, 0.5, 0.7, 0.9])
        assert found == [0, 1, 2, 3, size - 1]
    row[:] = 0.0
    row[::2] = -0.0
    assert draw(backend, row, wish(top_k=10), uniforms) == list(range(10))
    assert draw(backend, row, wish(top_p=10 / size), uniforms) == list(range(10))


def test_the_likeliest_is_the_lowest_of_equal_ids(backend: Backend) -> None:
    numbers = np.random.default_rng(3)
    for size in (1, 16, 33, 1021, 5000):
        rows = np.round(numbers.standard_normal((40, size))).astype(np.float32)
        found = backend.draw(torch.from_numpy(rows), wish(temperature=0.0).repeat(40))
        assert found.tolist() == rows.argmax(1).tolist()


WISHES = [
    wish(), wish(top_k=3), wish(top_p=0.5), wish(top_p=1e-300), wish(min_p=1e-300), wish(min_p=1.0),
    wish(top_k=1 << 40), wish(top_k=5, top_p=0.99, min_p=0.01), wish(0.0),
]  # fmt: skip


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e38])
@pytest.mark.parametrize("asked", WISHES)
@pytest.mark.parametrize("size", [1, 17, 3000])
def test_what_weighs_nothing_is_never_drawn(
    backend: Backend, size: int, asked: NDArray[np.void], temperature: float
) -> None:
    uniforms = [0.0, 0.3, LAST]
    asked = asked.copy()
    asked["temperature"] = np.where(asked["temperature"] == 0, 0.0, temperature)
    for only in {0, size // 2, size - 1}:
        row = np.full(size, -np.inf, np.float32)
        for value in (0.0, -1e30, 1e30, float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)):
            row[only] = value
            assert draw(backend, row, asked, uniforms) == [only] * 3


def test_the_last_uniform_stays_inside(backend: Backend) -> None:
    """Also where sums in another order differ in their last bit."""
    rows = 12 * np.random.default_rng(6).standard_normal((200, 1000)).astype(np.float32)
    rows[:, 990:] = -np.inf
    found = backend.draw(torch.from_numpy(rows), wish(uniform=LAST).repeat(200))
    assert np.isfinite(rows[np.arange(200), found]).all() and found.max() > 900
    for size in (1, 3, 1000, 1025, 4000):
        row = np.full(size + 1, -2.3, np.float32)
        row[-1] = -np.inf
        assert draw(backend, row, wish(), [LAST]) == [size - 1]
        assert draw(backend, row[:-1].copy(), wish(), [LAST]) == [size - 1]
        row[0] = -np.inf
        if size > 1:
            assert draw(backend, row, wish(), [0.0, LAST]) == [1, size - 1]


def test_heat_levels_and_cold_decides(backend: Backend) -> None:
    row = np.random.default_rng(4).standard_normal(700).astype(np.float32)
    uniforms = [(place + 0.5) / 700 for place in range(700)]
    assert draw(backend, row, wish(temperature=1e38), uniforms) == list(range(700))
    assert set(draw(backend, row, wish(temperature=1e-5), uniforms)) == {int(row.argmax())}
    row[:] = -3.4e38
    row[300] = 3.4e38  # their difference is beyond float32
    assert set(draw(backend, row, wish(), uniforms)) == {300}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("size", [1, 17, 700])
def test_a_row_that_is_no_number_has_no_token(backend: Backend, size: int, bad: float) -> None:
    rows = np.zeros((4, size), np.float32)
    rows[1, size // 3] = bad
    rows[2] = -np.inf
    rows[3, size - 1] = np.copysign(np.float32(np.nan), -1.0)
    for asked in WISHES:
        found = backend.draw(torch.from_numpy(rows), asked.repeat(4)).tolist()
        assert found[0] >= 0 and found[1:] == [-1] * 3


def test_rows_may_lie_apart(backend: Backend) -> None:
    whole = torch.from_numpy(np.random.default_rng(5).standard_normal((6, 50)).astype(np.float32))
    wishes = wish(top_p=0.8, uniform=0.4).repeat(6)
    for rows in (whole[:, 3:40], whole[::2], whole.t()):
        found = backend.draw(rows, wishes[: len(rows)].repeat(-(-len(rows) // 6))[: len(rows)])
        assert found.tolist() == backend.draw(rows.contiguous(), wishes[:1].repeat(len(rows))).tolist()
