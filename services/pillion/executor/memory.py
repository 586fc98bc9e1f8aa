"""How many KV blocks there are, and how long a sequence may be."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from pillion.config import ConfigError
from pillion.words import counted

MIB = 1 << 20

CPU_SHARE = 0.25  # of the memory that is available, unless told otherwise
CPU_MOST = 4 << 30  # bytes; a laptop has other things to do


class OutOfMemory(ConfigError):
    """The KV cache would hold too little to serve. The message says what to change."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool as it will be allocated."""

    num_blocks: int  # block 0 included, which is never given out
    max_model_len: int  # tokens
    notes: tuple[str, ...] = ()  # for the user


def size_pool(
    *,
    block_bytes: int,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    num_blocks: int | None,
    memory: int | None,
    available: int,
) -> Pool:
    """Blocks: `num_blocks` if given, else what fits `memory` bytes, else what fits `available`.

    From memory, no more blocks are taken than all slots could fill. A pool too small for `max_model_len`
    lowers it. Raises OutOfMemory for a pool without a block to give out.
    """
    notes = []
    if num_blocks is None:
        budget = available if memory is None else memory
        most = max_num_seqs * -(-max_model_len // block_size) + 1
        num_blocks = min(most, budget // block_bytes)
        if num_blocks < 2:
            raise OutOfMemory(
                f"{budget // MIB} MiB of memory hold {counted(num_blocks, 'KV block')} of "
                f"{block_bytes // 1024} KiB, two are needed; give more with --kv-cache-memory or free memory"
            )
    elif num_blocks < 2:
        raise OutOfMemory(
            f"{num_blocks} KV block is too few: block 0 is never given out; set --num-kv-blocks to 2 or more"
        )
    room = (num_blocks - 1) * block_size
    if room < max_model_len:
        notes.append(
            f"max_model_len lowered from {max_model_len} to {room}, which is what the KV pool holds; "
            "raise it with --kv-cache-memory or --num-kv-blocks"
        )
        max_model_len = room
    return Pool(num_blocks, max_model_len, tuple(notes))


def available_bytes(device: torch.device, utilization: float) -> int:
    """What the KV cache may take by default: a share of what is free.

    On a GPU, `utilization` of its memory less what is taken already.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total * utilization) - (total - free))
    return min(int(_available_ram() * CPU_SHARE), CPU_MOST)


def _available_ram() -> int:
    """Free memory of the machine, or of the control group (version 2) if that is less."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    limit, current = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and current.exists():
        most = limit.read_text().strip()
        if most != "max":
            free = min(free, max(0, int(most) - int(current.read_text())))
    return free
