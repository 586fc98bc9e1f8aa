"""A made-up result of the gateway's benchmark as a report."""

from typing import Any

import pytest

from pillion.ops.bench.gateway_report import report
from pillion.ops.report import Lines, Points


def streams(count: int, step: float, **late: float) -> dict[str, Any]:
    return {
        "streams": count, "step_ms": step, "late_ms": late, "ttft_ms": {"median": 40.0, "p99": 90.0},
        "tokens": 1000, "tokens_per_s": 200.0 * count, "coalesced_share": 0.25, "gateway_us_per_token": 45.0,
        "cores": {"gateway": 0.5, "client": 0.1}, "limit": "none",
    }  # fmt: skip


def test_each_case_has_a_row_and_what_is_late_is_drawn() -> None:
    short = {
        "at_a_time": 16, "requests_per_s": 700.0, "gateway_ms_per_request": 0.5,
        "request_ms": {"median": 20.0, "p99": 50.0}, "cores": {"gateway": 0.95}, "limit": "gateway",
    }  # fmt: skip
    result = {
        "options": {"model": "demo", "seed": 1, "seconds": 6.0, "paced": [[100, 20.0]]},
        "cpus": 2,
        "requests": short,
        "paced": [streams(100, 20.0, median=0.5, p99=4.0, worst=9.0)],
        "saturated": streams(256, 0.0, median=0.0, p99=2.0, worst=5.0),
    }
    made = report(result)
    requests, each, cores = made.tables
    assert requests.rows == [["16 requests at a time", 700.0, 0.0005, 0.02, 0.05]]
    assert each.rows[0][0] == "100 streams, step 20 ms"
    assert each.rows[0][1:] == pytest.approx([20_000, 45e-6, 0.0005, 0.004, 0.25, 0.04, 0.09])
    assert each.rows[1][0] == "256 streams, no step time"
    assert cores.columns == ["", "gateway", "client", "at the limit"]
    assert [row[1:] for row in cores.rows] == [[0.95, None, "gateway"], *([[0.5, 0.1, "none"]] * 2)]
    late, costs = made.plots
    assert isinstance(late, Lines) and isinstance(costs, Points)
    assert late.series[0].points == [(0.0005, 0.5), (0.004, 0.99), (0.009, 0.999)]
    assert late.series[1].points == [(0.002, 0.99), (0.005, 0.999)]
    assert [series.points for series in costs.series] == [[(20_000.0, 45e-6)], [(51_200.0, 45e-6)]]
    assert made.raw == result and made.provenance["cpus"] == 2
