"""Prints every dashboard's queries as a rules file, which promtool can check: ops/observability/check."""

import json

from pillion.ops.dashboards.grafana import DASHBOARDS
from pillion.ops.dashboards.panels import WINDOW


def rules() -> dict[str, object]:
    """A group for each dashboard, a recording rule for each query."""
    return {
        "groups": [
            {
                "name": dashboard.uid,
                "rules": [
                    {
                        "record": f"{dashboard.uid.replace('-', '_')}:query{index}_{number}",
                        "expr": query.expr.replace(WINDOW, "5m").replace("$instance", ".*"),
                    }
                    for index, panel in enumerate(dashboard.panels)
                    for number, query in enumerate(panel.queries)
                ],
            }
            for dashboard in DASHBOARDS
        ]
    }


if __name__ == "__main__":
    print(json.dumps(rules(), indent=1))
