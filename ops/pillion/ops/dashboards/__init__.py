"""The Grafana dashboards, one a metric layer, as plain data; `grafana` turns them into Grafana's JSON."""
