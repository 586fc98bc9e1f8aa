"""`ops/page-check`: uses the chat and the status page; looks at what they show and their console says."""

import asyncio
import base64
import json
import os
import re
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import click

from pillion.ops.page.browser import BrowserError, Tab, tab
from pillion.ops.page.status import watch
from pillion.ops.rig import Rig, RigError

_LAST = "[...document.querySelectorAll('.answer')].at(-1)"
_SIZES = f"""(async () => {{
  const sizes = new Set();
  for (; running; await pause(10)) sizes.add({_LAST}.innerText.length);
  return sizes.size;
}})()"""
_FIGURES = re.compile(r"\d+ prompt \+ (\d+) tokens, first after \d+\.\d\d s, then \d+\.\d tokens/s")
_ENDS = re.compile(r'^pillion_requests_total\{outcome="(\w+)"\} (\S+)$', re.M)
_AWAY = re.compile(r"net::ERR_(CONNECTION|INCOMPLETE|EMPTY)|status of 503")
_SAID = '<img src=x onerror="alert(1)">\n```html\n<script>alert(2)</script>\n```\n**end**'
_THOUGHT = "<b>hm</b>"
"""What a model writes that would like to be more than text."""


class Check:
    """One visit. Each step raises BrowserError where something is off."""

    def __init__(self, page: Tab, url: str, key: str | None, folder: Path) -> None:
        self.page = page
        self.url = url
        self.key = key
        self.folder = folder

    async def arrive(self) -> None:
        """The page is there, knows its model, and the cursor stands in the question; a key is asked for."""
        await self.page.screen(1024, 640)
        await self.page.dark(False)
        await self.page.call("Page.navigate", url=f"{self.url}/")
        await self.page.until("document.readyState == 'complete' && at('status') != null", "the page")
        if self.key is not None:
            await self.page.until(
                "at('panel').open && document.activeElement == at('key')", "asking for a key"
            )
            _expect(len(self.page.complaints) == 1 and "401" in self.page.complaints.pop(), "one 401 is told")
            await self.page.type(self.key)
            await self.page.press("Enter")
        await self.page.until("at('model').value && !at('status').innerText", "a model")
        kept = await self.page.value("[{...sessionStorage}, localStorage.length]")
        kept += (await self.page.call("Network.getCookies"))["cookies"]
        _expect(kept == [{"pillion-key": self.key} if self.key else {}, 0], f"the page keeps {kept}")
        await self._focus()

    async def ask(self) -> None:
        """An answer streams into the page, with its figures; Shift+Enter breaks the line only."""
        await self._set("max_tokens", "160")
        await self._set("temperature", "0")
        await self.page.type("Show me how to read a file in Python.")
        await self.page.press("Enter", modifiers=8)
        _expect(await self.page.value("!running && at('question').value.endsWith('\\n')"), "a line break")
        await self.page.type("Keep it short.")
        await self.page.press("Enter")
        await self._focus()
        sizes = await self.page.value(_SIZES)
        _expect(sizes > 3, f"the answer was seen in {sizes} sizes: it did not stream")
        told = await self._figures()
        found = _FIGURES.match(told)
        _expect(found is not None and int(found[1]) > 3, f"the figures are {told!r}")
        _expect(await self.page.value("messages.length") == 2, "the chat has the question and its answer")
        await self._set("temperature", "")

    async def stop(self, how: Callable[[], Any]) -> None:
        """A stopped answer ends at once, here and at the server, and the chat goes on."""
        before = await self._ends()
        await self._set("max_tokens", "")
        await self._set("min_tokens", "400")  # the answer does not end before it is stopped
        await self.page.type("Count from one to five hundred in words.")
        await self.page.press("Enter")
        await self.page.until(f"{_LAST}.innerText.length > 40", "text to stop")
        await how()
        await self.page.until("running == null", "the end of what was stopped", 10)
        told = await self._figures()
        _expect(told.endswith("; stopped"), f"the figures are {told!r}")
        await self._focus()
        end = asyncio.get_running_loop().time() + 30
        while (now := await self._ends()) == before:
            _expect(asyncio.get_running_loop().time() < end, "the server does not know of the stop")
            await asyncio.sleep(0.1)
        grown = {name for name in now if now[name] > before.get(name, 0)}
        _expect(grown <= {"aborted", "parked"}, f"the server counts it as {grown}")

    async def outlive(self, pid: int) -> None:
        """The gateway dies while it answers; its answer goes on where it was."""
        await self._set("max_tokens", "400")
        await self._set("min_tokens", "400")
        await self.page.type("Tell me everything about rivers.")
        await self.page.press("Enter")
        size = await self.page.until(f"{_LAST}.innerText.length > 40 && {_LAST}.innerText.length", "text")
        before = await self.page.value(f"{_LAST}.querySelector('.text').textContent")
        os.kill(pid, signal.SIGKILL)
        await self.page.until("at('status').innerText.includes('broke')", "word of the broken connection", 20)
        await self.page.until("running == null", "the rest of the answer")
        after = await self.page.value("messages.at(-1).content")  # with the marks of code, as it came
        _expect(len(after) > size and after.startswith(before), "the answer goes on where it was")
        _expect(_FIGURES.match(await self._figures()) is not None, "the figures of what went on")
        gone = [each for each in self.page.complaints if _AWAY.search(each)]
        for each in gone:  # the browser says that nobody was there
            self.page.complaints.remove(each)

    async def render(self) -> None:
        """What a model wrote is text, whatever it looks like; reasoning is folded; code is apart."""
        chunks = [{"reasoning_content": _THOUGHT}, {"content": _SAID[:20]}, {"content": _SAID[20:]}]
        usage = {"prompt_tokens": 1, "completion_tokens": 3}
        lines = [json.dumps({"choices": [{"delta": delta}], "usage": usage}) for delta in chunks]
        body = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
        paused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.page.on("Fetch.requestPaused", paused.set_result)
        await self.page.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/chat/completions"}])
        await self.page.type("Show me HTML.")
        await self.page.press("Enter")
        await asyncio.wait({paused}, timeout=30)
        _expect(paused.done(), "the page asks nothing")
        await self.page.call(
            "Fetch.fulfillRequest",
            requestId=paused.result()["requestId"],
            responseCode=200,
            responseHeaders=[{"name": "Content-Type", "value": "text/event-stream"}],
            body=base64.b64encode(body.encode()).decode(),
        )
        await self.page.until("running == null", "the end of what was made up")
        await self.page.call("Fetch.disable")
        seen = await self.page.value(
            f"[...{_LAST}.querySelectorAll('p, pre, .thought')].map((e) => [e.tagName, e.textContent])"
        )
        code = "<script>alert(2)</script>"
        wanted = [["DIV", _THOUGHT], ["P", _SAID.partition("\n")[0]], ["PRE", code], ["P", "**end**"]]
        _expect(seen == wanted, f"it shows {seen}")
        _expect(await self.page.value(f"!{_LAST}.querySelector('details').open"), "the reasoning is folded")
        without = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"  # as without TLS
        for first in ("1", without):
            await self.page.value(f"{first}, tell('')")
            await self.page.click(".answer:last-child .foot button")
            await self.page.until("at('status').innerText == 'Copied.'", "word of the copy", 10)
        _expect("**end**" in await self.page.value("getSelection().toString()"), "what is copied is selected")
        await self.page.click("#question")

    async def refuse(self) -> None:
        """An error is shown in words, and the question stays."""
        before = await self.page.value("messages.length")
        await self._set("max_tokens", "99999999")
        await self.page.type("Too much.")
        await self.page.press("Enter")
        words = await self.page.until("document.querySelector('[role=alert]')?.innerText", "an error", 20)
        _expect("max_tokens" in words, f"the error is {words!r}")
        _expect(await self.page.value("at('question').value") == "Too much.", "the question stays")
        _expect(await self.page.value("messages.length") == before, "the chat is as it was")
        told = self.page.complaints.pop() if self.page.complaints else ""
        _expect("400" in told, "the browser's word of the 400")
        await self.page.value("at('question').value = ''")

    async def look(self) -> None:
        """Pictures of all sizes and colours; nothing sticks out, and the colours follow."""
        grounds = set()
        for name, width, height, phone in (("desktop", 1024, 640, False), ("phone", 390, 844, True)):
            await self.page.screen(width, height, phone)
            for dark in (False, True):
                await self.page.dark(dark)
                await self.page.value("new Promise(requestAnimationFrame)")
                grounds.add(await self.page.value("getComputedStyle(document.body).backgroundColor"))
                await self.page.shoot(self.folder / f"{name}-{'dark' if dark else 'light'}.png")
            await self.page.value("at('panel').open = true")
            await self.page.shoot(self.folder / f"{name}-settings.png")
            wide = await self.page.value("document.documentElement.scrollWidth")
            _expect(wide <= width, f"{name}: the page is {wide} pixels wide")
            low = await self.page.value("at('ask').getBoundingClientRect().bottom")
            _expect(0 < low <= height, f"{name}: the form ends at {low} of {height}")
            await self.page.value("at('panel').open = false")
        _expect(len(grounds) == 2, f"the grounds are {grounds}")

    async def anew(self) -> None:
        """A new chat is empty."""
        await self.page.click("#new")
        _expect(await self.page.value("messages.length + at('log').children.length") == 0, "a new chat")
        await self._focus()

    async def _set(self, name: str, value: str) -> None:
        """A field of the requests to come, also one that the page does not offer."""
        made = f"Object.assign(document.createElement('input'), {{name: '{name}', hidden: true}})"
        field = f"(settings.elements.{name} ?? settings.appendChild({made}))"
        await self.page.value(f"{field}.value = '{value}'")

    async def _focus(self) -> None:
        _expect(await self.page.value("document.activeElement == at('question')"), "the focus is elsewhere")

    async def _figures(self) -> str:
        await self.page.until("running == null", "the end of the answer")
        return str(await self.page.value(f"{_LAST}.querySelector('.figures')?.textContent"))

    async def _ends(self) -> dict[str, float]:
        """Requests by how they ended, as the server counts them."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            return {name: float(count) for name, count in _ENDS.findall(await response.text())}


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise BrowserError(what)


async def visit(url: str, key: str | None, folder: Path, gateway: Callable[[], int] | None) -> None:
    """All steps. `gateway`: gives the pid of one that may be killed. Raises BrowserError."""
    async with tab() as page:
        check = Check(page, url, key, folder)
        steps: list[tuple[str, Callable[[], Any]]] = [
            ("arrive", check.arrive),
            ("ask", check.ask),
            ("look", check.look),
            ("stop by mouse", lambda: check.stop(lambda: page.click("#stop"))),
            ("stop by key", lambda: check.stop(lambda: page.press("Escape"))),
            ("show HTML as text", check.render),
            ("show an error", check.refuse),
            *([("outlive a gateway", lambda: check.outlive(gateway()))] if gateway else []),
            ("start anew", check.anew),
            ("status under load", lambda: watch(page, url, key, folder)),
        ]
        for name, step in steps:
            await step()
            _expect(not page.complaints, f"{name}: the console says {page.complaints}")
            click.echo(f"ok {name}")


@click.command("ops/page-check", context_settings={"max_content_width": 110})
@click.option("--url", help="of a gateway that runs [a stack of its own]")
@click.option("--api-key", help="the page must ask for it; the stack of its own is started with it")
@click.option(
    "--screenshots",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder that keeps the pictures [none are kept]",
)
@click.argument("flags", nargs=-1, metavar="[-- FLAGS OF UP]")
def main(url: str | None, api_key: str | None, screenshots: Path | None, flags: tuple[str, ...]) -> None:
    """Uses the two pages in Chromium; exit code 1 where it does not do or show what it should."""
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="page-")))
        folder = screenshots or temporary
        folder.mkdir(parents=True, exist_ok=True)
        try:
            gateway = None
            if url is None:
                keys = ("--api-key", api_key) if api_key else ()
                rig = stack.enter_context(Rig(temporary / "s", *keys, *flags))
                url, gateway = rig.url, lambda: rig.pids()["gateway"]
            asyncio.run(visit(url.rstrip("/").removesuffix("/v1"), api_key, folder, gateway))
        except (BrowserError, RigError) as error:
            raise click.ClickException(str(error)) from None
    click.echo("the page does what it should")


if __name__ == "__main__":
    main(prog_name=main.name)
