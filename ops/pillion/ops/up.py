"""`pillion up`: Valkey and the services as processes of one stack, under one supervisor."""

import asyncio
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from pillion.bus import Connection, Keys
from pillion.config import Config
from pillion.executor.models.registry import read_spec
from pillion.modelfiles import ModelFileError, locate
from pillion.ops import banner, health, ports, sockets, stack, valkey, watch
from pillion.ops.child import Child, exit_words, json_line, last_words, message, role_command
from pillion.ops.restarts import USAGE, Restarts
from pillion.ops.stack import StackError

FAILED = 1
FORCED = 130
_SERVICES = ("executor", "scheduler", "admission", "gateway")  # the order of the start: the slowest first
_PAIR = ("executor", "scheduler")  # a replica
_END_ORDER = ("gateway", "admission", "scheduler", "executor", "valkey")  # who lets work in goes first
_END_SECONDS = 10.0  # beyond the drain, before a child is killed
_VALKEY_SECONDS = 120.0  # until it answers, the reading of its log included
_POLL_SECONDS = 0.2
_STILL_SECONDS = 10.0  # between two lines that say what is waited for


def up(config: Config) -> int:
    """Runs the stack until a signal, or until a child keeps failing. Returns the exit code."""
    try:
        stack.private_folder(config.state_path)
        lock = stack.Lock(config.state_path)
        lock.take()
        stack.claim_format(config.state_path)
        stack.settings_file(config.state_path).unlink(missing_ok=True)  # of a stack that was killed
        config = resolve(config)
        # Here and not in the services: a download shows its progress, and a wrong path or a model that the
        # executor cannot run is one line, before the weights are fetched.
        model, revision, cache = config.model.model, config.model.revision, config.cache_path
        context = read_spec(locate(model, revision, cache, weights=False)).max_position
        locate(model, revision, cache)
        settings = stack.write_settings(config)
    except (StackError, ModelFileError) as error:
        _complain(str(error))
        return FAILED
    try:
        return asyncio.run(Up(config, context, settings, lock).run())
    finally:
        with suppress(OSError):
            settings.unlink(missing_ok=True)
        sockets.leave(config.state_path)


def resolve(config: Config) -> Config:
    """The settings with all that the services must agree on filled in. Raises StackError."""
    place = sockets.folder(config.state_path)
    if config.stack.redis is None:
        valkey.binary()
    else:
        health.redis(config.stack.redis)
    if config.stack.replicas > 1 and config.executor.executor is not None:
        raise StackError("--executor names one executor, --replicas starts several; leave one of them out")
    port = ports.claim(config.gateway.host, config.gateway.port)
    replace = msgspec.structs.replace
    log_format = config.telemetry.log_format
    return replace(
        config,
        stack=replace(
            config.stack,
            redis=config.stack.redis or stack.redis_url(place / "valkey.sock"),
            state_dir=str(config.state_path.parent.absolute()),
            cache_dir=str(config.cache_path.absolute()),
        ),
        gateway=replace(config.gateway, port=port),
        executor=replace(
            config.executor, executor=config.executor.executor or _address(place, config.scheduler.replica)
        ),
        # The lines go to whoever started us, with a prefix: text, unless JSON was asked for.
        telemetry=replace(config.telemetry, log_format="text" if log_format == "auto" else log_format),
    )


def _address(place: Path, replica: str) -> str:
    return f"unix:{place}/executor-{replica}.sock"


def replica_flags(config: Config, number: int, place: Path) -> list[str]:
    """What the scheduler and the executor of one of several replicas have of their own: an equal share."""
    share = config.executor.gpu_memory_utilization / config.stack.replicas
    return [
        *("--replica", str(number), "--executor", _address(place, str(number))),
        *("--threads", str(banner.threads(config)), "--gpu-memory-utilization", f"{share:.4f}"),
    ]


