"""`pillion health ROLE`: whether one service does its work, asked the way its clients see it.

Health checks run it every few seconds, so each kind imports only what it needs.
"""

import socket
from contextlib import closing
from urllib.parse import urlsplit

from pillion.config import Config
from pillion.ops import stack, web
from pillion.ops.stack import StackError, reason

_SECONDS = 3.0


def check(role: str, config: Config) -> str | None:
    """What is missing, or None."""
    if role == "gateway":
        return gateway(stack.url(config), config.gateway.ssl_certfile)
    if role == "executor":
        return _executor(config)
    import asyncio  # takes as long as everything else here

    try:
        return asyncio.run(asyncio.wait_for(_leased(role, config), _SECONDS))
    except TimeoutError:
        return f"no answer within {_SECONDS:g} s"


def gateway(url: str, certificate: str | None = None) -> str | None:
    """What the gateway at `url` says is missing until it can answer requests; see `web.get`."""
    try:
        status, body = web.get(f"{url}/health/ready", timeout=_SECONDS, certificate=certificate)
    except web.Unreachable as error:
        return f"the gateway does not answer ({error})"
    if status == 200:
        return None
    return str(body.get("message") or body.get("reason") or body) if isinstance(body, dict) else str(body)


def redis(url: str) -> None:
    """Looks whether a Redis answers. Raises StackError with one line that shows no password."""
    from redis import Redis
    from redis.exceptions import RedisError

    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    try:
        with closing(Redis.from_url(url, socket_connect_timeout=_SECONDS, socket_timeout=_SECONDS)) as client:
            client.ping()
    except ValueError:
        raise StackError("--redis must be a redis://, rediss:// or unix:// URL") from None
    except RedisError as error:
        why = str(error).rstrip(".")
        raise StackError(
            f"no Redis at {place}: {why}; start it, or leave --redis out for the embedded one"
        ) from None


def _executor(config: Config) -> str | None:
    """Whether it listens. Whether its model is loaded, the scheduler's heartbeat tells."""
    target = config.executor.executor or f"unix:{config.state_path}/executor-{config.scheduler.replica}.sock"
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(_SECONDS)
                one.connect(target.removeprefix("unix:"))
        else:
            host, _, port = target.rpartition(":")
            host = "127.0.0.1" if host in ("0.0.0.0", "[::]") else host.strip("[]")
            socket.create_connection((host, int(port)), _SECONDS).close()
    except OSError as error:
        return f"nothing listens on {target}: {reason(error)}"
    return None


async def _leased(role: str, config: Config) -> str | None:
    """Whether it holds its lease, and what a scheduler last said of itself."""
    from redis.exceptions import RedisError

    from pillion.bus import Connection, Keys
    from pillion.contracts.entries import Heartbeat, decode

    keys, replica = Keys(config.stack.stack), config.scheduler.replica
    holder = "admission" if role == "admission" else f"replica:{replica}"
    connection = Connection(config.stack.redis or "", "health")
    try:
        held = await connection.call("EXISTS", keys.lease(holder))
        beat = await connection.call("HGET", keys.replicas, replica)
    except RedisError as error:
        return f"Redis cannot be reached: {error}"
    finally:
        await connection.close()
    if not held:
        return "it does not hold its lease"
    if role == "scheduler":
        told = decode(beat, Heartbeat) if beat else None
        if told is None or told.state != "ready":
            return (told and (told.reason or told.state)) or "no heartbeat yet"
    return None
