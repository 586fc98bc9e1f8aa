"""What each step carries: at the schedulers."""

from pillion.ops.dashboards.panels import (
    Dashboard,
    Panel,
    Query,
    each,
    heat,
    mean,
    quantiles,
    rate,
    select,
    total,
)
from pillion.telemetry import names

_STEPS = total(rate(f"{names.PLAN_STEPS.name}_sum"), "instance")

DASHBOARD = Dashboard(
    "pillion-scheduler",
    "Pillion: scheduler",
    "What steps are made of, and what memory holds.",
    names.SEQUENCES,
    (
        Panel(
            "Step composition",
            "Tokens computed: prefill chunks ride on decodes. All prefill and no decode for long: answers are"
            " short or all waits; all decode while requests wait: blocks or seats are the limit, see below.",
            (Query(total(rate(names.STEP_TOKENS), "kind"), "{{kind}}"),),
            "cps",
            "stacked",
        ),
        Panel(
            "Budget against its use",
            "Tokens that a step may carry, the most it ever may, and what it does carry. Use at the budget:"
            " prompts wait for it. Budget far below the limit: --slo-tbt, not the limit, binds.",
            (
                Query(select(names.STEP_BUDGET_TOKENS), "budget, {{instance}}"),
                Query(select(names.STEP_LIMIT_TOKENS), "limit, {{instance}}"),
                Query(f"{total(rate(names.STEP_TOKENS), 'instance')} / {_STEPS}", "used, {{instance}}"),
            ),
        ),
        Panel(
            "Sequences by state",
            "Waiting grows while decoding stays at --max-num-seqs: seats are the limit. Waiting grows below"
            " it: budget or blocks are.",
            (Query(total(select(names.SEQUENCES), "state"), "{{state}}"),),
            kind="stacked",
        ),
        Panel(
            "Blocks by state",
            "Free, cached (given up when needed) and referenced by sequences. Hardly any free or cached:"
            " preemptions come next; raise --kv-cache-memory or lower --max-num-seqs. Referenced with nothing"
            " running: a leak.",
            (Query(total(select(names.BLOCKS), "state"), "{{state}}"),),
            kind="stacked",
        ),
        Panel(
            "Preemptions",
            "Running sequences that had to give up their blocks. Steady preemptions waste steps: more KV"
            " memory, fewer seats, or a higher --watermark.",
            each(((names.PREEMPTIONS, "preemptions"),)),
            "cps",
            width=8,
        ),
        Panel(
            "Computed again",
            "Share of the computed tokens that preemptions have made necessary again. Above 10 % the replica"
            " thrashes.",
            (
                Query(
                    f"{total(rate(names.RECOMPUTED_TOKENS))} / {total(rate(names.STEP_TOKENS))}",
                    "share",
                ),
            ),
            "percentunit",
            width=8,
        ),
        Panel(
            "Prefix hits",
            "Share of prompt tokens found in the prefix index. Low where prompts have a common beginning:"
            " it is not byte for byte the same, or blocks are too few to keep it.",
            (
                Query(
                    f"{total(rate(names.PREFIX_HIT_TOKENS))} / {total(rate(names.PREFIX_QUERIED_TOKENS))}",
                    "share",
                ),
            ),
            "percentunit",
            width=8,
        ),
        Panel(
            "Chunks",
            "Prompt tokens a chunk. Many small ones: decodes fill the budget, or prompts are short.",
            heat(names.CHUNK_TOKENS),
            kind="heatmap",
        ),
        Panel(
            "Step target",
            "Seconds that a step with decodes may take. It changes only when an administrator says so.",
            (Query(select(names.STEP_TARGET), "{{instance}}"),),
            "s",
        ),
        Panel(
            "Correction of the cost model",
            "What steps take over what the measured cost model says. At 0.5 or 2 it is another machine's: run"
            " `pillion profile` again. Far apart, the cores are shared: budgets are small for that.",
            (Query(select(names.STEP_CORRECTION), "{{instance}} {{level}}"),),
        ),
        Panel(
            "Time to schedule",
            "One event, planning included. It runs beside the step before: above a few ms it delays steps;"
            " look whether the process has a core of its own.",
            quantiles(names.SCHEDULE_SECONDS, 0.5, 0.99),
            "s",
        ),
        Panel(
            "Steps a plan",
            "Above 1 where a few sequences run alone (--multi-step-seconds).",
            (Query(mean(names.PLAN_STEPS, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Unsettled run entries",
            "Requests that this replica answers for. With no sequence there it goes to 0 within seconds; if"
            " not, Redis cannot be written.",
            (Query(select(names.LEDGER_REQUESTS), "{{instance}}"),),
        ),
        Panel(
            "Parked, late, flushed",
            "Requests whose client or gateway went away, results for sequences that had ended, and blocks"
            " that an administrator took out of the prefix index: normal in small numbers.",
            each(
                (
                    (names.PARKED, "parked"),
                    (names.LATE_RESULTS, "late results"),
                    (names.PREFIX_FLUSHED_BLOCKS, "flushed blocks"),
                )
            ),
            "cps",
        ),
        Panel(
            "Lost executors, poison, dead letters",
            "All at 0. Any other value has an alert, and a section in docs/troubleshooting.md.",
            each(
                (
                    (names.EXECUTORS_LOST, "executors lost"),
                    (names.POISONOUS, "poisonous sequences"),
                    (names.DEAD_LETTERS, "dead letters"),
                )
            ),
            "cps",
            width=24,
        ),
    ),
)
