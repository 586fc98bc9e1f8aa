"""Bytes of this release, for later ones to read: `python -m pillion.ops.recorded` writes them once.

One file for each kind of entry and message, with every field at some value that is not its default, and
`expected.json`: what is read of them; `names.json` has the release's settings and metrics. A test replays
those of all releases; they are never written anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pillion.config import leaves
from pillion.contracts.entries import (
    Cancel,
    ChoiceRecord,
    Constraint,
    Control,
    Facts,
    Heartbeat,
    Queue,
    Rate,
    Record,
    Refusal,
    Request,
    Sampling,
    Spent,
    StepLimits,
    StepOutput,
    Struct,
    TokenLogprob,
    Tokens,
    Usage,
    encode,
)
from pillion.contracts.packed import pack
from pillion.gateway.heads import StreamHead
from pillion.gateway.protocol.request import Output
from pillion.scheduler import wire
from pillion.scheduler.messages import Compile, Plan, Take
from pillion.telemetry import names
from pillion.version import VERSION

FOLDER = Path(__file__).parents[3] / "tests" / "shared" / "recorded"

_CONSTRAINT = Constraint("regex", "[a-z]+", "</think>")
_SAMPLING = Sampling(
    seed=7, temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, frequency_penalty=0.5, presence_penalty=0.25,
    repetition_penalty=1.1, logit_bias={5: -1.5}, min_tokens=2, ignore_eos=True, stop_token_ids=(9,),
    logprobs=1, constraint=_CONSTRAINT, allowed_token_ids=(5, 6, 9),
    bad_words=((6, 6),), prompt_logprobs=1,
)  # fmt: skip
_REQUEST = Request(
    id="0123456789abcdef0123456789abcdef", gateway="g1", model="demo", prompts=((3, 4, 5), (6,)),
    sampling=_SAMPLING, arrival=1.5e9, n=2, max_tokens=12, priority=-1, cache_salt="salt", tenant="alice",
    deadline=1.6e9, traceparent=f"00-{'a' * 32}-{'b' * 16}-01", life=1, ended=(1,), resumed=True,
    fingerprint="bits",
)  # fmt: skip
_FACTS = Facts(
    model="demo", fingerprint="bits", max_model_len=512, vocab_size=320, end_tokens=(2,), block_size=16,
    num_blocks=33, max_num_seqs=8, max_step_tokens=64, tile=16, dtype="float32", backend="torch", tp=2, pp=3,
    backend_reason="asked for", grammars=64,
)  # fmt: skip
_LOGPROBS = (TokenLogprob(-0.5, 1, ((5, -0.5), (6, -1.0))),)
_PACKED = pack(_LOGPROBS, 2)
_REFUSAL = Refusal(
    _REQUEST.id, 429, "too many", "rate_limit_error", "n", "tenant_rpm", 2.5, 1,
    (Rate("requests", 60, 0, 12.5),),
)  # fmt: skip

ENTRIES: Mapping[str, Struct] = {
    "Request": _REQUEST,
    "Cancel": Cancel(_REQUEST.id, 1, "gone", _REQUEST.traceparent, park=True, life=1),
    "StepOutput": StepOutput(
        "0", 5, 17,
        (
            Tokens(_REQUEST.id, 2, 0, (5, 6), None, None, 16, _LOGPROBS * 2, None, _PACKED),
            Tokens(_REQUEST.id, 3, 0, (9,), "stop", 9, 16, _LOGPROBS, "why"),
        ),
        (_REFUSAL,),
    ),
    "Record": Record(
        _REQUEST.id, (ChoiceRecord((5, 9), "stop", 9, 16, _LOGPROBS * 2, "why", _PACKED),), b"times"
    ),
    "Refusal": _REFUSAL,
    "Heartbeat": Heartbeat(
        replica="0", epoch=5, state="draining", reason="asked", facts=_FACTS, last_entry="12-1",
        uncomputed=30, credit=100, prefill_rate=50.5, running=3, waiting=2, free_blocks=9, kv_usage=0.5,
        steps=40, stalled=0.5, seats=12, step_seconds=0.05, idle_rate=80.5, generation="1-a",
        controlled="13-0", step_limit=64, step_target=0.1, step_budget=48, prefilled=900, decoded=80,
        step_time=2.5, preemptions=1, prefix_queried=300, prefix_hit=120,
    ),
    "Control": Control(5, True, True, StepLimits(32, 0.2), _REQUEST.id),
    "Usage": Usage("0", ((_REQUEST.id, 0.25),), (Spent(_REQUEST.id, 30, 4),), ((_REQUEST.id, 0.125),)),
    "Queue": Queue({"high": 0, "normal": 2, "low": 1}, 90),
    "StreamHead": StreamHead(
        _REQUEST, 1_500_000_000, "bits", Output("chat", stream=True, n=2, stop=("end",), logprobs=1),
        ("echo",), "hash", "mine",
    ),
}  # fmt: skip
"""By the name of their type."""

MESSAGES: Mapping[str, bytes] = {
    "open": wire.open_message(5, "0").SerializeToString(),
    "compile": wire.compile_message(Compile(2, _CONSTRAINT)).SerializeToString(),
    "plan": wire.plan_message(
        Plan(
            step=3, release=(2,), take=(Take(1, 4, _REQUEST, 1, (3, 4, 5, 8), 3, (7,), 12),), slots=(0, 1),
            starts=(20, 0), counts=(1, 4), samples=(1, 1), block_counts=(1, 0), blocks=(9,), decodes=1,
            budget=64,
        )
    ).SerializeToString(),
}  # fmt: skip
"""What a scheduler of this release sends to an executor."""


def expected() -> dict[str, Any]:
    """What a reader finds in the entries."""
    return {name: msgspec.to_builtins(entry, str_keys=True) for name, entry in ENTRIES.items()}


def named() -> dict[str, list[str]]:
    """What others' commands, files and dashboards name."""
    return {
        "settings": sorted(f"{leaf.section}.{leaf.name}" for leaf in leaves()),
        "metrics": sorted(metric.name for metric in names.METRICS),
    }


def main() -> None:
    folder = FOLDER / VERSION
    folder.mkdir(parents=True)  # bytes of a release are written once
    for name, entry in ENTRIES.items():
        (folder / f"{name}.bin").write_bytes(encode(entry))
    for name, message in MESSAGES.items():
        (folder / f"{name}.bin").write_bytes(message)
    for name, content in (("expected", expected()), ("names", named())):
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        (folder / f"{name}.json").write_bytes(text + b"\n")
    print(folder)


if __name__ == "__main__":
    main()
