"""What is measured: processes by psutil, what services say of themselves by their metrics, and Redis."""

import urllib.request
from collections.abc import Mapping

import psutil
import redis as redislib
from prometheus_client.parser import text_string_to_metric_families

from pillion.bus import Keys

Sample = dict[str, float]
"""Name to value. Names are `what.of whom`, as `rss.gateway`; verdict.RULES says how each is judged."""

# Metric of a service: what it counts here. Those with labels are summed up over `states`, None: over all.
_GAUGES: Mapping[str, tuple[str, tuple[str, ...] | None]] = {
    "pillion_tasks": ("tasks", None),
    "pillion_inboxes": ("inboxes", None),
    "pillion_requests_running": ("running", None),
    "pillion_queue_requests": ("queued", None),
    "pillion_ledger_requests": ("ledger", None),
    "pillion_sequences": ("sequences", None),
}
_PAGE = 1000  # keys asked for at once


class Probe:
    """Measures one stack. `metrics`: role to URL; what is not given is not measured."""

    def __init__(
        self, pids: Mapping[str, int], metrics: Mapping[str, str], redis: str | None, stack: str = "default"
    ) -> None:
        self._processes = {role: psutil.Process(pid) for role, pid in pids.items()}
        self._metrics = metrics
        self._redis = redislib.Redis.from_url(redis) if redis else None
        self._keys = Keys(stack)

    def sample(self) -> Sample:
        """Raises psutil.NoSuchProcess where one has died, OSError, RedisError where one does not answer."""
        sample: Sample = {}
        for role, process in self._processes.items():
            with process.oneshot():
                sample[f"rss.{role}"] = process.memory_info().rss
                sample[f"descriptors.{role}"] = process.num_fds()
                sample[f"threads.{role}"] = process.num_threads()
        for role, url in self._metrics.items():
            sample |= self._service(role, url)
        if self._redis is not None:
            sample |= self._bus(self._redis)
        return sample

    def _service(self, role: str, url: str) -> Sample:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        sample: Sample = {}
        series = 0
        for family in text_string_to_metric_families(text):
            series += len(family.samples)
            for one in family.samples:
                if one.name in _GAUGES:
                    name = f"{_GAUGES[one.name][0]}.{role}"
                    sample[name] = sample.get(name, 0.0) + one.value
                elif one.name == "pillion_blocks":
                    sample[f"blocks.{one.labels['state']}"] = one.value
                elif one.name in ("pillion_dead_letters_total", "pillion_requests_started_total"):
                    sample[f"{one.name.removeprefix('pillion_')}.{role}"] = one.value
        sample[f"series.{role}"] = series
        return sample

    def _bus(self, redis: "redislib.Redis") -> Sample:
        """Streams by length and pending entries, keys by kind, and memory less what ends by itself."""
        prefix = self._keys.submit.removesuffix("submit")
        sample: Sample = {}
        lasting, ending = 0, 0  # bytes
        for page in _pages(redis, prefix + "*"):
            pipe = redis.pipeline(transaction=False)
            for key in page:
                pipe.ttl(key)
                pipe.type(key)
                pipe.memory_usage(key)
            facts = pipe.execute()
            for key, ttl, kind, size in zip(page, facts[::3], facts[1::3], facts[2::3], strict=True):
                name = key.decode().removeprefix(prefix).split(":")[0]
                if kind == b"none":
                    continue  # it ended meanwhile
                if kind == b"stream":
                    sample[f"stream.{name}"] = sample.get(f"stream.{name}", 0) + redis.xlen(key)
                    for group in redis.xinfo_groups(key):
                        pending, consumers = f"pending.{name}", f"consumers.{name}"
                        sample[pending] = sample.get(pending, 0) + group["pending"]
                        sample[consumers] = sample.get(consumers, 0) + group["consumers"]
                count = f"keys.{name}" if ttl < 0 else f"ending keys.{name}"
                sample[count] = sample.get(count, 0) + 1
                # Trimmed streams grow to their bounds, which `stream.*` holds; they are no leak.
                if ttl >= 0 or (kind == b"stream" and name not in ("submit", "run")):
                    ending += size or 0
                else:
                    lasting += size or 0
        info = redis.info()
        sample["memory.lasting keys"] = lasting
        sample["memory.ending keys and trimmed streams"] = ending
        sample["memory.redis"] = info["used_memory"]
        sample["clients.redis"] = info["connected_clients"]
        return sample

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()


def _pages(redis: "redislib.Redis", pattern: str) -> list[list[bytes]]:
    keys = sorted(set(redis.scan_iter(match=pattern, count=_PAGE)))
    return [keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE)]
