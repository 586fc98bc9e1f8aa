"""The grammar process: what it says of constraints, and what becomes of its slots when one is hostile."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pillion.contracts.entries import Constraint
from pillion.grammar import Grammars, GrammarsGone, wire, worker
from pillion.grammar.wire import CURRENT, Made
from pillion.modelfiles import Located, locate
from pillion.modelfiles.vocabulary import vocabulary
from tests.conftest import TinyModel

V = 320
A = 3 + ord("a") - 0x21  # the token of that letter
# Determinized it has more states than there are atoms.
HOSTILE = Constraint("lark", "start: A\nA: ~/(.*)a(.*)/ & ~/(.*)b.{50}(.*)/ & /.{0,500}/")
LARGE = Constraint("json", '{"type": "integer", "multipleOf": 1000003}')


@pytest.fixture(scope="module")
def located(tiny_model: TinyModel) -> Located:
    return locate(str(tiny_model("llama3")))


@pytest.fixture
def grammars(located: Located) -> Iterator[Grammars]:
    grammars = Grammars(located, V, 4, seconds=0.3)
    yield grammars
    grammars.end()


def schema(**of: object) -> Constraint:
    return Constraint("json", json.dumps(of))


WRONG = {
    "keyword": (
        schema(type="object", properties={"a/b": {"type": "array", "items": {"not": {}}}}),
        'Unimplemented keys: ["not"] (at #/properties/a~1b/items)',
    ),
    "definition": (
        schema(**{"$ref": "#/$defs/q", "$defs": {"q": {"type": "string", "format": "zzz"}}}),
        "Unknown format: zzz (at #/$defs/q)",
    ),
    "alternative": (
        schema(anyOf=[{"type": "null"}, {"type": "strange"}]), "Invalid type: strange (at #/anyOf/1)"
    ),
    "unsatisfiable": (
        schema(type="integer", minimum=5, maximum=3),
        "Unsatisfiable schema: minimum (5) is greater than maximum (3) (at #)",
    ),
    "endless": (schema(**{"$ref": "#"}), "no text fits it (at #)"),
    "pattern": (
        schema(properties={"a": {"items": {"pattern": "(?=x)"}}, "c": {"pattern": "("}}),
        "a pattern cannot be read: look-around, including look-ahead and look-behind, is not supported "
        "(at #/properties/a/items)",
    ),
    "one of many": (
        schema(properties={f"p{number}": {"not": {}} if number == 997 else {} for number in range(999)}),
        'Unimplemented keys: ["not"] (at #/properties/p997)',
    ),
    "lenient": (
        schema(properties={"a": {"not": {}}, "b": {"pattern": "("}}, **{"x-guidance": {"lenient": True}}),
        "a pattern cannot be read: unclosed group (at #/properties/b)",
    ),
    "blanks": (
        schema(properties={"a": {}}, **{"x-guidance": {"whitespace_pattern": "("}}),
        "a pattern cannot be read: unclosed group (at #)",
    ),
    "elsewhere": (schema(**{"$ref": "http://x/y"}), "Resource 'http://x/y' is not present"),
    "deep": (Constraint("json", '{"items":' * 5000 + "{}" + "}" * 5000), "it is nested too deeply"),
    "look-ahead": (
        Constraint("regex", "(?=a)b"), "look-around, including look-ahead and look-behind, is not supported"
    ),
    "unclosed": (Constraint("regex", "(a"), "unclosed group"),
    "anchor inside": (Constraint("regex", "a^b"), "lookarounds not supported yet"),
    "deep regex": (Constraint("regex", "(" * 5000 + "a" + ")" * 5000), "exceed"),
    "no rule": (Constraint("lark", "start: foo"), 'line 1, column 8: unknown name: "foo"'),
    "no start": (Constraint("lark", 'foo: "a"'), "no start rule found"),
    "deep lark": (Constraint("lark", "start: " + "(" * 9000), "line 1, column 37: lark grammar too deeply"),
    "cycle": (Constraint("lark", "start: start"), "no text fits it"),
    "not ebnf": (Constraint("ebnf", "root := x"), "Expected ::= at line 1"),
    "no ebnf rule": (Constraint("ebnf", "root ::= x"), "Rule 'x' not found"),
    "no ebnf root": (Constraint("ebnf", 'ROOT ::= "a"'), "No 'root' rule found"),
    "deep ebnf": (Constraint("ebnf", "root ::= " + "(" * 9000), "it is nested too deeply"),
}  # fmt: skip


def test_what_is_wrong_is_said_with_its_place(grammars: Grammars) -> None:
    for name, (constraint, words) in WRONG.items():
        error = grammars.check(constraint)
        assert error.startswith(words), (name, error)
        assert "\n" not in error and len(error) < 500
    for after in ("", "</a/b>"):
        for kind, text in (
            ("json", '{"type": "object"}'),
            ("regex", "a/b"),
            ("lark", 'start: "a" b\nb: "c"'),
            ("ebnf", 'root ::= "a" | b\nb ::= [0-9]+'),
        ):
            assert grammars.check(Constraint(kind, text, after)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("constraint", [HOSTILE, LARGE], ids=["time", "size"])
def test_a_hostile_grammar_ends_its_process_alone(grammars: Grammars, constraint: Constraint) -> None:
    assert grammars.check(schema(type="object")) == ""
    before = grammars.pid
    assert "more time or memory" in grammars.check(constraint)
    assert grammars.check(schema(type="object")) == ""
    assert grammars.pid not in (None, before)


def test_masks_stand_apart_in_any_order(grammars: Grammars) -> None:
    """The vocabulary fills whole words, and the last slot's mask ends with the shared memory."""
    assert V % 32 == 0
    for slot in range(4):
        grammars.open(slot, Constraint("regex", "[ab!]"), [])  # "!" is in a mask's first word
    grammars.ask([3, 2, 1, 0])
    masks = {slot: int.from_bytes(mask.bits, "little") for slot, mask in grammars.answer().items()}
    exclamation = A - ord("a") + ord("!")
    assert masks == dict.fromkeys(range(4), 1 << A | 1 << (A + 1) | 1 << exclamation)


