"""What `pillion up` says when the stack stands."""

import json
import os

from pillion.addresses import loopback
from pillion.bus import Connection, Keys
from pillion.config import Config
from pillion.contracts.entries import Facts, Heartbeat, decode
from pillion.ops.stack import url
from pillion.words import counted


def warning(config: Config) -> str | None:
    """What is unsafe about the gateway's address."""
    gateway = config.gateway
    if loopback(gateway.host) or gateway.api_key or gateway.api_keys_file:
        return None
    where = f"{config.gateway.host or 'this machine'}:{config.gateway.port}"
    return f"anyone who reaches {where} can use it; set --api-key KEY"


async def lines(config: Config, context: int, seconds: float) -> list[str]:
    """The stack's facts, its URL and a command to paste.

    `context`: the model's own, tokens; `seconds`: how long the start took.
    """
    facts = await replica_facts(config)
    model = facts.model if facts else config.model.served_model_name or config.model.model
    told = [
        f"Pillion serves {model}, ready after {seconds:.1f} s",
        *(capacity(config, context, facts) if facts else []),
        *([f"  replicas  {config.stack.replicas}, each as above"] if config.stack.replicas > 1 else []),
    ]
    told.append(f"  at        {url(config)}/v1")
    if config.gateway.page:
        told.append(f"  chat      {url(config)}/ in a browser")
    if unsafe := warning(config):
        told.append(f"  warning   {unsafe}")
    return [*told, "", *_curl(config, model), ""]


_WEIGHTS = {"none": "", "int8": ", weights in int8", "gguf": ", weights in 4 bit as in the file, or int8"}


def capacity(config: Config, context: int, facts: Facts) -> list[str]:
    """What the replica can hold and run."""
    usable = facts.num_blocks - 1  # block 0 is never given out
    full = usable // -(-facts.max_model_len // facts.block_size)
    weights = _WEIGHTS[config.model.quantization]
    form = " in int8" if config.executor.kv_cache_dtype == "int8" else ""
    told = [
        f"  computes  {facts.dtype}{weights}, {counted(threads(config), 'thread')}",
        f"  backend   {facts.backend} ({facts.backend_reason})",
        f"  holds     {counted(usable, 'KV block')}{form} of {counted(facts.block_size, 'token')}: "
        f"{counted(full, 'request')} of the full {facts.max_model_len} tokens",
        f"  runs      up to {counted(facts.max_num_seqs, 'sequence')}, "
        f"{counted(facts.max_step_tokens, 'token')} a step",
    ]
    wanted = config.model.max_model_len or context
    if facts.max_model_len < wanted:
        blocks = -(-wanted // facts.block_size) + 1
        told.append(
            f"  context   {facts.max_model_len} tokens: lowered from {wanted}, the KV pool holds no more; "
            f"give --num-kv-blocks {blocks} or more --kv-cache-memory"
        )
    return told


def threads(config: Config) -> int:
    """Compute threads of each executor: an equal share of the cores, if it is not said."""
    return config.executor.threads or max(1, len(os.sched_getaffinity(0)) // config.stack.replicas)


def _curl(config: Config, model: str) -> list[str]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": True,
        "max_tokens": 64,
    }
    key = (
        " -H 'Authorization: Bearer YOUR_KEY'"
        if config.gateway.api_key or config.gateway.api_keys_file
        else ""
    )
    return [
        f"curl -N {url(config)}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"  -d '{json.dumps(body)}'",
    ]


async def replica_facts(config: Config) -> Facts | None:
    """From the replica's last heartbeat."""
    connection = Connection(config.stack.redis or "", "up")
    try:
        beat = await connection.call("HGET", Keys(config.stack.stack).replicas, config.scheduler.replica)
        return decode(beat, Heartbeat).facts if beat else None
    finally:
        await connection.close()
