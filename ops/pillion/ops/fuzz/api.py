"""schemathesis over the API that the gateway describes of itself."""

import json
import random
import time
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode

from pillion.ops import web
from pillion.ops.fuzz.findings import Findings

LEAST_FINE = 0.2  # share of answers that must be 2xx, so that it is not only the validation that is tried
_ROUND = 12  # cases of one operation before the next has its turn
_SECONDS = 60.0  # for one answer
_EVENTS = 10_000  # of a stream: it is read to its end
_SHORT = {"max_tokens": 6, "max_completion_tokens": 6, "min_tokens": 6, "n": 3, "best_of": 3}
_BOTH = ("POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize", "POST /detokenize")


def run(url: str, seed_: int, seconds: float) -> Findings:
    """Cases of all operations in turn; most are made to be valid, the rest not to be."""
    _, document = web.get(f"{url}/openapi.json")
    schema = schemathesis.openapi.from_dict(document)
    schema.config.max_stream_events = _EVENTS
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    findings, rng, until = Findings("api"), random.Random(seed_), time.monotonic() + seconds
    while time.monotonic() < until:
        for operation in sorted(operations, key=lambda one: one.label not in _BOTH):
            modes = [GenerationMode.POSITIVE]
            if operation.label in _BOTH:
                modes += [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
            for mode in modes:
                strategy = operation.as_strategy(generation_mode=mode)
                _round(strategy, url, mode, rng, until, findings)
    fine = sum(count for what, count in findings.outcomes.items() if what.startswith("2"))
    if findings.inputs and fine / findings.inputs <= LEAST_FINE:
        findings.blame(f"only {fine} of {findings.inputs} were answered with 2xx")
    return findings


def _round(
    strategy: Any, url: str, mode: GenerationMode, rng: random.Random, until: float, findings: Findings
) -> None:
    @seed(rng.getrandbits(32))
    @settings(
        max_examples=_ROUND,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=strategy)
    def cases(case: Any) -> None:
        if time.monotonic() >= until:
            return
        if isinstance(case.body, dict):
            if mode is GenerationMode.POSITIVE and rng.random() < 0.8:
                case.body = agreeing(case.body)
            case.body = short(case.body)
        _judge(case, case.call(base_url=url, timeout=_SECONDS), findings)

    try:
        cases()
    except Unsatisfiable:
        return  # an operation without anything to vary has no invalid case


def short(body: dict[str, Any]) -> dict[str, Any]:
    """The same wish for less: what is tried here is not endurance."""
    result = dict(body)
    for name, most in _SHORT.items():
        if type(value := result.get(name)) is int and value > most:
            result[name] = 1 + value % most
    if "messages" in result or "prompt" in result:
        result.setdefault("max_tokens", 4)
    return result


def agreeing(body: dict[str, Any]) -> dict[str, Any]:
    """A body of valid fields, less those that contradict another."""
    result: dict[str, Any] = {name: _whole(value) for name, value in body.items() if value is not None}
    if not result.get("stream"):
        result.pop("stream_options", None)
    if not result.get("logprobs"):
        result.pop("top_logprobs", None)
    for name in ("continue_final_message", "best_of", "max_completion_tokens", "min_tokens", "request_id"):
        result.pop(name, None)
    for name in ("stop_token_ids", "logit_bias"):
        result.pop(name, None)  # ids outside the vocabulary, nearly all
    if isinstance(result.get("prompt"), list):
        result["prompt"] = _ids(result["prompt"])
    if "tokens" in result:
        result["tokens"] = _ids(result["tokens"])
    if "prompt" in result and "messages" in result:
        del result["messages"]
    return result


def _whole(value: Any) -> Any:
    """JSON Schema's integers may be written 3.0; here they may not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _ids(value: Any) -> Any:
    """Token ids brought into any vocabulary."""
    if isinstance(value, list):
        return [_ids(item) for item in value[:50]]
    return value % 250 if type(value) is int else value


def _judge(case: Any, answer: Response, findings: Findings) -> None:
    sent = f"{case.method} {case.formatted_path} {str(case.body)[:1000]}"
    status, content = answer.status_code, bytes(answer.content)
    reasoned = status == 503 and (b'"code"' in content or case.formatted_path.startswith("/health"))
    if status >= 500 and not reasoned:
        findings.blame(f"{status} {content[:300]!r}", sent)
        return
    if 400 <= status < 500 and case.method != "HEAD" and not _is_error(content):
        findings.blame(f"{status} without an error in OpenAI's shape: {content[:300]!r}", sent)
        return
    kind = answer.headers.get("content-type", [""])[0]
    if kind.startswith("text/event-stream"):
        if not content.endswith(b"data: [DONE]\n\n"):
            findings.blame(f"a stream without its end: {content[-200:]!r}", sent)
            return
        if b'data: {"error"' in content:
            findings.blame(f"a stream that failed: {content[-400:]!r}", sent)
            return
    findings.note(str(status))


def _is_error(content: bytes) -> bool:
    try:
        error = json.loads(content)["error"]
        return set(error) == {"message", "type", "param", "code"} and bool(error["message"])
    except (ValueError, KeyError, TypeError):
        return False
