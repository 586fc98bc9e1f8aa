"""One uniform number for each (seed, choice, position): counter-based, so no draw depends on another.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011).
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # of 32 bits each

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_ROUND_KEYS = np.arange(10, dtype=np.uint64)[:, None, None] * np.array(
    [[0x9E3779B9], [0xBB67AE85]], np.uint64
)


def philox(counters: Words, keys: Words) -> Words:
    """The 128-bit blocks [4, N] of counters [4, N] under keys [2, N], the lowest words first."""
    even, odd = counters[0::2], counters[1::2]
    for key in (_ROUND_KEYS + keys) & _MASK:
        product = _MULTIPLIERS * even
        even = (product >> _HALF)[::-1] ^ odd ^ key
        odd = (product & _MASK)[::-1]
    return np.stack((even, odd), 1).reshape(4, -1)


def uniforms(
    seeds: NDArray[np.uint64], choices: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Multiples of 2**-53 in [0, 1), [N]; choices and positions are below 2**32."""
    none = np.zeros_like(seeds)
    block = philox(np.stack((positions, choices, none, none)), np.stack((seeds & _MASK, seeds >> _HALF)))
    numbers: NDArray[np.float64] = ((block[1] << _HALF | block[0]) >> np.uint64(11)) * 2.0**-53
    return numbers
