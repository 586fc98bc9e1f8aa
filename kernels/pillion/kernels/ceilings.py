"""What this machine can do at best: its rate of products and its memory's.

`python -m pillion.kernels.ceilings THREADS SECONDS BYTES` prints it as JSON: a process of its own, so that
whoever asks holds no memory of it. On a shared machine it is what others leave.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import torch

_ROWS, _INNER, _COLUMNS = 512, 2048, 2048


def measure(threads: int, seconds: float, buffer: int) -> dict[str, float]:
    """`flops_per_s` and `int8_flops_per_s` of matrix products, and `bytes_per_s` read from memory.

    Products are of bfloat16 and of int8. `seconds` for each of the three; `buffer` is bytes, far beyond the
    caches, or less where memory is short.
    """
    torch.set_num_threads(threads)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "flops_per_s": _multiply(seconds),
        "int8_flops_per_s": _multiply_int8(seconds),
        "bytes_per_s": _read(seconds, max(1 << 20, min(buffer, free // 4))),
    }


def _multiply(seconds: float) -> float:
    x, weight = torch.randn(_ROWS, _INNER).bfloat16(), torch.randn(_INNER, _COLUMNS).bfloat16()
    out = torch.empty(_ROWS, _COLUMNS, dtype=torch.bfloat16)
    return 2 * _ROWS * _INNER * _COLUMNS / _best(lambda: torch.mm(x, weight, out=out), seconds)


def _multiply_int8(seconds: float) -> float:
    x = torch.randint(-127, 128, (_ROWS, _INNER), dtype=torch.int8)
    weight = torch.randint(-127, 128, (_INNER, _COLUMNS), dtype=torch.int8)
    return 2 * _ROWS * _INNER * _COLUMNS / _best(lambda: torch._int_mm(x, weight), seconds)


def _read(seconds: float, size: int) -> float:
    buffer = torch.ones(size // 8, dtype=torch.int64)
    return buffer.nbytes / _best(buffer.sum, seconds)


def _best(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the quickest call; the first does not count."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end or best == float("inf"):
        call()
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