def test_where_the_vocabulary_has_no_token_that_goes_on_nothing_is_allowed(located: Located) -> None:
    """It is then what was asked for that cannot be, and no failure."""
    known = vocabulary(located)
    few_tokens = known.pieces.index(b"z")
    few = worker.Grammars(known, few_tokens)
    few.open(0, Constraint("regex", "b?z"), [])
    few.open(1, Constraint("regex", "bz"), [known.pieces.index(b"b")])
    bits, _ = few.mask(0)
    assert [at for at in range(len(bits) * 8) if bits[at >> 3] >> (at & 7) & 1] == [known.pieces.index(b"b")]
    for _ in range(2):
        assert few.mask(1) == (bytes(wire.width(few_tokens)), Made(False))


def test_a_slot_that_fails_alone_leaves_no_answer_behind(grammars: Grammars) -> None:
    grammars.open(0, HOSTILE, [])
    grammars.ask([0])
    assert grammars.answer() == {} and "more time or memory" in grammars.why(0)
    for slot in (1, 2):
        grammars.open(slot, Constraint("regex", "a"), [])
    grammars.ask([1, 2])
    assert [int.from_bytes(mask.bits, "little") for mask in grammars.answer().values()] == [1 << A] * 2


def test_beside_a_hostile_grammar_the_other_slots_go_on(grammars: Grammars) -> None:
    grammars.open(0, Constraint("regex", "[ab]{2,4}"), [])
    grammars.open(1, HOSTILE, [])
    grammars.open(2, Constraint("regex", "x{3}"), [])
    grammars.ask([0, 1, 2])
    masks = grammars.answer()
    assert sorted(masks) == [0, 2] and "more time or memory" in grammars.why(1)
    first = bytes(masks[0].bits)
    grammars.note(0, A)
    grammars.ask([0, 1, 2])
    assert sorted(grammars.answer()) == [0, 2]
    grammars.close([1])
    grammars.open(1, Constraint("regex", "[ab]{2,4}"), [])  # the slot is another sequence's now
    grammars.ask([1])
    assert bytes(grammars.answer()[1].bits) == first


def test_while_a_grammar_is_compiled_for_later_masks_are_made(located: Located) -> None:
    grammars = Grammars(located, V, 2)
    grammars.open(0, Constraint("regex", "a*b"), [])
    grammars.ask([0])
    first = bytes(grammars.answer()[0].bits)
    with working(grammars.compile, 5, HOSTILE) as compiling:
        eventually(lambda: in_place(grammars) == 5)
        for _ in range(20):
            grammars.note(0, A)
            grammars.ask([0])
            assert bytes(grammars.answer()[0].bits) == first
        assert in_place(grammars) == 5 and compiling.is_alive(), "it was compiled in line"
        first_pid = grammars.pid
        kill(grammars)  # this time it may have been somebody else's fault
        eventually(lambda: grammars.pid not in (None, first_pid) and in_place(grammars) == 5)
        kill(grammars)
    grammars.open(1, HOSTILE, [])
    grammars.ask([0, 1])
    assert bytes(grammars.answer()[0].bits) == first and "more time or memory" in grammars.why(1)
    grammars.end()


