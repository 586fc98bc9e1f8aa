"""Where chat templates run: Jinja's sandbox, with bounds on what one rendering may take.

A template comes with the model's file, from wherever that was fetched. Jinja's sandbox keeps it from Python's
insides; here each rendering also has an account, on which every turn of a loop, every call and every text or
list that is made is charged. What has to grow with the input does; what grows without bound is refused.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

F = TypeVar("F", bound=Callable[..., Any])

MAX_TEXT = 16 << 20  # characters of one text
MAX_WORK = 256 << 20  # characters of all texts that are made
ELEMENT = 32  # characters that an element of a list or table counts as
MAX_STEPS = 1_000_000  # turns of loops, and calls
SECONDS = 5.0
_BITS = 1 << 16  # of an integer
_WIDTH = 1000  # of a field, an indentation

# Those that templates in the field use, and that take no more than they are given.
_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "reverse", "safe", "select", "selectattr", "sort", "title", "trim", "truncate", "unique", "upper",
    "urlencode", "wordcount",
)  # fmt: skip
_HIGH = re.compile("[\x80-\ud7ff\ue000-\U0010ffff]")  # but no surrogates: marks stay as they are
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\d{4,}|\*)")


class Exhausted(jinja2.TemplateError):
    """The template wants more than it may have."""


class Account:
    """What one rendering may still take."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._work = MAX_WORK
        self._end = time.monotonic() + SECONDS

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0 or time.monotonic() > self._end:
            raise Exhausted("it does not come to an end")

    def take(self, characters: int) -> None:
        """Before, or right after, so much is made."""
        self._work -= characters
        if characters > MAX_TEXT:
            raise Exhausted(f"it makes a text that is longer than {MAX_TEXT} characters")
        if self._work < 0:
            raise Exhausted("it makes more text than it may")

    def made(self, value: Any) -> Any:
        """Charges what was made, and gives it."""
        if isinstance(value, str | bytes):
            self.take(len(value))
        elif isinstance(value, list | tuple | dict):
            self.take(ELEMENT * len(value))
        return value


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs templates. Rendering happens within `account`, in the thread that entered it."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            autoescape=False,
            finalize=self.written,
        )
        self._local = threading.local()
        self.filters = {name: self._charged(FILTERS[name]) for name in _FILTERS}
        own = (self._format, self._indent, self._join, self._replace, self._round, self._sum, self._tojson)
        self.filters |= {function.__name__[1:]: self._charged(function) for function in own}
        self.filters["string"] = self.text
        for name in ("lipsum", "cycler"):
            self.globals.pop(name)
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: now().strftime(str(form)[:_WIDTH])

    @contextmanager
    def account(self) -> Iterator[None]:
        self._local.account = Account()
        try:
            yield
        finally:
            del self._local.account

    @property
    def _account(self) -> Account:
        # While a template is compiled, constants are computed: each has an account of its own.
        return getattr(self._local, "account", None) or Account()

    # --- what compiled templates call

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metered().visit(super()._parse(source, name, filename))
        return tree

    def step(self) -> str:
        self._account.step()
        return ""

    def concat(self, parts: Iterable[str]) -> str:
        """What a macro, or a block that is captured, has written."""
        texts = list(parts)
        self._account.take(sum(map(len, texts)))
        return "".join(texts)

    def joined(self, *parts: Any) -> str:
        """Jinja's `~`."""
        texts = [self.text(part) for part in parts]
        self._account.take(sum(map(len, texts)))
        return "".join(texts)

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """A slice."""
        return self._account.made(value[start:stop:step])

    def written(self, value: Any) -> Any:
        """What stands in `{{ }}`."""
        return (
            value
            if isinstance(value, str | int | float | jinja2.Undefined) or value is None
            else self.text(value)
        )

    def text(self, value: Any) -> str:
        """The value as text."""
        if isinstance(value, str):
            return value
        self._measure(value)
        return str(self._account.made(str(value)))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self = __self
        if getattr(__obj, "__self__", None) is self:  # those above
            return __obj(*args)
        self._account.step()
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str | bytes | int):
            args = self._method(__obj.__self__, __obj.__name__, args, kwargs)
        return self._account.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._account.step()
        match operator, left, right:
            case "+", (str() | list() | tuple()), (str() | list() | tuple()):
                self._account.take(_size(left) + _size(right))
            case "*", (str() | bytes() | list() | tuple()), int():
                self._account.take(_size(left) * max(right, 0))
            case "*", int(), (str() | bytes() | list() | tuple()):
                self._account.take(_size(right) * max(left, 0))
            case "*", int(), int() if left.bit_length() + right.bit_length() > _BITS:
                raise Exhausted("it makes a number that is too large")
            case "**", int(), int() if left.bit_length() * abs(right) > _BITS:
                raise Exhausted("it makes a number that is too large")
            case "%", str(), _:
                return self._format(left, *(right if isinstance(right, tuple) else (right,)))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`: the sandbox sees to its attributes, the fields' widths are seen to here."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            if re.search(r"\{[^{}]*:[^{}]*(?:\d{4,}|\{)", pattern):
                raise Exhausted("it writes a field that is too wide")
            self._measure((args, kwargs))
            return str(self._account.made(wrapped(*args, **kwargs)))

        return bounded

    # --- bounds

    def _charged(self, function: F) -> Any:
        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self._account.step()
            return self._account.made(function(*args, **kwargs))

        return charged

    def _measure(self, value: Any) -> None:
        """Charges all that hangs on a value, as often as it would be written. Other objects are refused."""
        account, stack = self._account, [value]
        while stack:
            account.step()
            match stack.pop():
                case str() | bytes() as text:
                    account.take(len(text))
                case dict() as table:
                    stack += table.keys()
                    stack += table.values()
                case list() | tuple() as items:
                    account.take(ELEMENT * len(items))
                    stack += items
                case None | bool() | int() | float() | jinja2.Undefined():
                    pass
                case other if not hasattr(other, "__html__"):
                    raise Exhausted(f"it writes a {type(other).__name__}, which is no text")

    def _method(
        self, value: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Charges what a method of a text or number will make. The arguments, maybe as lists."""
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int):
                # Widths and lengths; expandtabs has one for each tab.
                self._account.take(abs(argument) * (1 + (len(value) if name == "expandtabs" else 0)))
        match name, args:
            case (("translate" | "maketrans"), _):
                raise Exhausted(f"it calls {name}")
            case "replace", (old, new, *_) if isinstance(old, str) and isinstance(new, str):
                self._account.take(len(value) + value.count(old) * len(new))
            case "join", (items, *_):
                listed = list(items)
                self._account.take(sum(_size(item) for item in listed) + len(value) * len(listed))
                return (listed,)
        return args

    # --- filters

    def _format(self, pattern: Any, *args: Any, **kwargs: Any) -> str:
        if _WIDE.search(str(pattern)):
            raise Exhausted("it writes a field that is too wide")
        self._measure((args, kwargs))
        return str(self._account.made(str(pattern) % (kwargs or args)))

    def _indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self.text(value)
        indentation = width if isinstance(width, str) else " " * min(int(width), _WIDTH + 1)
        if len(indentation) > _WIDTH:
            raise Exhausted("it indents too far")
        self._account.take(len(text) + (text.count("\n") + 1) * len(indentation))
        indented: str = FILTERS["indent"](text, indentation, first, blank)
        return indented

    def _join(self, values: Any, between: Any = "", attribute: Any = None) -> str:
        getter = make_attrgetter(self, attribute) if attribute is not None else None
        between = self.text(between)
        texts: list[str] = []
        for value in values:
            self._account.step()
            texts.append(self.text(value if getter is None else getter(value)))
            self._account.take(len(texts[-1]) + len(between))
        joined: str = between.join(texts)
        return joined

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = self.text(value), self.text(old), self.text(new)
        self._account.take(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _round(self, value: Any, precision: int = 0, method: str = "common") -> Any:
        if abs(precision) > 100:
            raise Exhausted("it rounds to too many digits")
        return FILTERS["round"](value, precision, method)

    def _sum(self, values: Any, attribute: Any = None, start: float = 0) -> Any:
        getter = make_attrgetter(self, attribute) if attribute is not None else None
        for value in values:
            self._account.step()
            start = self.call_binop(None, "+", start, value if getter is None else getter(value))
        return start

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Jinja's own filter escapes for HTML, which is not what models were trained on."""
        self._measure(value)
        if indent is not None and len(indent if isinstance(indent, str) else " " * min(int(indent), 99)) > 16:
            raise Exhausted("it indents too far")
        written = json.dumps(
            value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return _HIGH.sub(_escaped, written) if ensure_ascii else written


class _Metered(NodeTransformer):
    """Each turn of a loop and each call of a macro takes a step; `~` and slices become calls."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.body.insert(0, _step(node.lineno))
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node.body.insert(0, _step(node.lineno))
        return self.generic_visit(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        node.body.insert(0, _step(node.lineno))
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        none = nodes.Const(None, lineno=node.lineno)
        return _call("cut", [node.node, *(bound or none for bound in bounds)], node.lineno)


def _step(line: int) -> nodes.Node:
    return nodes.ExprStmt(_call("step", [], line), lineno=line)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """Of the environment itself: a template can give no other meaning to it."""
    target = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(target, arguments, [], None, None, lineno=line)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is just its body, which keeps
    its variables to itself.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _size(value: Any) -> int:
    """In characters, as an account counts."""
    if isinstance(value, str | bytes):
        return len(value)
    return ELEMENT * len(value) if isinstance(value, list | tuple) else ELEMENT


def _escaped(character: re.Match[str]) -> str:
    return json.dumps(character[0])[1:-1]


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
