"""Constrained sequences on the real model: what ends by itself fits, whatever happens around it."""

import json
import os
import re
import signal
from typing import Any

import jsonschema_rs
import pytest

from pillion.contracts import executor_pb2 as pb
from pillion.executor.engine import Engine
from pillion.modelfiles import Located
from pillion.modelfiles.vocabulary import Vocabulary, vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
        "place": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "tags", "place"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"at": {"type": "number", "maximum": 90}, "old": {"type": "boolean"}},
            "required": ["at", "old"],
            "additionalProperties": False,
        }
    },
    "x-guidance": {"whitespace_pattern": "[ \\n]{1,2}"},
}  # fmt: skip
CALL = """
start: "<call>" one "</call>"
one: %json {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}},
            "required": ["city"], "additionalProperties": false}
"""
CONSTRAINTS = {
    "json": pb.Constraint(kind="json", text=json.dumps(SCHEMA)),
    "regex": pb.Constraint(kind="regex", text=r"[A-Z][a-z]{2,8}(, [a-z]+){0,3}\."),
    "lark": pb.Constraint(kind="lark", text=CALL),
    "ebnf": pb.Constraint(kind="ebnf", text='root ::= "yes" | "no" ", " [a-z]+ "!"'),
}


@pytest.fixture(scope="module")
def known(demo: Located) -> Vocabulary:
    return vocabulary(demo)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return list(range(300, 330))


def text(known: Vocabulary, tokens: list[int]) -> str:
    return b"".join(known.pieces[token] for token in tokens if token not in known.special).decode()


def fits(kind: str, value: str) -> bool:
    match kind:
        case "json":
            return bool(jsonschema_rs.is_valid(SCHEMA, json.loads(value)))
        case "regex":
            return re.fullmatch(CONSTRAINTS["regex"].text, value) is not None
        case "lark":
            inner = json.loads(value.removeprefix("<call>").removesuffix("</call>"))
            return value.startswith("<call>{") and list(inner) == ["city"] and len(inner["city"]) <= 9
        case _:
            return re.fullmatch("yes|no, [a-z]+!", value) is not None


