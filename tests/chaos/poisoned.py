"""`pillion executor` on a machine whose kernels some tokens break: four of a kind in a row.

A step that computes four KILLS ends the process, as a kernel would; RAISES raises; HANGS does not end.
"""

import os
import signal
import sys
import time
from typing import Any

import torch

from pillion.executor.models.llama import Llama
from pillion.ops.cli import main

KILLS, RAISES, HANGS = 310, 311, 312
HANGING = "this step does not end"
RUN = 4  # so many in a row: no sampled text has them by chance

forward = Llama.forward


def has(token_ids: torch.Tensor, token: int) -> bool:
    return bool((token_ids == token).unfold(0, RUN, 1).all(1).any()) if len(token_ids) >= RUN else False


def broken(self: Llama, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
    if has(token_ids, KILLS):
        os.kill(os.getpid(), signal.SIGKILL)
    if has(token_ids, RAISES):
        raise RuntimeError("this kernel cannot be run")
    if has(token_ids, HANGS):
        print(HANGING, flush=True)
        time.sleep(3600)
    return forward(self, token_ids, *rest)


if __name__ == "__main__":
    Llama.forward = broken  # type: ignore[method-assign]
    sys.argv[0] = "pillion"
    main()
