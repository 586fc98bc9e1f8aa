"""The status page under load: what it shows, that it follows, and that it fits."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from pillion.ops.page.browser import BrowserError, Tab

STREAMS = 8
WARM = 62.0  # seconds of load before pictures are taken: the last minute is full
_WORDS = [
    "river",
    "stone",
    "cloud",
    "lantern",
    "harbour",
    "violin",
    "orchard",
    "compass",
    "meadow",
    "granite",
    "ribbon",
    "anchor",
]
_LEFT = """(() => {
  const cards = [...document.querySelectorAll('#replicas .card')].map((e) => e.getBoundingClientRect());
  const first = cards.filter((card) => card.top == cards[0].top);
  return at('replicas').getBoundingClientRect().right - Math.max(...first.map((card) => card.right));
})()"""
_SHOWN = "!at('board').hidden && document.querySelectorAll('#rows td.id').length"


@asynccontextmanager
async def load(url: str, key: str | None) -> AsyncIterator[None]:
    """Streams with prompts of many lengths, a new one for each that ends."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=600)

    async def client(session: aiohttp.ClientSession, rng: random.Random) -> None:
        while True:
            text = " ".join(rng.choices(_WORDS, k=rng.choice((20, 60, 250, 700))))
            body = {
                "messages": [{"role": "user", "content": f"Tell a story with these words: {text}"}],
                "max_tokens": rng.randint(60, 300), "min_tokens": 60, "stream": True,
            }  # fmt: skip
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                async for _ in response.content:
                    pass
            await asyncio.sleep(rng.expovariate(2))

    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        tasks = [asyncio.create_task(client(session, random.Random(number))) for number in range(STREAMS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if not isinstance(end, asyncio.CancelledError):
            raise BrowserError(f"the load failed: {end!r}")


async def watch(page: Tab, url: str, key: str | None, folder: Path) -> None:
    """Raises BrowserError where something is off. The pictures go to the folder."""
    await page.screen(1280, 900)
    await page.dark(False)
    await page.value("sessionStorage.clear()")
    await page.call("Page.navigate", url=f"{url}/status")
    await page.until("document.readyState == 'complete' && at('board') != null", "the status page")
    if key is not None:
        for given, awaited in (("wrong", "at('refused').textContent"), (key, "!at('board').hidden")):
            await page.until("document.activeElement == at('key')", "asking for a key")
            await page.type(given)
            await page.press("Enter")
            await page.until(awaited, "an answer to the key")
        told = [each for each in page.complaints if "401" not in each and "404" not in each]
        page.complaints[:] = told  # the browser's word of the refusals
    await page.until("!at('board').hidden", "the board")
    async with load(url, key):
        await page.until(f"({_SHOWN}) > 2", "running requests")
        await asyncio.sleep(WARM)
        await page.until(f"({_SHOWN}) > 2", "running requests")
        seen = await page.value(
            "({cards: document.querySelectorAll('#replicas article').length,"
            " prefill: document.querySelector('#replicas path.prefill').getAttribute('d').length,"
            " decode: document.querySelector('#replicas path.decode').getAttribute('d').length,"
            " heat: document.querySelectorAll('#heat rect').length,"
            " state: at('verdict').textContent, figures: [...document.querySelectorAll('.figure')]"
            ".map((e) => parseFloat(e.textContent))})"
        )
        drawn = all(seen[name] > 0 for name in ("cards", "prefill", "decode", "heat"))
        if (
            not drawn
            or seen["state"] != "ready"
            or not all(seen["figures"][each] > 0 for each in (0, 2, 4, 5))
        ):
            raise BrowserError(f"the status page shows {seen}")
        await _look(page, folder)
        await page.click("#pause")
        before = await page.value("at('tails').textContent")
        await asyncio.sleep(2.5)
        if await page.value("at('tails').textContent") != before:
            raise BrowserError("the page goes on while it is paused")
        await page.click("#pause")
        await page.until(f"at('tails').textContent != {before!r}", "going on", 10)
    await page.until("at('rows').textContent == 'None runs.'", "the end of all requests", 60)


async def _look(page: Tab, folder: Path) -> None:
    """Pictures of all sizes and colours; nothing sticks out."""
    for name, width, height, phone in (("desktop", 1280, 900, False), ("phone", 390, 844, True)):
        await page.screen(width, height, phone)
        whole = await page.value("document.documentElement.scrollHeight")
        await page.screen(width, whole, phone)
        for dark in (False, True):
            await page.dark(dark)
            await page.value("new Promise(requestAnimationFrame)")
            await page.shoot(folder / f"status-{name}-{'dark' if dark else 'light'}.png")
        wide = await page.value("document.documentElement.scrollWidth")
        if wide > width:
            raise BrowserError(f"{name}: the status page is {wide} pixels wide")
        left = await page.value(_LEFT)
        if left > 1:
            raise BrowserError(f"{name}: {left} pixels are empty beside the replicas' first row")
    await page.screen(1280, 900)
    await page.dark(False)
