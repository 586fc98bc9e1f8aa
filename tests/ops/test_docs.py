"""Generated pages are as the code has it."""

from pathlib import Path

import pytest

from pillion.config import load
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


def test_the_example_of_a_settings_file_is_one(tmp_path: Path) -> None:
    example = PAGES["docs/configuration.md"]().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "pillion.toml").write_text(example)
    loaded = load(environ={}, file=tmp_path / "pillion.toml").config
    assert (loaded.gateway.port, loaded.gateway.allowed_hosts) == (8080, ("llm.example.com",))
    assert loaded.scheduler.slo_tbt == 0.08 and loaded.model.model != load(environ={}).config.model.model
