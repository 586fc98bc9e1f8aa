"""Goodput against offered load: `python -m pillion.ops.bench.goodput --plot goodput.svg`.

Open loop: the arrivals of each point are drawn beforehand from the seed, a Poisson process, and are sent when
they are due, whatever the server does. Latency counts from the intended time of sending. A request is good if
it is finished, its first token came within the TTFT target and the 99th percentile of its own gaps is within
the TBT target; goodput counts good requests, over all that were sent. Capacity is what a closed loop of
`--streams` clients finishes with the same lengths.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
import uvloop

from pillion.ops.bench.client import session
from pillion.ops.bench.sending import send
from pillion.ops.bench.server import Job, NoServer, Server
from pillion.ops.measure import Outcome, Slo, Tally
from pillion.ops.traces import Lengths, Shape, arrivals, poisson

TIMES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
RETRY = 1.0  # seconds that a refused client of the closed loop waits at most


def poisson_jobs(random_: random.Random, rate: float, seconds: float, shape: Shape) -> list[Job]:
    """Those that are due within so many seconds."""
    due = arrivals(random_, shape, poisson(rate), seconds=seconds)
    return [Job.of(arrival, random_) for arrival in due]


async def capacity_of(server: Server, shape: Shape, streams: int, seconds: float, seed: int) -> float:
    """Requests a second that so many clients get finished, each with one request at a time."""
    random_ = random.Random(seed)
    end = time.perf_counter() + seconds
    finished = 0

    async def client() -> None:
        nonlocal finished
        while time.perf_counter() < end:
            line = await server.complete(Job.of(shape.draw(random_), random_))
            if line.finish and time.perf_counter() < end:
                finished += 1
            elif line.status != 200:
                await asyncio.sleep(RETRY * random_.random())

    await asyncio.gather(*(client() for _ in range(streams)))
    if not finished:
        raise NoServer(f"{server.url} finished nothing within {seconds:g} s; is it up and ready?")
    return finished / seconds


async def measure(url: str, shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """All points, lowest load first. Raises NoServer."""
    seed, seconds, ttft, tbt = (options[name] for name in ("seed", "seconds", "ttft", "tbt"))
    async with session() as http:
        server = Server(http, url)
        await server.meet()
        capacity = options["capacity"] or await capacity_of(server, shape, options["streams"], seconds, seed)
        click.echo(f"capacity {capacity:.2f} requests/s", err=True)
        points = []
        for times in options["times"]:
            rate = times * capacity
            # Each point has prompts of its own, and none hits another's.
            jobs = poisson_jobs(random.Random(f"{seed} {times}"), rate, seconds, shape)
            tally, ends = Tally(Slo(ttft, tbt)), list[Outcome]()

            def ended(
                end: Outcome, gaps: list[float], tally: Tally = tally, ends: list[Outcome] = ends
            ) -> None:
                tally.add(end, gaps)
                ends.append(end)

            await send(server, jobs, ended)
            point = {"times_capacity": times, "offered": rate, **tally.summary(seconds)}
            click.echo(json.dumps(point), err=True)
            points.append(point | {"requests": [list(asdict(end).values()) for end in ends]})
    best = max(point["goodput_per_s"] for point in points)
    return {
        "url": url,
        "options": options,
        "shape": asdict(shape),
        "capacity": capacity,
        "best_goodput": best,
        "last_over_best": points[-1]["goodput_per_s"] / best if best else None,
        "request_fields": [field.name for field in fields(Outcome)],
        "points": points,
    }


# --- the plot --------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 360, 56, 40, 150, 48


def plot(result: dict[str, Any]) -> str:
    """Goodput, finished and offered requests a second over the offered load, as SVG."""
    points = result["points"]
    right: float = max(point["times_capacity"] for point in points)
    top: float = 1.15 * max(max(point["finished_per_s"], point["goodput_per_s"]) for point in points) or 1.0
    capacity: float = result["capacity"]

    def x(times: float) -> float:
        return _LEFT + times / right * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - min(rate / top, 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    def line(rows: list[tuple[float, float]], colour: str, dash: str = "none") -> str:
        path = " ".join(f"{x(times):.1f},{y(rate):.1f}" for times, rate in rows)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        return f'<polyline points="{path}" {style}/>'

    def text(left: float, at: float, words: str, anchor: str = "middle", colour: str = "#444") -> str:
        return f'<text x="{left:.1f}" y="{at:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    def curves() -> Iterator[str]:
        end = min(right, top / capacity)
        yield line([(0.0, 0.0), (end, end * capacity)], "#999", "4 4")
        yield text(x(end) + 4, y(end * capacity) - 4, "offered", "start", "#777")
        for name, colour, below in (("finished", "#c77d2e", -8), ("goodput", "#1f6f8b", 14)):
            rows = [(point["times_capacity"], point[f"{name}_per_s"]) for point in points]
            yield line(rows, colour)
            yield from (f'<circle cx="{x(t):.1f}" cy="{y(r):.1f}" r="3" fill="{colour}"/>' for t, r in rows)
            yield text(x(rows[-1][0]) + 8, y(rows[-1][1]) + below, name, "start", colour)

    ticks = [
        text(x(point["times_capacity"]), _HEIGHT - _BOTTOM + 18, f"{point['times_capacity']:g}")
        for point in points
    ]
    marks = [
        text(_LEFT - 8, y(top * share) + 4, f"{top * share:.1f}", "end")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    targets = (
        f"TTFT within {result['options']['ttft']:g} s, TBT within {result['options']['tbt'] * 1000:g} ms"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        text(_LEFT, 20, f"Goodput under overload: {targets}", "start", "#222"),
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none" stroke="#444"/>',
        *ticks,
        *marks,
        text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "offered load over capacity"),
        text(_LEFT, _TOP - 6, "requests/s", "middle"),
        *curves(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="of each point, and of the capacity's loop")
@click.option("--times", multiple=True, type=float, default=TIMES, show_default=True, help="of the capacity")
@click.option("--capacity", type=float, help="requests/s, where it is known  [measured]")
@click.option("--streams", default=24, show_default=True, help="clients of the closed loop")
@click.option("--ttft", default=3.0, show_default=True, help="target, seconds")
@click.option("--tbt", default=0.2, show_default=True, help="target, seconds")
@click.option("--prompt", nargs=2, default=(170, 500), show_default=True, help="median and P90, tokens")
@click.option("--answer", nargs=2, default=(60, 150), show_default=True, help="median and P90, tokens")
@click.option("--output", type=click.Path(path_type=Path), help="keep the raw result here, as JSON")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="draw it here, as SVG")
def main(
    url: str,
    prompt: tuple[int, int],
    answer: tuple[int, int],
    output: Path | None,
    picture: Path | None,
    **options: Any,
) -> None:
    """Measures a running server from half to three times its capacity."""
    shape = Shape(Lengths(*prompt, low=8, high=1500), Lengths(*answer, low=4, high=400))
    try:
        result = uvloop.run(measure(url, shape, options))
    except NoServer as error:
        raise click.ClickException(str(error)) from None
    if output:
        output.write_text(json.dumps(result) + "\n")
    if picture:
        picture.write_text(plot(result))
    points = [{key: value for key, value in point.items() if key != "requests"} for point in result["points"]]
    click.echo(json.dumps(result | {"points": points}, indent=1))


if __name__ == "__main__":
    main()
