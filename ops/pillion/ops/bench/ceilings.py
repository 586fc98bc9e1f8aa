"""What the machine can do at best, measured in a process of its own (`pillion.kernels.ceilings`)."""

import json
import subprocess
import sys
from dataclasses import dataclass

_SECONDS = 120.0


class NoCeilings(Exception):
    """They could not be measured. One line that says why."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    flops_per_s: float  # bfloat16 matrix products
    int8_flops_per_s: float
    bytes_per_s: float  # read from memory

    def seconds(self, flops: float, read_bytes: float, *, int8: bool) -> float:
        """No step of so much work is quicker. `int8`: some of its products are, and count as if all were."""
        rate = max(self.flops_per_s, self.int8_flops_per_s) if int8 else self.flops_per_s
        return max(flops / rate, read_bytes / self.bytes_per_s)


def ceilings_of(threads: int, seconds: float = 1.5, buffer: int = 1 << 30) -> Ceilings:
    """With so many threads, seconds for each of the three, and bytes to read. Raises NoCeilings."""
    given = map(str, (threads, seconds, buffer))
    command = [sys.executable, "-m", "pillion.kernels.ceilings", *given]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise NoCeilings(f"the machine's ceilings took more than {_SECONDS:g} s to measure") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or "no word").splitlines()[-1]
        raise NoCeilings(f"cannot measure the machine's ceilings: {last}") from None
    return Ceilings(**json.loads(done.stdout))


def best(*measured: Ceilings) -> Ceilings:
    """The higher of each: on a shared machine a ceiling is seen by whoever comes when it is quiet."""
    return Ceilings(
        flops_per_s=max(one.flops_per_s for one in measured),
        int8_flops_per_s=max(one.int8_flops_per_s for one in measured),
        bytes_per_s=max(one.bytes_per_s for one in measured),
    )
