"""What waits: at admission, and in front of the first step."""

from pillion.ops.dashboards.panels import Dashboard, Panel, Query, heat, quantiles, rate, select, total
from pillion.telemetry import names

_ARRIVED = total(rate(names.PROMPT_TOKENS_ARRIVED))
_LEFT = total(select(names.PREFILL_RATE_LEFT))

DASHBOARD = Dashboard(
    "pillion-queue",
    "Pillion: queue",
    "What arrives against what can be taken. A queue that is fuller than it can be emptied grows for ever.",
    names.BUILD_INFO,
    (
        Panel(
            "Prompt tokens: arriving against what steps can take",
            "The queue is stable while arrivals stay below the prefill rate left beside the decodes."
            " Arrivals above it for minutes: add replicas, or refuse earlier (--slo-ttft, --max-waiting).",
            (Query(_ARRIVED, "arriving"), Query(_LEFT, "prefill rate left")),
            "cps",
            width=16,
        ),
        Panel(
            "Load",
            "Arrivals over the rate left. From 0.8 on waits grow quickly; at 1 they have no bound.",
            (Query(f"{_ARRIVED} / {_LEFT}", "load"),),
            "percentunit",
            width=8,
        ),
        Panel(
            "Waiting in admission",
            "Requests without a replica's credit, by priority. It drains within seconds after a burst; if it"
            " stays full, look at the load, and whether all replicas are ready.",
            (Query(total(select(names.QUEUE_REQUESTS), "priority"), "priority {{priority}}"),),
            kind="stacked",
        ),
        Panel(
            "Refused",
            "By reason. `queue_full` and SLO refusals under load are meant; rate limits name a tenant that"
            " wants more than it has. Retry-After tells clients when to come back.",
            (Query(total(rate(names.REJECTIONS), "reason"), "{{reason}}"),),
            "reqps",
        ),
        Panel(
            "Wait in admission",
            "From admission's reading to the hand-over to a replica. High with idle replicas:"
            " --credit-seconds is too low.",
            quantiles(names.QUEUE_WAIT, 0.5, 0.9, 0.99),
            "s",
        ),
        Panel(
            "Scheduling delay",
            "From arrival to the first step with the sequence's tokens. A median above 2 s is past the"
            " capacity: add replicas.",
            quantiles(names.SCHEDULING_DELAY, 0.5, 0.9, 0.99),
            "s",
        ),
        Panel(
            "First token: came over predicted",
            "Around 1 admission predicts well, and refuses the right requests. Far from it: the load changes"
            " faster than its estimates; widen --slo-ttft.",
            heat(names.TTFT_OVER_PREDICTED),
            kind="heatmap",
            width=24,
        ),
    ),
)
