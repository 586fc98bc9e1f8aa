"""What a step costs: at the executors; and the processes themselves."""

from pillion.ops.dashboards.panels import Dashboard, Panel, Query, each, heat, quantiles, rate, select, total
from pillion.telemetry import names

DASHBOARD = Dashboard(
    "pillion-executor",
    "Pillion: executor",
    "What steps cost on the hardware, and what every process takes.",
    names.BUILD_INFO,
    (
        Panel(
            "Step time, heat map",
            "One forward pass each. It stays under --slo-tbt while decodes run; a band above it comes from"
            " steps with prompts only, which may take --max-step-seconds.",
            heat(names.STEP_SECONDS),
            "s",
            "heatmap",
        ),
        Panel(
            "Step time, tails",
            "p99 above --slo-tbt: something else uses the cores or the GPU, or the budget is set by hand too"
            " high.",
            quantiles(names.STEP_SECONDS, 0.5, 0.99),
            "s",
        ),
        Panel(
            "Gap between plans",
            "Idle time while a plan was expected. Above a few ms the hardware waits for the scheduler: see"
            " its time to schedule, and the network between them.",
            quantiles(names.STEP_GAP_SECONDS, 0.5, 0.99),
            "s",
        ),
        Panel(
            "Where steps spend their time",
            "Shares of prepare, forward, logits and sample. Forward is the most; where sample grows, requests"
            " ask for logprobs, penalties or grammars.",
            (Query(total(rate(names.STEP_PART_SECONDS), "part"), "{{part}}"),),
            "s",
            "shares",
        ),
        Panel(
            "Operations",
            "FLOP/s by intensity (operations a byte): what is below the machine's ratio is bound by memory,"
            " what is above it by arithmetic.",
            (Query(total(rate(names.FLOPS), "intensity"), "up to {{intensity}}"),),
            "flops",
            "stacked",
        ),
        Panel(
            "Bytes read",
            "Weights and KV, by intensity. Near the machine's memory rate, only larger batches or smaller"
            " weights (--quantization) help decodes.",
            (Query(total(rate(names.READ_BYTES), "intensity"), "up to {{intensity}}"),),
            "Bps",
            "stacked",
        ),
        Panel(
            "Failed steps",
            "Steps that raised. The executor's log has the error; sequences start anew, one that fails alone"
            " is given up.",
            each(((names.STEPS_FAILED, "failed steps"),)),
            "cps",
        ),
        Panel(
            "Resident memory",
            "Each process. Growth over hours without more load is a leak: restart it under load, which loses"
            " nothing, and report it.",
            (Query(select("process_resident_memory_bytes"), "{{job}} {{instance}}"),),
            "bytes",
        ),
        Panel(
            "CPU",
            "Cores used by each process. A gateway or scheduler near 1 is at its end: add another.",
            (Query(rate("process_cpu_seconds_total"), "{{job}} {{instance}}"),),
        ),
        Panel(
            "Tasks",
            "asyncio tasks. They follow the running requests; growth without them is a leak.",
            (Query(select(names.TASKS), "{{job}} {{instance}}"),),
        ),
        Panel(
            "Unreadable entries",
            "What a process could not read of the bus: another release's, or damaged. Its log names each. Run"
            " releases that docs/upgrading.md lets run side by side.",
            (Query(total(rate(names.UNREADABLE), "kind"), "{{kind}}"),),
            "cps",
        ),
        Panel(
            "Versions",
            "What runs. Two versions for longer than a rolling upgrade: a process was left out.",
            (Query(total(select(names.BUILD_INFO), "service", "version"), "{{service}} {{version}}"),),
            kind="numbers",
            width=24,
        ),
    ),
)
