"""From the configuration to an engine that can run steps, with a word on each stage."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pillion.config import Config
from pillion.executor.engine import Engine
from pillion.executor.models.registry import read_spec
from pillion.executor.weights import open_weights
from pillion.modelfiles import locate
from pillion.words import counted

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    engine: Engine
    lines: tuple[str, ...]  # what stands, for the user


def load(config: Config, say: Say) -> Loaded:
    """Blocks for as long as files are fetched and read; to be called in the thread that will run the steps.

    Raises ModelFileError where the model cannot be served, ConfigError for settings that it cannot have.
    """
    begin = time.monotonic()
    threads = config.executor.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    say(f"looking for the model {config.model.model}")
    located = locate(config.model.model, config.model.revision, config.cache_path)
    spec = read_spec(located)
    say(f"reading {spec.architecture}, {counted(spec.num_layers, 'layer')}, from {located.path}")
    with open_weights(located, spec) as weights:
        engine = Engine(config, spec, weights, located)
    engine.grammars.start()
    say(f"loaded in {time.monotonic() - begin:.1f} s")
    return Loaded(engine, tuple(describe(engine, threads)))


def describe(engine: Engine, threads: int) -> list[str]:
    """Lines for the user; the last ones say what does not stand as asked for."""
    facts = engine.facts
    usable = facts.num_blocks - 1  # block 0 is never given out
    whole = min(usable // -(-facts.max_model_len // facts.block_size), facts.max_num_seqs)
    return [
        f"model {facts.model}, {facts.dtype}, {counted(threads, 'thread')}",
        f"backend {facts.backend}: {facts.backend_reason}",
        f"{counted(usable, 'KV block')} of {counted(facts.block_size, 'token')}, "
        f"{engine.kv_cache_bytes >> 20} MiB; "
        f"room for {counted(whole, 'request')} of the full {facts.max_model_len} tokens at once",
        *engine.notes,
    ]
