"""Puts every query of ours and of dashboards for vLLM to a real Prometheus that scrapes a stack under load.

`python -m pillion.ops.dashboards.live`, see ops/observability/live. Exit code 1 where a query brings nothing.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from redis import Redis

from pillion.bus import Keys
from pillion.config import Stack
from pillion.ops.dashboards import vllm
from pillion.ops.dashboards.grafana import DASHBOARDS
from pillion.ops.dashboards.panels import WINDOW
from pillion.ops.ports import claim
from pillion.ops.rig import Rig

RULES = Path(__file__).parents[3] / "observability/prometheus/rules.yml"
LOADED = 20.0  # seconds
RATE = "15s"  # the window, with a scrape a second
AT_ONCE = 4  # sequences of one tenant; one more is refused


def main() -> int:
    if not shutil.which("prometheus"):
        print("prometheus is not there (Debian, Ubuntu: apt-get install prometheus)", file=sys.stderr)
        return 1
    flags = ["--metrics-compat", "vllm", "--tenant-concurrency", str(AT_ONCE), "--slo-ttft", "60"]
    with tempfile.TemporaryDirectory() as folder, Rig(Path(folder) / "state", *flags) as rig:
        url = rig.url
        with prometheus(Path(folder), targets(rig.metrics)) as ask:
            load(url, rig.config.stack)
            return report(ask, "demo")


def report(ask: "Prometheus", model: str) -> int:
    """Says which queries brought nothing."""
    ours = [
        (f"{dashboard.title}, {panel.title}", query.expr.replace("$instance", ".*"))
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
    ]
    theirs = [("vLLM", expr) for expr in vllm.queries(model)]
    empty = [(where, expr) for where, expr in [*ours, *theirs] if not ask(expr.replace(WINDOW, RATE))]
    for where, expr in empty:
        print(f"no data: {where}: {expr}")
    down = [sample["metric"] for sample in ask("up") if sample["value"][1] != "1"]
    print(f"{len(ours)} queries of ours, {len(theirs)} of vLLM's: {len(empty)} without data; down: {down}")
    return 1 if empty or down else 0


def targets(metrics: Mapping[str, str]) -> dict[str, list[str]]:
    """Where each job is scraped, by the URLs of each role's metrics."""
    return {
        f"pillion-{role}": [url.removeprefix("http://").removesuffix("/metrics")]
        for role, url in metrics.items()
    }


def load(url: str, stack: Stack) -> None:
    """Whole answers, a client that leaves and comes back, more at once than is allowed, and a heartbeat that
    nobody can read.
    """
    end = time.monotonic() + LOADED
    while time.monotonic() < end:
        with closing(Redis.from_url(stack.redis or "")) as redis:
            redis.xadd(Keys(stack.stack).beats, {"e": b"\xc1"})
        ask_once(url, 99, stream=True)
        clients = [threading.Thread(target=ask_once, args=(url, seed)) for seed in range(AT_ONCE + 2)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


def ask_once(url: str, seed: int, stream: bool = False) -> None:
    try:
        with urlopen(request(url, seed, stream), timeout=60) as answer:
            if not stream:
                answer.read()
                return
            answer.readline()
            name = answer.headers["x-request-id"]
        with urlopen(f"{url}/v1/streams/{name}", timeout=60) as answer:
            answer.read()
    except HTTPError as error:
        if error.code != 429:
            raise


def request(url: str, seed: int, stream: bool) -> Request:
    text = "Tell a long story about a lighthouse. " * 20
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 40, "seed": seed}
    data = json.dumps(body | {"stream": stream, "ignore_eos": True}).encode()
    return Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})


class Prometheus:
    """Asks a running one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, expr: str) -> list[dict[str, Any]]:
        with urlopen(
            f"http://{self._address}/api/v1/query?{urlencode({'query': expr})}", timeout=30
        ) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result


@contextmanager
def prometheus(folder: Path, jobs: dict[str, list[str]]) -> Iterator[Prometheus]:
    """One that scrapes `jobs` every second, with our rules; ended with the body."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": addresses}]} for job, addresses in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{claim('127.0.0.1', 0)}"
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}", "--log.level=error"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    ]
    process = subprocess.Popen(command)
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    raise SystemExit(main())
