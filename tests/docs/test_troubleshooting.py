"""Whoever has an error finds it in docs/troubleshooting.md, and what stands there is still said."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SOURCES = [path for root in ("services", "shared", "ops") for path in (ROOT / root / "pillion").rglob("*.py")]
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
GAP = "\0"

# Where a call has the code, if it is not by keyword: the position.
PLACES = {"bad": 2, "unavailable": 0, "Verdict": 1, "_invalid": 3, "refuse": 2, "_refusal": 2, "Refusal": 5}


def literal(node: ast.expr) -> str | None:
    """A text with a gap for each part that varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    return None


def texts() -> list[str]:
    """All that the source can say; `%s` and its like are gaps too."""
    found = (
        literal(node) for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.expr)
    )
    return [re.sub(r"%[-+.\d]*[sdfgr]", GAP, text) for text in found if text]


def codes() -> Iterator[str]:
    """Every code that a client can get."""
    for path, tree in TREES.items():
        if not ({"gateway", "admission"} & {*path.parts} or path.name in ("fitting.py", "dead.py")):
            continue
        for node in ast.walk(tree):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                given += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                if name in PLACES and len(node.args) > PLACES[name]:
                    given.append(node.args[PLACES[name]])
            elif isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["code"]:
                given.append(node.value)
            yield from (code for each in given if (code := literal(each)))
        if path.name == "errors.py":
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    value = literal(node.value)
                    if node.targets[0].id.isupper() and value:
                        yield value


def told() -> list[str]:
    """The texts in the first column of the tables after the API's."""
    rest = PAGE[PAGE.index("## At the start") : PAGE.index("## Slow")]
    rows = re.findall(r"^\| (`.*?) \|", rest, re.M)
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


SAID = texts()
TOLD = told()


def test_every_code_is_on_the_page() -> None:
    found = {code for code in codes() if re.fullmatch(r"[a-z_]+" + GAP + "?", code)}
    assert {"internal", "queue_full", "unready", "stream_gap", "poison_request", "tenant_" + GAP} <= found
    page = re.findall(r"`([a-z_]+)`", PAGE)
    missing = [
        code
        for code in sorted(found)
        if not any(code == known or (GAP in code and known.startswith(code.strip(GAP))) for known in page)
    ]
    assert missing == []


def test_there_are_many() -> None:
    assert len(TOLD) > 30 and len(SAID) > 3000


@pytest.mark.parametrize("text", TOLD)
def test_a_text_is_still_said(text: str) -> None:
    parts = [part.strip() for part in re.split("[…]", text) if part.strip(" ;:")]
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.S)
    assert any(pattern.search(said) for said in SAID), "it is said no more"
