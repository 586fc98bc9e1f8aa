# ruff: noqa: E501 - lines of templates are what they are
"""Templates that attack: each is tried in a process with little memory, and must end as ours."""

import json
import subprocess
import sys
from typing import Any

import pytest

from pillion.gateway import sandbox
from pillion.gateway.guard import Guard
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.modelfiles import SpecialTokens

NS = "{% set ns = namespace(x=['a' * 999], t='a' * 999, n=2) %}"
LOOP = "{% for a in range(99999) %}"
END = "{% endfor %}"

ITSELF = "{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}" + END

# Each is refused: in time, and in memory.
REFUSED = {
    "multiplied text": "{{ 'x' * 10 ** 10 }}",
    "multiplied from the left": "{{ 10 ** 10 * 'x' }}",
    "multiplied variable": "{% set x = 'x' %}{% set n = 9999999999 %}{{ x * n }}",
    "multiplied list": "{{ ([1] * 10 ** 10) | length }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a tower of powers": "{{ 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 ** 9 }}",
    "a negative power": "{{ 9 ** -(9 ** 9) }}",
    "powers in a loop": NS + LOOP + "{% set ns.n = ns.n * ns.n %}" + END,
    "doubled with +": NS + LOOP + "{% set ns.t = ns.t + ns.t %}" + END,
    "doubled with ~": NS + LOOP + "{% set ns.t = ns.t ~ ns.t %}" + END,
    "doubled list": NS + LOOP + "{% set ns.x = ns.x + ns.x %}" + END,
    "doubled with join": NS + LOOP + "{% set ns.t = [ns.t, ns.t] | join %}" + END,
    "doubled with the method join": NS + LOOP + "{% set ns.t = ns.t.join(['a', 'b', 'c']) %}" + END,
    "doubled with replace": NS + LOOP + "{% set ns.t = ns.t.replace('a', 'aa') %}" + END,
    "doubled with the filter replace": NS + LOOP + "{% set ns.t = ns.t | replace('a', 'aa') %}" + END,
    "doubled with %": NS + LOOP + "{% set ns.t = '%s%s' % (ns.t, ns.t) %}" + END,
    "doubled with format": NS + LOOP + "{% set ns.t = '{0}{0}'.format(ns.t) %}" + END,
    "doubled by a macro": "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}" + NS + LOOP + "{% set ns.t = m(ns.t) %}" + END,
    "doubled by a block": NS + LOOP + "{% set t %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = t %}" + END,
    "repeated in a block": NS + "{% set ns.t = ns.t * 9999 %}{% set t %}" + LOOP + "{{ ns.t }}" + END + "{% endset %}",
    "a list of itself, written": NS + ITSELF + "{{ ns.x }}",
    "a list of itself, as text": NS + ITSELF + "{{ ns.x | string | length }}",
    "a list of itself, as JSON": NS + ITSELF + "{{ ns.x | tojson }}",
    "a list of itself, in a text": NS + ITSELF + "{{ '%s' % (ns.x,) }}",
    "a list of itself, formatted": NS + ITSELF + "{{ '{}'.format(ns.x) }}",
    "a list of itself, joined": NS + ITSELF + "{{ ns.x | join }}",
    "kept slices": NS + "{% set ns.t = ns.t * 9999 %}" + LOOP + "{% set ns.x = ns.x + [ns.t[1:]] %}" + END,
    "kept uppers": NS + "{% set ns.t = ns.t * 9999 %}" + LOOP + "{% set ns.x = ns.x + [ns.t.upper()] %}" + END,
    "kept filtered": NS + "{% set ns.t = ns.t * 9999 %}" + LOOP + "{% set ns.x = ns.x + [ns.t | upper] %}" + END,
    "kept ranges": NS + LOOP + "{% set ns.x = ns.x + [range(99999) | list] %}" + END,
    "a wide field": "{{ '%2000000000d' % 1 }}",
    "a field as wide as told": "{{ '%*d' % (9999999999, 1) }}",
    "a wide format": "{{ '{:>2000000000}'.format(1) }}",
    "a format as wide as told": "{{ '{:>{}}'.format(1, 9999999999) }}",
    "a wide format_map": "{{ '{x:>9999999999}'.format_map({'x': 1}) }}",
    "a wide filter format": "{{ '%9999999999d' | format(1) }}",
    "ljust": "{{ 'x'.ljust(9999999999) }}",
    "center": "{{ 'x'.center(9999999999) }}",
    "zfill": "{{ 'x'.zfill(9999999999) }}",
    "expandtabs": "{{ ('\\t' * 99999).expandtabs(99999) }}",
    "to_bytes": "{{ (1).to_bytes(9999999999, 'big') }}",
    "translate": "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "indent": "{{ 'x' | indent(9999999999, true) }}",
    "indent with a text": "{{ ('x\\n' * 99999) | indent('y' * 99999) }}",
    "JSON, far indented": "{{ [1] | tojson(indent=9999999999) }}",
    "JSON, indented with a text": "{{ ([1] * 99999) | tojson(indent='y' * 99999) }}",
    "rounded": "{{ 1.5 | round(9999999999, 'floor') }}",
    "a sum of lists": NS + "{% set ns.x = [[1] * 999] * 99999 %}{{ ns.x | sum(start=[]) | length }}",
    "a huge range": "{{ range(10 ** 9) | list | length }}",
    "batch": "{{ [1] | batch(9999999999, 0) | list | length }}",
    "lipsum": "{{ lipsum(9999999) }}",
    "loops in loops without a call": "{% set r = range(99999) %}" + 4 * "{% for a in r %}" + 4 * END,
    "loops in loops": LOOP + LOOP + LOOP + END + END + END,
    "a loop in itself": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "a macro in itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro twice in itself": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "calls in calls": "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{% endcall %}{% call m(n - 1) %}{% endcall %}{% endif %}{{ caller() }}{% endmacro %}{% call m(50) %}{% endcall %}",
    "long expressions in a loop": LOOP + "{% set x = range(99999) | map('string') | map('upper') | list | length %}" + END,
    "a step of its own": "{% set step = 1 %}{% set environment = 1 %}" + LOOP + LOOP + END + END,
    "the class": "{{ messages.__class__.__mro__ }}",
    "the class by filter": "{{ messages | attr('__class__') | string }}",
    "the class by format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "the class by format_map": "{{ '{x.__class__.__mro__}'.format_map({'x': messages}) }}",
    "the class by index": "{{ messages['__class__'].__base__ }}",
    "a frame": "{{ raise_exception.__globals__ }}",
    "the globals of a function": "{{ strftime_now.__globals__['__builtins__'] }}",
    "the environment": "{{ self.__init__ }}{{ self._TemplateReference__context.environment.loader.x }}",
    "the context": "{{ m.caller.__func__.x }}",
    "a macro's code": "{% macro m() %}{% endmacro %}{{ m._func.__code__.co_code }}",
    "a generator's frame": "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "an import": "{% import 'os' as os %}{{ os }}",
    "an include": "{% include '/etc/passwd' %}",
    "what another parent has": "{% extends '/etc/passwd' %}",
    "a changed list": "{{ messages.append(1) }}",
    "a changed message": "{{ messages[0].update({'role': 'x'}) }}",
    "a changed message, cleared": "{{ messages[0].clear() }}",
    "a function's text": "{{ raise_exception }}",
    "a generator's text": "{{ messages | map('upper') }}",
}  # fmt: skip

