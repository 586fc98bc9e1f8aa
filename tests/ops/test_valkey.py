"""The embedded Valkey: a real server under our configuration."""

import asyncio
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from pillion.ops import valkey
from pillion.ops.stack import redis_url


class Server:
    def __init__(self, state: Path) -> None:
        self.socket = state / "valkey.sock"
        self.command = valkey.configure(state, self.socket)
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        async with asyncio.timeout(30):
            while not await valkey.ping(self.socket):
                await asyncio.sleep(0.01)

    def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("a b"))  # a blank in the path must not matter
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop(signal.SIGKILL)


async def test_what_was_accepted_survives_kill(server: Server) -> None:
    await server.start()
    client = redis.Redis.from_url(redis_url(server.socket))
    for number in range(100):
        client.xadd("stream", {"e": number})
    assert client.execute_command("WAITAOF", 1, 0, 10_000)[0] == 1
    server.stop(signal.SIGKILL)
    assert not await valkey.ping(server.socket)
    await server.start()
    assert client.xlen("stream") == 100
    assert server.stop(signal.SIGTERM) == 0


async def test_it_is_configured_for_queues_behind_a_private_socket(server: Server) -> None:
    await server.start()
    client = redis.Redis.from_url(redis_url(server.socket), decode_responses=True)
    wanted = {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    assert {name: client.config_get(name)[name] for name in wanted} == wanted
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
    assert not listening_ports(server.process.pid if server.process else 0)


def listening_ports(pid: int) -> list[int]:
    import psutil

    return [
        c.laddr.port for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN
    ]


async def test_ping_of_nobody_is_false(tmp_path: Path) -> None:
    assert not await valkey.ping(tmp_path / "none.sock")
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    assert not await valkey.ping(stale)


def test_the_url_of_any_path_is_read_back_by_the_client() -> None:
    url = redis_url(Path("/tmp/a b%20c/valkey.sock"))
    assert urlsplit(url).scheme == "unix"
    client = redis.Redis.from_url(url)
    assert client.connection_pool.connection_kwargs["path"] == "/tmp/a b%20c/valkey.sock"