def wishes(count: int) -> list[dict[str, Any]]:
    kinds = list(CONSTRAINTS)
    return [
        {
            "seed": seed,
            "temperature": (0.0, 0.7, 1.0, 2.0)[seed // 4 % 4],
            "top_p": (1.0, 0.9)[seed % 3 == 1],
            "min_p": (0.0, 0.05)[seed % 5 == 1],
            "top_k": (0, 40)[seed % 7 == 1],
            "repetition_penalty": (1.0, 1.2)[seed % 11 == 1],
            "constraint": CONSTRAINTS[kinds[seed % 4]],
        }
        for seed in range(count)
    ]


def test_what_ends_by_itself_fits(
    demo_bfloat16: Engine, drive: Any, known: Vocabulary, prompt: list[int]
) -> None:
    driver = drive(demo_bfloat16, record=False)
    sequences = [driver.add(prompt, 90, **sampling) for sampling in wishes(32)]
    driver.finish(sequences)
    ended = set()
    for number, sequence in enumerate(sequences):
        assert not sequence.error
        if sequence.finish == pb.STOP:
            assert sequence.tokens[-1] in known.ends
            kind, value = sequence.sampling["constraint"].kind, text(known, sequence.output)
            assert fits(kind, value), value
            ended.add((kind, number))
    assert {kind for kind, _ in ended} == set(CONSTRAINTS) and len(ended) > 15


def test_nothing_around_a_sequence_changes_it(demo_bfloat16: Engine, drive: Any, prompt: list[int]) -> None:
    """Alone, in a batch with free rows, taken away and again in the middle, several tokens a plan: the same.
    The free rows have those that they have by themselves."""
    sampling = {"temperature": 1.0, "seed": 5, "constraint": CONSTRAINTS["json"], "frequency_penalty": 0.4}
    free = [{"temperature": 1.0, "seed": seed} for seed in (1, 2)]
    expected = []
    for wish in (sampling, *free):
        driver = drive(demo_bfloat16, record=False)
        expected.append(driver.add(prompt, 24, **wish))
        driver.finish(expected[-1:])
    driver = drive(demo_bfloat16, record=False)
    first, constrained, last = (driver.add(prompt, 24, **wish) for wish in (free[0], sampling, free[1]))
    for sequence in (first, constrained, last):
        driver.step([(sequence, len(prompt))])
    for _ in range(9):
        driver.step([(sequence, 1) for sequence in (first, constrained, last)])
    driver.drop(constrained)
    driver.step([(first, 1), (last, 1)])
    driver.start(constrained)
    assert len(constrained.output) == 10
    driver.step([(constrained, len(constrained.tokens))])
    driver.finish([first, constrained, last], steps=3)
    assert [constrained.output, first.output, last.output] == [one.output for one in expected]
    assert len(constrained.output) > 20


def test_several_steps_in_one_plan_and_one_that_raises(
    demo_bfloat16: Engine, drive: Any, prompt: list[int]
) -> None:
    """Masks go with the tokens; those of a plan that failed are taken back from the grammar too."""
    found = []
    for steps, owner, name in (
        (1, None, ""),
        (4, demo_bfloat16.model, "logits"),  # the mask is being made
        (4, demo_bfloat16._sampler, "expect"),  # the grammar has not been told of the last token
    ):
        driver = drive(demo_bfloat16, record=False)
        sequences = [driver.add(prompt, 18, **sampling) for sampling in wishes(4)]
        for sequence in sequences:
            driver.step([(sequence, len(prompt))])
        if owner is not None:
            real, calls = getattr(owner, name), []

            def raising(given: Any, real: Any = real, calls: list[int] = calls) -> Any:
                calls.append(len(given))
                if len(calls) == 3:
                    raise RuntimeError("no memory")
                return real(given)

            plan = driver.plan([(sequence, 1) for sequence in sequences], steps)
            setattr(owner, name, raising)
            try:
                with pytest.raises(RuntimeError, match="no memory"):
                    demo_bfloat16.run(plan)
            finally:
                delattr(owner, name)
        driver.finish(sequences, steps=steps)
        found.append([(sequence.output, sequence.finish) for sequence in sequences])
    assert found[0] == found[1] == found[2]
    assert max(len(output) for output, _ in found[0]) > 8


def test_a_grammar_that_cannot_be_kept_fails_alone(
    demo_bfloat16: Engine, drive: Any, prompt: list[int]
) -> None:
    driver = drive(demo_bfloat16, record=False)
    broken = driver.add(prompt, 8, constraint=pb.Constraint(kind="lark", text="start: foo"))
    unknown = driver.add(prompt, 8, constraint=pb.Constraint(kind="xml", text="<a>"))
    other = driver.add(prompt, 8, constraint=CONSTRAINTS["ebnf"])
    driver.step([(broken, len(prompt)), (unknown, len(prompt)), (other, len(prompt))])
    assert broken.finish == unknown.finish == pb.ERROR
    assert 'unknown name: "foo"' in broken.error and "kind" in unknown.error
    driver.finish([other])
    assert other.finish in (pb.STOP, pb.LENGTH) and len(other.output) > 1


def test_a_complete_text_ends_its_sequence_whatever_was_wished(
    demo_bfloat16: Engine, drive: Any, known: Vocabulary, prompt: list[int]
) -> None:
    driver = drive(demo_bfloat16, record=False)
    constraint = pb.Constraint(kind="regex", text="no")
    sequence = driver.add(prompt, 12, constraint=constraint, ignore_eos=True, min_tokens=9)
    driver.finish([sequence])
    assert sequence.finish == pb.STOP and text(known, sequence.output) == "no"
    assert [token for token in sequence.output if token in known.ends] == sequence.output[-1:]


def test_a_request_that_contradicts_itself_ends_alone_and_names_its_fields(
    demo_bfloat16: Engine, drive: Any, known: Vocabulary, prompt: list[int]
) -> None:
    driver = drive(demo_bfloat16, record=False)
    only = [known.pieces.index(b"n")]
    constraint = pb.Constraint(kind="regex", text="no")
    sequence = driver.add(prompt, 12, constraint=constraint, allowed_token_ids=only, min_tokens=1)
    other = driver.add(prompt, 3)
    driver.finish([sequence, other])
    assert (sequence.output, sequence.finish) == (only, pb.IMPOSSIBLE)
    assert "after 1 tokens" in sequence.error
    assert "guided_..., tools), allowed_token_ids." in sequence.error
    assert len(other.output) == 3 and not other.error


def test_a_grammar_process_that_is_killed_changes_nothing(
    demo_bfloat16: Engine, drive: Any, prompt: list[int]
) -> None:
    sampling = {"temperature": 1.0, "seed": 8, "constraint": CONSTRAINTS["regex"]}
    driver = drive(demo_bfloat16, record=False)
    undisturbed = driver.add(prompt, 20, **sampling)
    driver.finish([undisturbed])
    driver = drive(demo_bfloat16, record=False)
    sequence = driver.add(prompt, 20, **sampling)
    driver.step([(sequence, len(prompt))])
    killed = demo_bfloat16.grammars.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    driver.finish([sequence])
    assert demo_bfloat16.grammars.pid not in (None, killed)
    assert sequence.output == undisturbed.output and len(sequence.output) > 2
