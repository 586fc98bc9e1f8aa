"""Every setting has a name, a meaning and a place; the tree is frozen."""

from pathlib import Path
from typing import Any

import pytest

from pillion.config import leaves, load
from tests.shared.config.conftest import LEAVES


class TestEverySetting:
    @pytest.mark.parametrize("name", LEAVES)
    def test_has_a_name_of_its_own_and_says_what_it_is(self, name: str):
        leaf = LEAVES[name]
        assert len(LEAVES) == len(list(leaves()))
        assert len(leaf.help) > 8
        assert leaf.flag == "--" + name.replace("_", "-")
        assert leaf.env == "PILLION_" + name.upper()

    def test_the_tree_is_frozen(self):
        with pytest.raises(AttributeError):
            load({}, {}).config.gateway.port = 1  # type: ignore[misc]

    def test_secrets_are_known_as_such(self):
        assert {name for name, leaf in LEAVES.items() if leaf.secret} == {
            "admin_key",
            "api_key",
            "redis",
            "executor_secret",
        }


class TestFolders:
    def test_are_xdg_s_and_of_the_stack(self, monkeypatch: Any, tmp_path: Path):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        config = load({"stack": "two"}, {}).config
        assert config.state_path == tmp_path / "state" / "pillion" / "two"
        assert config.cache_path == tmp_path / "cache" / "pillion"
        given = load({"state_dir": "~/s", "cache_dir": str(tmp_path)}, {}).config
        assert given.state_path == Path.home() / "s" / "default"
        assert given.cache_path == tmp_path

    def test_are_in_the_home_without_xdg(self, monkeypatch: Any):
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        assert load({}, {}).config.state_path == Path.home() / ".local/state/pillion/default"
        assert load({}, {}).config.cache_path == Path.home() / ".cache/pillion"