# What the sandbox takes away is undefined, and written as nothing.
NOTHING = ("the class by filter", "a frame")

_RUN = """
import json, resource, sys, time
from pillion.gateway.guard import Guard
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.modelfiles import SpecialTokens

from pillion.gateway import sandbox

# Tighter, so that the tries are over sooner; what has no bound has none here either.
sandbox.SECONDS, sandbox.MAX_STEPS, sandbox.MAX_WORK = 2.0, 200_000, 64 << 20
messages = [{"role": "user", "content": "Hello"}]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for name, source in json.load(sys.stdin).items():
    begin, before = time.monotonic(), peak()
    try:
        said = "WROTE " + ChatTemplate({"default": source}, SpecialTokens(), Guard(())).render(messages)[:200]
    except TemplateError as error:
        said = str(error)[:2000]
    except BaseException as error:
        said = f"FELL {error!r}"[:2000]
    print(json.dumps([name, said, time.monotonic() - begin, peak() - before]), flush=True)
"""


@pytest.fixture(scope="module")
def tried() -> dict[str, tuple[str, float, int]]:
    """What came of each: what was said, seconds, bytes that the process grew by."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN], input=json.dumps(REFUSED), capture_output=True, text=True, timeout=170,
        check=False,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(REFUSED), f"it ended after {results[-1:]}: {done.stderr[-2000:]}"
    return {name: (said, seconds, grown) for name, said, seconds, grown in results}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_template_may_not_do(tried: dict[str, tuple[str, float, int]], name: str) -> None:
    said, seconds, grown = tried[name]
    if said == "WROTE ":
        assert name in NOTHING
        return
    assert not said.startswith(("WROTE", "FELL")), said
    assert said.startswith(("the chat template", "the rendered chat")) and "\n" not in said
    assert not said.endswith("messages: "), "its memory came to an end, and not its account"
    assert seconds < 40, "two of its own, on a busy machine"
    assert grown < 256 << 20


def render(source: str, **message: Any) -> str:
    template = ChatTemplate({"default": source}, SpecialTokens(), Guard(()))
    return template.render([{"role": "user", "content": "Hello\nyou"} | message])


@pytest.mark.parametrize(
    ("bound", "value", "source", "words"),
    [
        ("MAX_STEPS", 3, "{% for a in [1] * 4 %}{% endfor %}", "it does not come to an end"),
        ("SECONDS", -1.0, "{% for a in [1] * 4 %}{% endfor %}", "it does not come to an end"),
        ("MAX_TEXT", 15, "{{ messages[0].role * 4 }}", "longer than 15 characters"),
        ("MAX_WORK", 31, "{% for a in 'ab' %}{% set x = messages[0].role * 4 %}{% endfor %}", "more text than it may"),
    ],
)  # fmt: skip
def test_each_bound_holds_alone(monkeypatch: Any, bound: str, value: float, source: str, words: str) -> None:
    render(source)
    monkeypatch.setattr(sandbox, bound, value)
    with pytest.raises(TemplateError, match=words):
        render(source)


class Counted(sandbox.Account):
    """What a rendering was charged, in all."""

    last: "Counted"

    def __init__(self) -> None:
        super().__init__()
        self.charged = [0, 0]  # characters, steps
        Counted.last = self

    def step(self) -> None:
        self.charged[1] += 1
        super().step()

    def take(self, characters: int) -> None:
        self.charged[0] += characters
        super().take(characters)


@pytest.mark.parametrize(
    ("source", "characters", "steps"),
    [  # c is a text of 100 characters, l a list of three numbers, which are 9 characters when written
        ("{{ c }}", 0, 0),
        ("{{ c ~ c }}", 200, 0),
        ("{{ c + c }}", 200, 1),
        ("{{ c * 3 }}", 300, 1),
        ("{{ 3 * c }}", 300, 1),
        ("{% set x = l + l %}", 2 * 96, 1),
        ("{% set x = l * 2 %}", 2 * 96, 1),
        ("{{ c[1:] }}", 99, 0),
        ("{{ c.upper() }}", 100, 1),
        ("{{ c | upper }}", 100, 1),
        ("{{ l }}", 96 + 9, 4),
        ("{{ l | string }}", 96 + 9, 4),
        ("{{ l | tojson }}", 96 + 9, 5),
        ("{{ {'k': c} | tojson }}", 1 + 100 + 109, 4),
        ("{{ '%s' % c }}", 64 + 32 + 100 + 100, 5),
        ("{{ '%s' | format(c) }}", 64 + 32 + 100 + 100 + 100, 5),
        ("{{ '{0}{0}'.format(c) }}", 64 + 32 + 100 + 200 + 200, 5),
        ("{{ [c, c] | join(c) }}", 2 * 200 + 300, 3),
        ("{{ c.join([c, c]) }}", 2 * 100 + 2 * 100 + 300, 1),
        ("{{ c.replace('x', 'yy') }}", 100 + 200 + 200, 1),
        ("{{ c | replace('x', 'yy') }}", 100 + 200 + 200, 1),
        ("{{ c | indent(9, true) }}", 109 + 109, 1),
        ("{{ c.ljust(200) }}", 200 + 200, 1),
        ("{{ c.expandtabs(9) }}", 9 * 101 + 100, 1),
        ("{{ l | sum }}", 0, 1 + 3 + 3),
        ("{{ range(9) | list | length }}", 9 * 32, 3),
        ("{% for a in l %}{% endfor %}", 0, 3),
        ("{% macro m() %}{{ c }}{% endmacro %}{{ m() }}", 100 + 100, 2),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}", 0, 4),
        ("{% set t %}{{ c }}{{ c }}{% endset %}", 200, 0),
    ],
)
def test_all_that_is_made_is_charged(monkeypatch: Any, source: str, characters: int, steps: int) -> None:
    """Before it is made, where it can be told, and after: so each of the two is seen here."""
    monkeypatch.setattr(sandbox, "Account", Counted)
    names = "{% set c, l = messages[0].content, messages[0].numbers %}"
    render(names + source, content="x" * 100, numbers=[1, 2, 3])
    assert Counted.last.charged == [characters, steps]


def test_numbers_and_patterns_are_bounded() -> None:
    with pytest.raises(TemplateError, match="a number that is too large"):
        render("{% set n = 2 ** 30000 %}{% set n = n * n * n %}")
    assert render("{{ strftime_now('%Y' * 9999) | length }}") == "2000", "of a pattern of 1000 characters"


@pytest.mark.parametrize("name", ["batch", "center", "pprint", "slice", "urlize", "wordwrap", "xmlattr"])
def test_filters_that_nobody_needs_are_not_there(name: str) -> None:
    with pytest.raises(TemplateError, match=f"No filter named '{name}'"):
        render("{{ 'x' | " + name + " }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' * 3 }}{{ 2 * 'b' }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] + [2] }}", "aaabb10243[1, 2]"),
        ("{{ 'a' ~ 1 ~ none ~ [1] }}", "a1None[1]"),
        ("{{ '%s-%03d' % ('x', 7) }}{{ '{:>3}'.format(7) }}{{ '%s' | format('y') }}", "x-007  7y"),
        ("{{ messages[0].content.split('\\n') | join(', ') }}", "Hello, you"),
        ("{{ ', '.join(messages | map(attribute='role')) }}", "user"),
        ("{{ messages | join('|', attribute='role') }}", "user"),
        (
            "{{ messages[0].content | indent(2) }}|{{ messages[0].content | indent }}",
            "Hello\n  you|Hello\n    you",
        ),
        ("{{ 'aXbX' | replace('X', '-') }}{{ 'aa'.replace('a', 'b', 1) }}", "a-b-ba"),
        ("{{ 2.567 | round(1) }}{{ [1, 2] | sum }}{{ [{'n': 3}] | sum('n') }}", "2.633"),
        (
            "{{ {'a': ['é', none, true]} | tojson }}{{ [1] | tojson(indent=2) }}",
            '{"a": ["é", null, true]}[\n  1\n]',
        ),
        (
            "{% set ns = namespace(n=0) %}{% for a in range(5) %}{% set ns.n = ns.n + a %}{% endfor %}{{ ns.n }}",
            "10",
        ),
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}{% macro c(x) %}{{ x }}{{ caller() }}{% endmacro %}{{ m('a') }}{% call c('b') %}!{% endcall %}",
            "<a>b!",
        ),
        ("{{ x is defined }}{{ none }}{{ messages[0].nothing }}|{{ 1.5 }}{{ true }}", "FalseNone|1.5True"),
        ("{{ messages[0] }}", "{'role': 'user', 'content': 'Hello\\nyou'}"),
        ("{% filter upper %}{{ messages[0].role }}{% endfilter %}{{ messages[-1:] | length }}", "USER1"),
    ],
)
def test_what_templates_do_all_day(source: str, text: str) -> None:
    assert render(source) == text


def test_long_chats_are_within_bounds() -> None:
    """Two thousand messages, a text that grows in a namespace, a table written as JSON for each."""
    source = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.role ~ m.content %}"
        "{{ m | tojson }}{% for c in range(50) %}{% endfor %}{% endfor %}{{ ns.t | length }}"
    )
    template = ChatTemplate({"default": source}, SpecialTokens(), Guard(()))
    messages = [{"role": "user", "content": "x" * 100}] * 2000
    assert template.render(messages).endswith("208000")


def test_each_rendering_has_its_own_account() -> None:
    source = "{% for a in range(90000) %}{% set x = 'y' * 1000 %}{% endfor %}ok"
    assert [render(source) for _ in range(4)] == ["ok"] * 4
