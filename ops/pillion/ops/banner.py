"""What `pillion up` says when the stack stands."""

import json
import os

from pillion.bus import Connection, Keys
from pillion.config import Config
from pillion.contracts.entries import Facts, Heartbeat, decode

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ANY = ("", "0.0.0.0", "::")


def url(config: Config) -> str:
    """Where a client on this machine reaches the gateway."""
    host = config.gateway.host
    host = "127.0.0.1" if host in _ANY else host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def warning(config: Config) -> str | None:
    """What is unsafe about the gateway's address."""
    if config.gateway.host in _LOOPBACK or config.gateway.api_key:
        return None
    where = f"{config.gateway.host or 'this machine'}:{config.gateway.port}"
    return f"anyone who reaches {where} can use it; set --api-key KEY"


async def lines(config: Config, seconds: float) -> list[str]:
    """The stack's facts, its URL and a command to paste. `seconds`: how long the start took."""
    facts = await _facts(config)
    model = facts.model if facts else config.model.served_model_name or config.model.model
    told = [
        f"Pillion serves {model}, ready after {seconds:.1f} s",
        *(_capacity(config, facts) if facts else []),
    ]
    told.append(f"  at        {url(config)}/v1")
    if unsafe := warning(config):
        told.append(f"  warning   {unsafe}")
    return [*told, "", *_curl(config, model), ""]


def _capacity(config: Config, facts: Facts) -> list[str]:
    usable = facts.num_blocks - 1  # block 0 is never given out
    threads = config.executor.threads or len(os.sched_getaffinity(0))
    fit = usable // -(-facts.max_model_len // facts.block_size)
    return [
        f"  computes  {facts.dtype}, {threads} threads",
        f"  backend   {facts.backend} ({facts.backend_reason})",
        f"  holds     {usable} KV blocks of {facts.block_size} tokens: {fit} requests of the full"
        f" {facts.max_model_len} tokens",
        f"  runs      up to {facts.max_num_seqs} sequences, {facts.max_step_tokens} tokens a step",
    ]


def _curl(config: Config, model: str) -> list[str]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": True,
        "max_tokens": 64,
    }
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.gateway.api_key else ""
    return [
        f"curl -N {url(config)}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"  -d '{json.dumps(body)}'",
    ]


async def _facts(config: Config) -> Facts | None:
    """From the replica's last heartbeat."""
    connection = Connection(config.stack.redis or "", "up")
    try:
        beat = await connection.call("HGET", Keys(config.stack.stack).replicas, config.scheduler.replica)
        return decode(beat, Heartbeat).facts if beat else None
    finally:
        await connection.close()
