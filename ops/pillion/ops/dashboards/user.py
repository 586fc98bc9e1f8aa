"""What users see: at the gateways."""

from pillion.ops.dashboards.panels import Dashboard, Panel, Query, each, heat, quantiles, rate, select, total
from pillion.telemetry import names

_JUDGED = total(rate(names.SLO_REQUESTS), "target")
_MET = total(rate(names.SLO_REQUESTS, 'met="true"'), "target")

DASHBOARD = Dashboard(
    "pillion-user",
    "Pillion: what users see",
    "Latency and outcomes at the gateways. Look here first; then at the queue, the scheduler, the executor.",
    names.REQUESTS_STARTED,
    (
        Panel(
            "SLO attainment",
            "Share of finished requests that met a target (--slo-tbt, --slo-ttft). Below 99 %: for"
            " TTFT look at the queue's load, for TBT at the scheduler's budget and its preemptions.",
            (Query(f"{_MET} / {_JUDGED}", "{{target}}"),),
            "percentunit",
        ),
        Panel(
            "Requests",
            "Started against ended, by outcome. Failed above zero: read the gateway's log for the codes."
            " Many parked: clients or gateways go away, look at what stands between them.",
            (
                Query(total(rate(names.REQUESTS_STARTED)), "started"),
                Query(total(rate(names.REQUESTS), "outcome"), "{{outcome}}"),
            ),
            "reqps",
        ),
        Panel(
            "Time between tokens, heat map",
            "Each gap between two tokens of a stream. One low band is well; a second one above it is"
            " steps with long chunks: lower --slo-tbt or the budget. Single high dots:"
            " preemptions, lost executors.",
            heat(names.TIME_BETWEEN_TOKENS),
            "s",
            "heatmap",
            24,
        ),
        Panel(
            "Time between tokens, tails",
            "p99 above --slo-tbt: steps last too long; compare with the executor's step time. Where only"
            " p99.9 is high, look for preemptions and for Redis' latency.",
            quantiles(names.TIME_BETWEEN_TOKENS, 0.5, 0.99, 0.999),
            "s",
        ),
        Panel(
            "Time to first token",
            "Rises with the queue: compare with admission's wait and the scheduling delay. Where these are"
            " short, prompts are long for the budget: raise it, or add replicas.",
            quantiles(names.TIME_TO_FIRST_TOKEN, 0.5, 0.9, 0.99),
            "s",
        ),
        Panel(
            "Time per output token",
            "Mean of each request after its first token. High with a good TBT tail: too many sequences share"
            " the steps; add replicas or lower --max-num-seqs.",
            quantiles(names.TIME_PER_OUTPUT_TOKEN, 0.5, 0.9, 0.99),
            "s",
        ),
        Panel(
            "Request duration",
            "Whole requests. It follows the lengths of answers: read it beside time per output token.",
            quantiles(names.REQUEST_DURATION, 0.5, 0.9, 0.99),
            "s",
        ),
        Panel(
            "Errors",
            "Requests that did not finish, by what the client was told. docs/troubleshooting.md goes by these"
            " words.",
            (
                Query(
                    total(rate(f"{names.REQUEST_DURATION.name}_count", 'error_type!=""'), "error_type"),
                    "{{error_type}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "Running requests and inboxes",
            "Equal but for moments. Inboxes that stay above requests leak: restart the gateway, its streams"
            " go on, and report it.",
            (
                Query(total(select(names.REQUESTS_RUNNING)), "requests"),
                Query(total(select(names.INBOXES)), "inboxes"),
            ),
        ),
        Panel(
            "Resumed",
            "Streams that clients took up again. A wave means that a gateway or a proxy cut connections off.",
            (Query(total(rate(names.RESUMED), "stood"), "{{stood}}"),),
            "reqps",
        ),
        Panel(
            "Ignored fields and keys",
            "Clients send what is not acted on. The gateway's log names each once; correct the client.",
            each(((names.IGNORED_FIELDS, "fields"), (names.IGNORED_KEYS, "keys in messages"))),
            "cps",
        ),
    ),
)
