"""The gateway's process: its actors, its start and its orderly end."""

import asyncio
import errno
import logging
import resource
from collections.abc import Awaitable, Callable

from aiohttp import web
from redis.exceptions import RedisError

from pillion import clock
from pillion.actors import Exit, Stop, Supervisor
from pillion.bus import UNREACHABLE, Tail, Watch, retrying
from pillion.config import Config, ConfigError
from pillion.contracts.entries import Heartbeat, Usage
from pillion.gateway.app import App
from pillion.gateway.listener import Patience, Runner
from pillion.gateway.model import load_model
from pillion.gateway.renewal import renew
from pillion.gateway.state import State
from pillion.gateway.templates import TemplateError
from pillion.gateway.tls import Certificate
from pillion.modelfiles import ModelFileError
from pillion.words import counted

log = logging.getLogger(__name__)

_IN_USE = "the port is in use"
LEAVE_PATIENCE = 2.0  # seconds for the last words to Redis
DESCRIPTORS = 128  # open files beside the clients' connections
HANDLERS_END = 1.0  # seconds that cancelled handlers get


class Gateway:
    """The actors of one gateway."""

    def __init__(self, config: Config, url: str) -> None:
        """Raises ConfigError for keys or a certificate that cannot be used."""
        settings = config.gateway
        if settings.ssl_keyfile and not settings.ssl_certfile:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile, the certificate that it belongs to")
        self.certificate = (
            Certificate(settings.ssl_certfile, settings.ssl_keyfile) if settings.ssl_certfile else None
        )
        self.state = State(config, url)
        self.port = 0  # once it listens
        self.listens = asyncio.Event()
        self.watch = Watch(self.state.connections["watch"], self.state.names, self._data)
        self._generation = ""  # of Redis' data

    async def model(self) -> None:
        """Loads what the gateway needs of the model; requests get a 503 until then. Raises Stop."""
        try:
            self.state.model = await self.state.texter(lambda: load_model(self.state.config))
        except (ModelFileError, TemplateError) as error:
            raise Stop(Exit.USAGE, str(error)) from None
        log.info("serves %s", self.state.model.name)

    async def server(self) -> None:
        """Answers HTTP until it is cancelled. Raises Stop where the port cannot be had."""
        settings = self.state.config.gateway
        self.state.metrics.count_tasks(asyncio.get_running_loop())
        runner = Runner(
            App(self.state).application(),
            Patience(
                settings.read_timeout,
                settings.write_timeout,
                settings.keepalive_timeout,
                settings.max_connections,
            ),
            handler_cancellation=True,  # a client that goes away cancels its handler
            access_log=None,
            shutdown_timeout=HANDLERS_END,
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner,
                settings.host,
                settings.port,
                backlog=1024,
                ssl_context=self.certificate.context if self.certificate else None,
            )
            try:
                await site.start()
            except OSError as error:
                where = f"{settings.host}:{settings.port}"
                why = _IN_USE if error.errno == errno.EADDRINUSE else error.strerror
                raise Stop(
                    Exit.USAGE, f"cannot listen on {where}: {why}; choose another --port or --host"
                ) from None
            self.port = runner.addresses[0][1]
            self.listens.set()
            scheme = "https" if self.certificate else "http"
            log.info("listens on %s://%s:%d", scheme, settings.host, self.port)
            await asyncio.Event().wait()
        finally:
            for call in self.state.calls.values():
                call.hand_on()
            await runner.cleanup()

    async def heartbeats(self) -> None:
        """Follows the replicas' heartbeats."""
        tail = Tail(self.state.connections["beats"], self.state.names.beats)
        async for entries in tail.follow():
            for item in entries:
                beat = self.state.reader(item.payload, Heartbeat, item.id)
                if beat is not None:
                    former = self.state.replicas.heard(beat, clock.monotonic())
                    if self.state.vllm and beat.facts:
                        self.state.vllm.beat(former, beat, beat.facts.model)
                    if former and former.generation not in ("", beat.generation):
                        # What it published before a loss may not have come; it stands in its journal again.
                        self.state.streams.look_back(beat.replica)

    async def usage(self) -> None:
        """Follows what replicas tell of first tokens, for vLLM's names."""
        vllm, state = self.state.vllm, self.state
        assert vllm is not None
        async for entries in Tail(state.connections["usage"], state.names.usage).follow():
            for item in entries:
                word = state.reader(item.payload, Usage, item.id)
                if word is not None:
                    vllm.used(word, state.calls)

    async def _data(self, generation: str) -> None:
        """Redis holds other data, or may: what has not ended is submitted again, under the same ids."""
        known, self._generation = self._generation, generation
        if not known:
            return
        await retrying("presence", self.state.presence.here)
        self.state.outbox.cancel_again()
        calls = tuple(self.state.calls.values())
        for call in calls:
            await call.submit_again()
        if calls:
            log.warning("submitted again, where it was lost: %s", counted(len(calls), "request"))

    async def durability(self) -> None:
        """Raises Stop where Redis cannot do what is asked of it. Returns when it can."""
        if self.state.durable is not None:
            await retrying("durability", self.state.durable.check)

    async def drain(self) -> None:
        """Takes no new request, and waits for those that run."""
        self.state.draining = True
        while self.state.calls:
            await asyncio.sleep(0.02)

    async def hand_on(self) -> None:
        """The grace period is over. With the server ends what still runs as if its clients had gone: it is
        parked, and goes on at any gateway."""
        left = counted(len(self.state.calls), "running request")
        log.info("%s left, to go on where the client comes back", left)

    async def keys(self) -> None:
        await renew(self.state.keys.files, self.state.keys.read)

    async def tls(self) -> None:
        assert self.certificate is not None
        await renew(self.certificate.files, self.certificate.read)

    def actors(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            **({"keys": self.keys} if self.state.keys.files else {}),
            **({"tls": self.tls} if self.certificate else {}),
            **({"usage": self.usage} if self.state.vllm else {}),
            "model": self.model,
            "server": self.server,
            "out": self.state.streams.run,
            "cancels": self.state.outbox.run,
            "heartbeats": self.heartbeats,
            "presence": self.state.presence.presence,
            "watch": self.watch.run,
            "durability": self.durability,
        }

    async def close(self) -> None:
        """After the actors have ended: last cancels go out, and what names this gateway is taken back."""
        try:
            async with asyncio.timeout(LEAVE_PATIENCE):
                await self.state.outbox.flush()
                await self.state.presence.leave()
        except (TimeoutError, RedisError, *UNREACHABLE) as error:
            log.warning("Redis was not told of the end, it will see: %s", error)
        for connection in self.state.connections.values():
            await connection.close()
        self.state.texter.close()
        self.state.compiler.close()


async def run(config: Config) -> int:
    """Serves until SIGTERM. Returns the exit code."""
    if config.stack.redis is None:
        log.error("the gateway needs a Redis: set --redis URL, or start everything with `pillion up`")
        return Exit.USAGE
    try:
        gateway = Gateway(config, config.stack.redis)
    except ConfigError as error:
        log.error("%s", error)
        return Exit.USAGE
    _allow_descriptors(config.gateway.max_connections)
    supervisor = Supervisor("gateway", config.gateway.drain_timeout)
    for name, actor in gateway.actors().items():
        # A model that cannot be read is not read the second time.
        supervisor.add(name, actor, max_restarts=0 if name == "model" else 5)
    supervisor.on_drain(gateway.drain, gateway.hand_on)
    try:
        return await supervisor.run()
    finally:
        await gateway.close()


def _allow_descriptors(connections: int) -> None:
    """Raises the soft limit to what so many connections need, as far as the hard one goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            log.warning(
                "only %d open files are allowed, too few for --max-connections: see ulimit -n", allowed
            )
