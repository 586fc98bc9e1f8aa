"""One tab of a Chromium without a window, by the Chrome DevTools Protocol."""

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from pillion.ops.child import die_with_parent

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 60.0
WAIT_SECONDS = 90.0
END_SECONDS = 10.0
LOOK = 0.02  # seconds between two looks
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


class BrowserError(RuntimeError):
    """There is no browser, or it does not do what is asked, or the page does not come to what is awaited."""


class Tab:
    """What a person can do with a page and see of it. `complaints`: the errors that its console told."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._on: dict[str, Callable[[Any], None]] = {
            "Runtime.consoleAPICalled": self._console,
            "Runtime.exceptionThrown": lambda event: self._complain(event["exceptionDetails"]),
            "Log.entryAdded": lambda event: self._complain(event["entry"]),
            "Audits.issueAdded": lambda event: self._complain(event["issue"]),
        }
        self._reader = asyncio.create_task(self._read())

    def on(self, event: str, do: Callable[[Any], None]) -> None:
        self._on[event] = do

    async def call(self, method: str, **parameters: Any) -> Any:
        """Raises BrowserError."""
        number = len(self._calls)
        self._calls[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        try:
            return await asyncio.wait_for(answer, WAIT_SECONDS)
        except TimeoutError:
            raise BrowserError(f"the browser did not answer {method}") from None

    async def value(self, script: str) -> Any:
        """Of a JavaScript expression, as JSON has it. Raises BrowserError where it throws."""
        got = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise BrowserError(f"{script}: {got['exceptionDetails']['exception'].get('description')}")
        return got["result"].get("value")

    async def until(self, script: str, what: str, seconds: float = WAIT_SECONDS) -> Any:
        """The expression's first value that is true. Raises BrowserError, with `what` was awaited."""
        end = asyncio.get_running_loop().time() + seconds
        while not (value := await self.value(script)):
            if asyncio.get_running_loop().time() > end:
                status = await self.value("document.body.innerText")
                raise BrowserError(f"{what}: not within {seconds:g} s; the page shows:\n{status[-1500:]}")
            await asyncio.sleep(LOOK)
        return value

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, modifiers: int = 0) -> None:
        """A key by its name; `modifiers` 8 is Shift."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        what = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="\r" * (key == "Enter"), **what)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    async def click(self, selector: str) -> None:
        box = await self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, **where)

    async def screen(self, width: int, height: int, phone: bool = False) -> None:
        """The size of what is seen, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip

    async def dark(self, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def shoot(self, file: Path) -> None:
        """A picture of what is seen, as PNG."""
        picture = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(picture["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" not in told:
                self._on.get(told["method"], lambda event: None)(told["params"])
                continue
            answer = self._calls[told["id"]]
            if answer.done():  # nobody waits any more
                continue
            if "error" in told:
                answer.set_exception(BrowserError(told["error"]["message"]))
            else:
                answer.set_result(told["result"])

    def _console(self, event: Mapping[str, Any]) -> None:
        if event["type"] in ("error", "warning", "assert"):
            self._complain(event)

    def _complain(self, what: Mapping[str, Any]) -> None:
        if what.get("level") not in ("verbose", "info"):
            self.complaints.append(json.dumps(what)[:600])


@asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """The tab of a browser of its own, which ends with it. Raises BrowserError."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise BrowserError(f"no browser: install one of {', '.join(NAMES)}, as with `apt install chromium`")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        flags = (*_FLAGS, *(("--no-sandbox",) if os.geteuid() == 0 else ()))
        process = await asyncio.create_subprocess_exec(
            *(program, *flags, f"--user-data-dir={folder}", "about:blank"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        try:
            port = await _port(Path(folder, "DevToolsActivePort"), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as listed:
                    address = next(
                        e["webSocketDebuggerUrl"] for e in await listed.json() if e["type"] == "page"
                    )
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    made = Tab(socket)
                    try:
                        for domain in ("Page", "Runtime", "Log", "Audits"):
                            await made.call(f"{domain}.enable")
                        yield made
                    finally:
                        await made.close()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    """Where the browser listens, once it has said so."""
    end = asyncio.get_running_loop().time() + START_SECONDS
    while not (text := await asyncio.to_thread(lambda: file.read_text() if file.exists() else "")):
        if process.returncode is not None or asyncio.get_running_loop().time() > end:
            raise BrowserError("the browser did not start; try it with --headless=new about:blank")
        await asyncio.sleep(LOOK)
    return int(text.split()[0])
