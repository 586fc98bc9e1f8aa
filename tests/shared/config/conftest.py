"""Loads from written sources, and finds a setting in what was loaded."""

from pathlib import Path
from typing import Any

from pillion.config import Loaded, leaves, load

LEAVES = {leaf.name: leaf for leaf in leaves()}


def given_in(sources: dict[str, Any], folder: Path) -> Loaded:
    """Loads {"file": text, "env": variables, "flag": values}, each of which may be absent."""
    file, environ, flags = None, {}, {}
    if "file" in sources:
        file = folder / "pillion.toml"
        file.write_text(sources["file"])
    environ = sources.get("env", {})
    flags = sources.get("flag", {})
    return load(flags, environ, file)


def value(loaded: Loaded, name: str) -> tuple[Any, str]:
    (setting,) = [setting for setting in loaded.settings if setting.leaf.name == name]
    assert getattr(getattr(loaded.config, setting.leaf.section), name) == setting.value
    return setting.value, setting.source
