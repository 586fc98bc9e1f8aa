"""Alert and recording rules ask for what is there, are tried, and lead to a page."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import known, problems

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops/observability/prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_what_is_there(rule: dict[str, Any]) -> None:
    series = known()
    for recorded in RULES:
        if "record" in recorded:
            labels = re.findall(r"by \((\w+)\)", recorded["expr"])
            series[recorded["record"]] = set(labels)
    assert problems(rule["expr"], series) == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_leads_to_a_section_that_exists(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("page", "ticket")
    summary, runbook = alert["annotations"]["summary"], alert["annotations"]["runbook"]
    assert summary
    link = re.fullmatch(r"[A-Z].+: (docs/[a-z]+\.md)#([a-z0-9-]+)", runbook)
    assert link, runbook
    headings = re.findall(r"^#+ (.+)$", (ROOT / link[1]).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert link[2] in anchors


def test_every_alert_is_tried_with_series() -> None:
    tests = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
    raised = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert raised == {alert["alert"] for alert in ALERTS}
    assert any(not case["exp_alerts"] for test in tests for case in test["alert_rule_test"])


@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_alerts_name_the_jobs_that_are_scraped(name: str) -> None:
    config = yaml.safe_load((FOLDER / name).read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert {f"pillion-{service}" for service in ("gateway", "admission", "scheduler", "executor")} <= jobs
    for alert in ALERTS:
        for job in re.findall(r'job="([^"]+)"', alert["expr"]):
            assert job in jobs
    assert config["rule_files"] == ["rules.yml"]


def test_promtool_agrees_where_it_is() -> None:
    """What is above holds everywhere; this adds promtool's word where there is one."""
    done = subprocess.run(
        [str(ROOT / "ops/observability/check")], capture_output=True, text=True, check=False, timeout=60
    )
    if shutil.which("promtool"):
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert (done.returncode, "install prometheus" in done.stderr) == (1, True)
