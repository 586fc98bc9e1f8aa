"""Merges the sources: defaults < TOML file < PILLION_* environment < flags. Each value has its provenance."""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pillion.config.tree import ENV_PREFIX, Config, Leaf, leaves
from pillion.config.values import ConfigError, convert


class Setting(msgspec.Struct, frozen=True):
    """A leaf's value and where it came from: `default`, the file's name, the variable, or the flag."""

    leaf: Leaf
    value: Any
    source: str


class Loaded(msgspec.Struct, frozen=True):
    """A configuration with its provenance."""

    config: Config
    settings: tuple[Setting, ...]


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """Merges the four sources. `flags` maps leaf names to values; None values are absent.

    The file is `file`, else PILLION_CONFIG. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    known = {leaf.name: leaf for leaf in leaves()}
    values: dict[str, tuple[Any, str]] = {}
    file = file or environ.get(ENV_PREFIX + "CONFIG")
    if file:
        values.update(_from_file(Path(file), known))
    values.update(_from_environ(environ, known))
    for name, value in (flags or {}).items():
        if name not in known:
            raise ConfigError(f"unknown flag --{name.replace('_', '-')}{_nearest(name, known)}")
        if value is not None and value != ():
            values[name] = (value, known[name].flag)

    settings: list[Setting] = []
    sections: dict[str, dict[str, Any]] = {}
    for leaf in known.values():
        value, source = values.get(leaf.name, (leaf.default, "default"))
        if source != "default":
            value = convert(leaf, value, source)
        settings.append(Setting(leaf, value, source))
        sections.setdefault(leaf.section, {})[leaf.name] = value
    types = {field.name: field.type for field in msgspec.structs.fields(Config)}
    config = Config(**{name: types[name](**fields) for name, fields in sections.items()})
    return Loaded(config, tuple(settings))


def _from_file(path: Path, known: Mapping[str, Leaf]) -> Iterator[tuple[str, tuple[Any, str]]]:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    sections = {leaf.section for leaf in known.values()}
    for section, body in tree.items():
        if section not in sections:
            raise ConfigError(f"{path}: unknown section [{section}]{_nearest(section, sections)}")
        if not isinstance(body, dict):
            raise ConfigError(f"{path}: {section} must be a section, as [{section}]")
        for name, value in body.items():
            if name not in known or known[name].section != section:
                names = [leaf.name for leaf in known.values() if leaf.section == section]
                raise ConfigError(f"{path}: unknown key {name} in [{section}]{_nearest(name, names)}")
            yield name, (value, str(path))


def _from_environ(
    environ: Mapping[str, str], known: Mapping[str, Leaf]
) -> Iterator[tuple[str, tuple[Any, str]]]:
    names = {leaf.env: leaf for leaf in known.values()}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == ENV_PREFIX + "CONFIG":
            continue
        leaf = names.get(variable)
        if leaf is None:
            raise ConfigError(f"unknown variable {variable}{_nearest(variable, names)}")
        if value == "":
            continue  # compose passes unset variables as empty strings
        yield leaf.name, (tuple(value.split(",")) if isinstance(leaf.default, tuple) else value, variable)


def _nearest(name: str, names: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {match[0]}?" if match else ""