def test_what_lies_in_a_place_is_not_compiled_again(located: Located) -> None:
    grammars = Grammars(located, V, 2, seconds=20.0)
    once = Constraint("json", '{"type": "integer", "multipleOf": 60013}')
    assert grammars.check(Constraint("regex", "a")) == "" and grammars.pid is not None
    before = processor_seconds(grammars.pid)
    grammars.compile(63, once)
    after = processor_seconds(grammars.pid)
    for slot in (0, 1):
        grammars.open(slot, once, [])
    grammars.compile(0, once)
    grammars.ask([0, 1])
    assert all(not mask.error for mask in grammars.answer().values())
    assert processor_seconds(grammars.pid) - after < (after - before) / 2
    grammars.end()


def test_what_cannot_be_compiled_for_later_fails_whoever_has_it(grammars: Grammars) -> None:
    grammars.compile(0, HOSTILE)
    grammars.compile(1, Constraint("lark", "start: foo"))
    grammars.open(0, HOSTILE, [])
    grammars.open(1, Constraint("lark", "start: foo"), [])
    grammars.ask([0, 1])
    known = grammars.pid
    assert "unknown name" in grammars.answer()[1].error and "more time or memory" in grammars.why(0)
    grammars.compile(0, Constraint("regex", "a"))  # the place is another's now
    assert grammars.pid == known
    grammars.open(0, HOSTILE, [])
    assert not grammars.why(0)


def test_tokens_that_wait_for_a_mask_are_told_once_to_a_new_process(grammars: Grammars) -> None:
    grammars.open(0, Constraint("regex", "aab"), [])
    assert grammars.pid is not None
    os.kill(grammars.pid, signal.SIGKILL)
    grammars.note(0, A)
    grammars.compile(0, Constraint("regex", "b"))  # finds out that it is gone, and starts another one
    grammars.note(0, A)
    grammars.ask([0])
    assert int.from_bytes(grammars.answer()[0].bits, "little") == 1 << A + 1


def test_a_killed_process_starts_again_with_the_tokens_so_far(grammars: Grammars) -> None:
    grammars.open(0, Constraint("regex", "aab"), [A])
    grammars.note(0, A)
    grammars.ask([0])
    undisturbed = bytes(grammars.answer()[0].bits)
    assert grammars.pid is not None
    os.kill(grammars.pid, signal.SIGKILL)
    grammars.ask([0])
    assert bytes(grammars.answer()[0].bits) == undisturbed
    assert int.from_bytes(undisturbed, "little") == 1 << A + 1, "a b, and nothing else"
    os.kill(grammars.pid, signal.SIGTERM)  # it is the caller's to end
    os.kill(grammars.pid, signal.SIGINT)
    grammars.ask([0])
    assert bytes(grammars.answer()[0].bits) == undisturbed


def test_without_a_tokenizer_it_does_not_stay_up(tmp_path: Path) -> None:
    grammars = Grammars(Located("folder", tmp_path, "x"), V, 1)
    with pytest.raises(GrammarsGone, match="tokenizer"):
        grammars.check(schema(type="object"))
    grammars.open(0, schema(type="object"), [])
    grammars.ask([0])
    assert grammars.answer() == {} and "does not stay up" in grammars.why(0)
    grammars.end()


def test_it_ends_with_its_caller(located: Located) -> None:
    code = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from pillion.contracts.entries import Constraint\n"
        "from pillion.grammar import Grammars\n"
        "from pillion.modelfiles import Located\n"
        f"grammars = Grammars(Located('folder', Path({str(located.path)!r}), 'x'), {V})\n"
        "assert not grammars.check(Constraint('regex', 'a'))\n"
        "print(grammars.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    caller = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert caller.returncode == -signal.SIGKILL, caller.stderr
    pid = int(caller.stdout)
    eventually(lambda: not alive(pid))


def kill(grammars: Grammars) -> None:
    assert grammars.pid is not None
    os.kill(grammars.pid, signal.SIGKILL)


@contextmanager
def working(function: Callable[..., None], *arguments: object) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()


def in_place(grammars: Grammars) -> int:
    """The place that is worked for."""
    return int(CURRENT.unpack_from(grammars._shared)[1])


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
