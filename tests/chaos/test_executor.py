"""The executor dies, is cut off, hangs, raises or brings no numbers: every stream goes on with the tokens it
would have had. Real processes; the test plays admission and gateway, and starts again what died."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pillion.contracts.entries import Request, Sampling, Tokens
from tests.bus_client import Client, client, request
from tests.chaos.poisoned import HANGS, KILLS, RAISES, RUN

POISONED = Path(__file__).with_name("poisoned.py")


def bystanders(output: int = 60) -> list[Request]:
    """One decodes from the start, one has a prompt of many chunks."""
    return [request("short", length=15, output=output), request("long", length=400, output=output)]


def poison(token: int, name: str = "poison") -> Request:
    return request(name, prompts=((*[token] * 10 * RUN, *range(60, 70)),), output=20)


@pytest.fixture
def stack(processes: Any, tiny_model: Any) -> Any:
    return processes(
        model=tiny_model("llama3"), dtype="float32", block_size=16, num_kv_blocks=128,
        max_num_batched_tokens=32, lease_seconds=1.0, step_timeout=1.5,
    )  # fmt: skip


async def undisturbed(one: Client, requests: list[Request]) -> dict[str, list[int]]:
    """Under other names, and with a salt of their own: nothing is found in the prefix index later."""
    for each in requests:
        changed = {name: getattr(each, name) for name in Request.__struct_fields__}
        await one.send(Request(**changed | {"id": f"{each.id}-quiet", "cache_salt": "quiet"}))
    await one.until(lambda: all(one.finish(f"{each.id}-quiet") for each in requests))
    return {each.id: one.tokens(f"{each.id}-quiet") for each in requests}


async def ended(process: Any) -> int:
    return await asyncio.wait_for(asyncio.to_thread(process.wait), 60)


class Cut:
    """A line between scheduler and executor that can be cut."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.made = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Cut]:
    cut = Cut(f"{tmp_path}/e.sock")
    await cut.listen()
    yield cut
    cut.close()


async def test_a_line_that_is_cut_loses_no_token(valkey: Any, stack: Any, line: Cut) -> None:
    executor = stack.start("executor", executor=f"unix:{line.target}")
    stack.start("scheduler", executor=line.address)
    wanted = bystanders(300)
    async with client(valkey.url) as one:
        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted)
        for share in (5, 40):
            await one.until(lambda share=share: len(one.tokens("short")) >= share)
            assert not one.finish("short")
            line.cut()
        await one.until(lambda: bool(one.finish("short") and one.finish("long")))
        assert {name: one.tokens(name) for name in quiet} == quiet
    assert line.made >= 3 and executor.poll() is None
    assert stack.log("scheduler").count("executor lost") == 2
    assert stack.log("executor").count("detached") == 2


async def test_one_that_is_stopped_past_its_deadline_is_given_up(valkey: Any, stack: Any) -> None:
    """Woken it finds nobody who listens to its old steps; never woken, another one takes its place."""
    executor = stack.start("executor")
    stack.start("scheduler")
    wanted = bystanders(300)
    async with client(valkey.url) as one:
        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted)
        for count in (1, 2):
            before = len(one.tokens("short"))
            await one.until(lambda before=before: len(one.tokens("short")) >= before + 5)
            executor.send_signal(signal.SIGSTOP)
            await one.until(
                lambda count=count: stack.log("scheduler").count("the step in flight is") == count
            )
            assert psutil.Process(executor.pid).status() == psutil.STATUS_STOPPED
            assert not one.finish("short")
            if count == 1:
                executor.send_signal(signal.SIGCONT)
        executor.kill()
        assert await ended(executor) == -signal.SIGKILL
        stack.start("executor")
        await one.until(lambda: bool(one.finish("short") and one.finish("long")))
        assert {name: one.tokens(name) for name in quiet} == quiet
    assert stack.log("scheduler").count("executor lost") == 2


