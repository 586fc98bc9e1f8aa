"""Generated pages are as the code has it."""

from pathlib import Path

import pytest

from pillion.gateway.fields import TABLE, Form
from pillion.ops.docs import PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name):
    assert (ROOT / name).read_text() == PAGES[name](), "run `python -m pillion.ops.docs`"


@pytest.mark.parametrize("form", Form)
def test_every_field_is_named(form):
    text = PAGES["docs/api.md"]()
    told = text.partition("## Tokens and texts")[2 if form in (Form.TOKENIZE, Form.DETOKENIZE) else 0]
    assert [name for name in TABLE[form] if f"`{name}`" not in told] == []
