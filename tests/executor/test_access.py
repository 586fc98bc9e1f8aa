"""Who may attach to an executor on a network: real gRPC over TCP, with secrets and certificates."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from pillion.actors import Exit, Stop
from pillion.config import Config, ConfigError, load
from pillion.contracts import executor_pb2_grpc
from pillion.contracts.access import Access
from pillion.executor import listen
from pillion.executor.compute import Compute
from pillion.executor.servicer import Servicer
from pillion.executor.watch import Watch
from pillion.scheduler.link import Link


def config(**flags: Any) -> Config:
    return load(flags, environ={}).config


class House:
    """An executor that has no model yet, and says so to whom it lets in."""

    def __init__(self, **flags: Any) -> None:
        self.access = Access(config(**flags).executor)
        self.compute = Compute()

        class Quiet(Watch):
            def __init__(self) -> None: ...

        self.server = grpc.aio.server(interceptors=[listen.Door(self.access)])
        executor_pb2_grpc.add_ExecutorServicer_to_server(Servicer(self.compute, Quiet()), self.server)
        self.address = listen.bind(self.server, "127.0.0.1:0", self.access)

    async def told(self, **flags: Any) -> str:
        """What a scheduler with these settings learns, up to its reason of not being ready."""
        link = Link(self.address, "0", lambda event: None, Access(config(**flags).executor))
        before = link.why_not
        running = asyncio.create_task(link.run(1))
        try:
            async with asyncio.timeout(20):
                while not running.done() and link.why_not == before:
                    await asyncio.sleep(0.01)
            if running.done():
                await running
            return link.why_not
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def house() -> AsyncIterator[Any]:
    made: list[House] = []

    async def make(**flags: Any) -> House:
        made.append(House(**flags))
        await made[-1].server.start()
        return made[-1]

    yield make
    for one in made:
        await one.server.stop(0)
        await one.compute.close(5)


LOADING = "the model is being loaded"


async def test_the_same_secret_lets_in(house: Any, caplog: Any) -> None:
    at = await house(executor_secret="sesame")
    assert await at.told(executor_secret="sesame") == LOADING
    for other in ({}, {"executor_secret": "sesam"}):
        with pytest.raises(Stop, match="another --executor-secret") as refused:
            await at.told(**other)
        assert refused.value.code == Exit.USAGE
    assert caplog.text.count("refused a scheduler without the secret") >= 2
    assert "sesam" not in caplog.text
    # An executor that asks for nothing takes one that shows something.
    assert await (await house()).told(executor_secret="sesame") == LOADING


def pems(folder: Path, authority: trustme.CA, trusted: trustme.CA, name: str) -> dict[str, str]:
    made = authority.issue_cert("127.0.0.1")
    files = {key: folder / f"{name}-{key}.pem" for key in ("certfile", "keyfile", "cafile")}
    files["certfile"].write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    made.private_key_pem.write_to_path(files["keyfile"])
    trusted.cert_pem.write_to_path(files["cafile"])
    return {f"executor_{key}": str(path) for key, path in files.items()}


async def test_certificates_are_asked_for_on_both_sides(house: Any, tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    at = await house(**pems(tmp_path, ours, ours, "executor"))
    assert await at.told(**pems(tmp_path, ours, ours, "scheduler")) == LOADING
    for stranger in (
        {},  # no TLS at all
        pems(tmp_path, theirs, ours, "forged"),  # a certificate of another authority
        pems(tmp_path, ours, theirs, "mistrusting"),  # it does not trust the executor's
    ):
        why = await at.told(**stranger)
        assert "unavailable" in why and LOADING not in why


@pytest.mark.parametrize("target", ["0.0.0.0:0", "[::]:0", "executor:50051", "192.0.2.1:1"])
async def test_a_door_to_the_network_needs_a_lock(target: str) -> None:
    with pytest.raises(listen.ListenError, match="--executor-secret"):
        listen.bind(grpc.aio.server(), target, Access(config().executor))


async def test_with_a_secret_it_listens_on_all_addresses() -> None:
    server = grpc.aio.server()
    assert listen.bind(server, "0.0.0.0:0", Access(config(executor_secret="s").executor)).startswith(
        "0.0.0.0:"
    )
    for local in ("127.0.0.1:0", "localhost:0"):
        assert listen.bind(server, local, Access(config().executor))
    await server.stop(0)


def test_files_that_are_wrong_are_said_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    whole = {f"executor_{key}": str(empty) for key in ("certfile", "keyfile", "cafile")}
    for flags, words in (
        ({"executor_certfile": str(empty)}, "need --executor-keyfile, --executor-cafile too"),
        (whole, "is no PEM file"),
        (whole | {"executor_keyfile": "/none.pem"}, "is no PEM file|cannot read --executor-keyfile"),
    ):
        with pytest.raises(ConfigError, match=words):
            Access(config(**flags).executor)


async def test_an_executor_that_would_stand_open_ends_with_one_line(processes: Any, tiny_model: Any) -> None:
    running = processes(model=tiny_model("smollm2"))
    process = running.start("executor", executor="0.0.0.0:0")
    assert await asyncio.to_thread(process.wait, 60) == 2
    log = running.log("executor")
    assert "whoever reaches 0.0.0.0:0 could use this executor: set --executor-secret" in log
    assert "Traceback" not in log