class Up:
    """The processes of one stack."""

    def __init__(self, config: Config, context: int, settings: Path, lock: stack.Lock) -> None:
        self._config = config
        self._context = context  # the model's own, tokens
        self._url = stack.url(config)
        self._done: asyncio.Future[int] | None = None  # set to the exit code when all shall end
        self._why = ""  # it failed
        self._redis_ready = asyncio.Event()
        self._served = False
        self._signals = 0
        self._told: set[int] = set()  # pids whose end was told
        self._forced = asyncio.Event()
        self._as_json = config.telemetry.log_format == "json"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PILLION_")}
        environ["PYTHONUNBUFFERED"] = "1"
        colour = sys.stderr.isatty() and "NO_COLOR" not in environ
        self._children: dict[str, Child] = {}
        self._socket = sockets.folder(config.state_path) / "valkey.sock"
        if config.stack.redis == stack.redis_url(self._socket):
            # It gets the time to write its log, and holds the stack's lock while it does.
            self._children["valkey"] = Child(
                "valkey",
                valkey.configure(config.state_path, self._socket, config.stack.durability),
                environ,
                _say,
                colour,
                signal.SIGTERM,
                (lock.descriptor,),
                valkey.log(config.state_path),
                self._as_json,
            )
        pairs = config.stack.replicas
        for role in _SERVICES:
            count = pairs if role in _PAIR else 1
            for number in range(count):
                name = f"{role}-{number}" if count > 1 else role
                command = role_command(role, settings)
                if count > 1:
                    command += replica_flags(config, number, self._socket.parent)
                if config.telemetry.metrics_port and role != "gateway":
                    offset = _SERVICES.index(role) + len(_SERVICES) * number
                    command += ["--metrics-port", str(config.telemetry.metrics_port + offset)]
                self._children[name] = Child(name, command, environ, _say, colour, as_json=self._as_json)

    async def run(self) -> int:
        """Returns the exit code when every process has ended."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        keepers = {role: asyncio.create_task(self._keep(child)) for role, child in self._children.items()}
        starter = asyncio.create_task(self._start())
        watcher = asyncio.create_task(self._watch())
        for task in (starter, watcher, *keepers.values()):
            task.add_done_callback(self._on_task)
        try:
            code = await self._done
            starter.cancel()
            watcher.cancel()
            for keeper in keepers.values():  # from now on nobody is started again
                keeper.cancel()
            await asyncio.gather(starter, watcher, *keepers.values(), return_exceptions=True)
            code = await self._end(code)
            if self._why:
                _complain(self._why)
            return code
        finally:
            for child in self._children.values():
                child.send(signal.SIGKILL)

    async def _start(self) -> None:
        """Waits for Valkey, then for the gateway to be ready, and tells what stands."""
        begin = time.monotonic()
        if "valkey" in self._children:
            while not await valkey.ping(self._socket):
                if time.monotonic() - begin > _VALKEY_SECONDS:
                    raise StackError(
                        f"Valkey did not answer on {self._socket} within {_VALKEY_SECONDS:.0f} s"
                    )
                await asyncio.sleep(0.02)
        self._redis_ready.set()
        said = time.monotonic()
        certificate = self._config.gateway.ssl_certfile
        while (missing := await asyncio.to_thread(health.gateway, self._url, certificate)) is not None:
            if time.monotonic() - said > _STILL_SECONDS:
                said = time.monotonic()
                self._tell(f"not ready after {said - begin:.0f} s: {missing}")
            await asyncio.sleep(_POLL_SECONDS)
        self._served = True
        for line in await banner.lines(self._config, self._context, time.monotonic() - begin):
            click.echo(line)

    async def _keep(self, child: Child) -> None:
        """Runs one role's process and starts it again when it dies, until it keeps failing."""
        if _role(child) not in ("valkey", "executor"):
            await self._redis_ready.wait()
        restarts = Restarts()
        while True:
            begin = time.monotonic()
            try:
                await child.start()
            except OSError as error:
                raise StackError(f"cannot run {child.command[0]}: {error.strerror}") from None
            pid, code = child.pid, await child.wait()
            restarts, pause = restarts.died(time.monotonic() - begin, code, self._served)
            if code == USAGE:
                raise StackError(f"{child.role}: {last_words(child.last)}")
            self._tell_end(child, pid, code)
            if pause is None:
                raise StackError(
                    f"{child.role} keeps failing at its start ({exit_words(code)}): {last_words(child.last)}"
                )
            self._tell(f"starting {child.role} again in {pause:.1f} s")
            await asyncio.sleep(pause)

    async def _watch(self) -> None:
        """Kills what is there and does not work; its keeper starts it again."""
        await self._redis_ready.wait()
        silence = watch.Silence(self._config.stack.hang_timeout)
        connection = Connection(self._config.stack.redis or "", "up")
        try:
            while True:
                await asyncio.sleep(silence.look)
                running = [(child, child.pid) for child in self._children.values() if child.running]
                works = await asyncio.gather(*(self._works(child, connection) for child, _ in running))
                for (child, pid), answered in zip(running, works, strict=True):
                    if silence.heard(pid, answered) and pid == child.pid:
                        self._tell(f"{child.role} {pid} says nothing any more and is killed")
                        child.send(signal.SIGKILL)
                        silence.forget(pid)
        finally:
            await connection.close()

    async def _works(self, child: Child, connection: Connection) -> bool:
        keys, role = Keys(self._config.stack.stack), _role(child)
        replica = child.role.partition("-")[2] or self._config.scheduler.replica
        match role:
            case "gateway":
                return await watch.http(self._url)
            case "executor":
                several = self._config.stack.replicas > 1
                one = _address(self._socket.parent, replica)
                return await watch.grpc(one if several else self._config.executor.executor or one)
            case "valkey":
                return await watch.redis(self._socket)
            case _:
                holder = "admission" if role == "admission" else f"replica:{replica}"
                return await watch.leased(connection, keys, holder)

    async def _end(self, code: int) -> int:
        """Ends what runs, in order; at once after a second signal. The exit code."""
        for role in _END_ORDER:
            children = [
                child
                for child in self._children.values()
                if _role(child) == role and child.pid and child.pid not in self._told
            ]
            ends = await asyncio.gather(*map(self._end_child, children))
            # By SIGTERM: it was asked so early that it had not begun yet.
            if not all(end in (0, -signal.SIGTERM) for end in ends):
                code = code or FAILED
        return FORCED if self._forced.is_set() else code

    async def _end_child(self, child: Child) -> int:
        """Its exit code. It may have died unasked, a moment ago."""
        grace = _END_SECONDS + (self._config.gateway.drain_timeout if child.role != "valkey" else 0)
        child.send(signal.SIGTERM)
        ended = asyncio.create_task(child.wait())
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait({ended, forced}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not ended.done():
            if not self._forced.is_set():
                self._tell(f"{child.role} {child.pid} did not end within {grace:.0f} s and is killed")
            child.send(signal.SIGKILL)
        code = await ended
        if code:
            self._tell_end(child, child.pid, code)
        elif child.role == "valkey":
            self._tell(f"valkey {child.pid} ended: all is on disk")
        return code

    def _tell_end(self, child: Child, pid: int, code: int) -> None:
        self._told.add(pid)
        self._tell(f"{child.role} {pid} ended: {exit_words(code)}" + "; its last lines:" * bool(child.last))
        for line in child.last:
            self._tell(f"    {message(line)}")

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._tell(
                "ending: running requests are finished first, for up to"
                f" {self._config.gateway.drain_timeout:g} s; what is left goes on after the next start;"
                " a second signal ends at once"
            )
        else:
            self._forced.set()
        self._finish(0)

    def _on_task(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, StackError):
            self._tell(f"ending: {error}")
            self._why = self._why or str(error)
        else:
            self._tell("a defect in `pillion up`; please report it:")
            for line in "".join(traceback.format_exception(error)).splitlines():
                self._tell(f"    {line}")
        self._finish(FAILED)

    def _finish(self, code: int) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(code)

    def _tell(self, text: str) -> None:
        _say(json_line("up", text.strip()) if self._as_json else f"{'up':>9} {os.getpid()} | {text}")


def _complain(why: str) -> None:
    click.echo(f"pillion: {why}", err=True)


def _role(child: Child) -> str:
    """Without the replica's number."""
    return child.role.partition("-")[0]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
