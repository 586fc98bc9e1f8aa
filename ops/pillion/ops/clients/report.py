"""What became of each client, and what load generators measured, in their own words."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUIDELLM = "guidellm.json"
AIPERF = Path("aiperf", "profile_export_aiperf.json")
LOADS = {"guidellm": 8, "aiperf": 16}
"""Those that end well whatever happens, and how many answers each must have got, and no error."""


@dataclass(frozen=True, slots=True)
class Result:
    """`passed`: the checks that held; `answers`: requests that the stack answered to their end meanwhile."""

    version: str
    passed: list[str] = field(default_factory=list)
    answers: int = 0
    seconds: float = 0.0
    measured: dict[str, Any] = field(default_factory=dict)
    failed: str = ""  # why

    def raw(self) -> dict[str, Any]:
        """As JSON can hold it, without what is empty."""
        told = {
            "version": self.version, "passed": self.passed, "answers": self.answers,
            "seconds": round(self.seconds, 1), "measured": self.measured, "failed": self.failed,
        }  # fmt: skip
        return {name: value for name, value in told.items() if value}


def well(name: str, answers: int, told: dict[str, Any]) -> bool:
    """Whether the stack answered enough, and the client counts no error."""
    return answers >= LOADS.get(name, 1) and not told.get("errors")


def measured(name: str, folder: Path) -> dict[str, Any]:
    """What a load generator reports in its folder; {} of others. Raises OSError and LookupError where it does
    not.
    """
    match name:
        case "guidellm":
            return _guidellm(json.loads((folder / GUIDELLM).read_text()))
        case "aiperf":
            return _aiperf(json.loads((folder / AIPERF).read_text()))
    return {}


def _guidellm(report: dict[str, Any]) -> dict[str, Any]:
    metrics = report["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]

    def told(name: str) -> dict[str, float]:
        percentiles = metrics[name]["successful"]["percentiles"]
        return {at: round(percentiles[at], 1) for at in ("p50", "p99")}

    return {
        "ok": totals["successful"],
        "errors": totals["errored"],
        "requests_per_second": round(metrics["requests_per_second"]["successful"]["mean"], 2),
        "output_tokens_per_second": round(metrics["output_tokens_per_second"]["successful"]["mean"], 1),
        "ttft_ms": told("time_to_first_token_ms"),
        "itl_ms": told("inter_token_latency_ms"),
    }


def _aiperf(report: dict[str, Any]) -> dict[str, Any]:
    def told(name: str) -> dict[str, float]:
        return {at: round(report[name][at], 1) for at in ("p50", "p99")}

    return {
        "ok": int(report["request_count"]["avg"]),
        "errors": sum(int(error["count"]) for error in report["error_summary"]),
        "requests_per_second": round(report["request_throughput"]["avg"], 2),
        "output_tokens_per_second": round(report["output_token_throughput"]["avg"], 1),
        "ttft_ms": told("time_to_first_token"),
        "itl_ms": told("inter_token_latency"),
    }
