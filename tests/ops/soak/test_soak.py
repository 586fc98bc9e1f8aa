"""A short soak against a real stack; and that a leak would be seen."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as redislib

from pillion.ops.rig import Rig
from pillion.ops.soak.measure import Probe
from pillion.ops.soak.verdict import judge

FLAGS = ("--threads", "1")


@pytest.mark.slow
def test_a_short_soak_leaves_nothing_behind(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "soak.json"
    command = [
        *(
            sys.executable,
            "-m",
            "pillion.ops.soak.main",
            "--minutes",
            "0.25",
            "--seed",
            "5",
            "--clients",
            "6",
        ),
        *("--model", str(tiny_model("smollm2")), "--output", str(output), "--", *FLAGS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    raw = json.loads(output.read_text())
    assert raw["acts"] > 40 and raw["wrongs"] == 0 and raw["trouble"] == []
    assert sum(raw["outcomes"].get("leaves", {}).values()) > 2
    measures = {line["name"]: line for line in raw["measures"]}
    for role in ("gateway", "admission", "scheduler", "executor"):
        assert measures[f"tasks.{role}"]["after"] > 3
        assert measures[f"descriptors.{role}"]["after"] > 3
    assert measures["rss.valkey"]["after"] > 0
    # It was busy: there was something to come back from.
    for name in ("running.gateway", "inboxes.gateway", "sequences.scheduler", "blocks.referenced"):
        assert measures[name]["peak"] > 0, name
    assert measures["requests_started_total.gateway"]["after"] > 20


def test_what_is_left_behind_is_seen(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    with Rig(tmp_path, "--model", str(tiny_model("smollm2")), *FLAGS) as rig:
        assert rig.url
        url = rig.config.stack.redis
        assert url is not None
        probe = Probe(rig.pids(), rig.metrics, url)
        before = probe.sample()
        prefix = "pillion:{default}"
        redis = redislib.Redis.from_url(url)
        redis.set(f"{prefix}:record:left", "x")
        redis.set(f"{prefix}:record:ends", "x", ex=60)
        redis.xadd(f"{prefix}:run:elsewhere", {"e": "x"})
        after = probe.sample()
        failed = {line.name for line in judge(before, [], after) if not line.ok}
        assert failed == {"keys.record", "keys.run", "stream.run"}
        assert after["ending keys.record"] == 1
        probe.close()
        redis.close()
        assert rig.end() == 0
        assert rig.trouble() == []
