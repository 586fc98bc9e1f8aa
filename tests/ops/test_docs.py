"""Generated pages are as the code has it."""

from pathlib import Path

import pytest

from pillion.ops.docs import PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_says(name):
    assert (ROOT / name).read_text() == PAGES[name](), "run `python -m pillion.ops.docs`"