async def test_a_request_that_kills_it_each_time_fails_alone(valkey: Any, stack: Any) -> None:
    """S42."""
    executor = stack.start("executor", program=POISONED)
    stack.start("scheduler")
    wanted = bystanders()
    deaths = 0
    async with client(valkey.url) as one:
        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted, poison(KILLS))
        async with asyncio.timeout(150):
            while not all(map(one.finish, ("short", "long", "poison"))):
                if executor.poll() is not None:
                    assert executor.returncode == -signal.SIGKILL
                    deaths += 1
                    executor = stack.start("executor", program=POISONED)
                await one.poll()
                await asyncio.sleep(0.01)
        assert one.finish("poison") == "error"
        (last,) = [item for item in one.items if item.request == "poison"]
        assert last.error == "the step failed each time: the executor was lost" and last.tokens == ()
        assert {name: one.tokens(name) for name in quiet} == quiet
        assert await one.left() == (0, 0)
    assert deaths == 4  # twice in company, twice alone


async def test_an_engine_that_hangs_ends_its_process_and_never_with_0(valkey: Any, stack: Any) -> None:
    executor = stack.start("executor", program=POISONED)
    stack.start("scheduler")
    wanted = bystanders()
    async with client(valkey.url) as one:
        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted, poison(HANGS))
        assert await ended(executor) == 70
        assert "the engine died: step hangs for more than 1.5 s" in stack.log("executor")
        stack.start("executor")  # where the same tokens do no harm
        await one.until(lambda: all(map(one.finish, ("short", "long", "poison"))))
        assert {name: one.tokens(name) for name in quiet} == quiet
        assert one.finish("poison") == "length"


NOT_A_NUMBER = 305


@pytest.fixture
def holed_model(tiny_model: Any, tmp_path: Path) -> Path:
    """A model whose embedding of one token is no number: every row that has seen it brings none."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "holed"
    shutil.copytree(tiny_model("llama3"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][NOT_A_NUMBER] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


async def test_what_fails_in_a_step_fails_that_request_alone(
    valkey: Any, processes: Any, holed_model: Path
) -> None:
    """A row without numbers, and a request with which each step raises."""
    stack = processes(
        model=holed_model, dtype="float32", block_size=16, num_kv_blocks=128, max_num_batched_tokens=32
    )
    executor = stack.start("executor", program=POISONED)
    stack.start("scheduler")
    never = Sampling(seed=5, temperature=1.0, ignore_eos=True, logit_bias={NOT_A_NUMBER: -100.0})
    wanted = [
        request("short", length=15, output=400, sampling=never),
        request("long", length=400, output=60, sampling=never),
    ]
    holed = (*range(40, 80), NOT_A_NUMBER)
    async with client(valkey.url) as one:

        def last(name: str) -> Tokens:
            (item,) = [item for item in one.items if item.request == name]
            assert (item.finish, item.tokens) == ("error", ())
            return item

        await one.ready()
        quiet = await undisturbed(one, wanted)
        await one.send(*wanted)
        await one.until(lambda: len(one.tokens("short")) >= 3)
        assert not one.finish("short")
        await one.send(request("end", prompts=(holed,)), request("inside", prompts=(holed + holed[:30],)))
        await one.until(lambda: bool(one.finish("end") and one.finish("inside")))
        for name in ("end", "inside"):
            assert "largest logit is nan" in str(last(name).error)
        await one.send(poison(RAISES))
        await one.until(lambda: all(map(one.finish, ("short", "long", "poison"))))
        assert last("poison").error == "the step failed each time: RuntimeError: this kernel cannot be run"
        assert {name: one.tokens(name) for name in quiet} == quiet
        again = request("again", prompts=(holed[:40],), output=10, sampling=never)  # in blocks that had them
        quiet = await undisturbed(one, [again])
        await one.send(again)
        await one.until(lambda: bool(one.finish("again")))
        assert one.tokens("again") == quiet["again"]
    assert executor.poll() is None
    assert stack.log("executor").count("RuntimeError: this kernel cannot be run") == 4
    assert "executor lost" not in stack.log("scheduler")
