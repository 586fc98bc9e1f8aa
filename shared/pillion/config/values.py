"""What is written in a source, as a setting's value; or what it should have been."""

import math
import re
from collections.abc import Callable
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Meta

from pillion.config.tree import Leaf, TenantLimits


class ConfigError(ValueError):
    """A setting that is unknown or has no valid value. The message names it and where it was set."""


def parse_bytes(text: str) -> int:
    """`512MiB`, `4GiB`, `1.5G` or a plain number, in bytes. Raises ConfigError."""
    units = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in units else ""
    try:
        size = float(number.removesuffix(unit)) * (1 << units[unit] if unit else 1)
    except ValueError:
        raise ConfigError(f"{text!r} is no size; write it as 512MiB or 4GiB") from None
    if not 0 < size < float("inf"):
        raise ConfigError(f"{text!r} is no size; it must be positive")
    return int(size)


def parse_limits(texts: tuple[str, ...], default: TenantLimits) -> dict[str, TenantLimits]:
    """`alice rpm=60 weight=2` by tenant; what it does not name is the default's. Raises ConfigError."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(TenantLimits)}
    limits: dict[str, TenantLimits] = {}
    for text in texts:
        name, *parts = text.split() or [""]
        own: dict[str, Any] = {}
        for part in parts:
            key, _, value = part.partition("=")
            if key not in kinds or key in own:
                raise ConfigError(f"{text!r} is no tenant's limits; write them as `alice rpm=60 weight=2`")
            try:
                own[key] = msgspec.convert(value, kinds[key], strict=False)
            except msgspec.ValidationError:
                own[key] = None
            if own[key] is None or not math.isfinite(own[key]):
                raise ConfigError(f"{text!r}: {key} is {_expected(kinds[key])}")
        if not name or "=" in name:
            raise ConfigError(f"{text!r} names no tenant; write it as `alice rpm=60 weight=2`")
        if name in limits:
            raise ConfigError(f"the tenant {name} has limits twice; write them as one")
        limits[name] = msgspec.structs.replace(default, **own)
    return limits


def convert(leaf: Leaf, value: Any, source: str) -> Any:
    """What a source has for the setting, as the setting's type. Raises ConfigError, which names no secret."""
    if isinstance(value, str) and leaf.type.__origin__ is bool:
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            value.lower(), value
        )
    shown = "the value" if leaf.secret else repr(value)
    place = source if source in (leaf.flag, leaf.env) else f"{source}: {leaf.name}"
    try:
        converted = msgspec.convert(value, leaf.type, strict=False)
        valid = not isinstance(converted, float) or math.isfinite(converted)
    except msgspec.ValidationError:
        valid = False
    if not valid:
        raise ConfigError(f"{place}: {shown} is {_expected(leaf.type)}")
    if leaf.name in _PARSED and converted is not None:
        try:
            _PARSED[leaf.name](converted)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    return converted


def _expected(annotation: Any, limits: Meta | None = None) -> str:
    """What a refused value is not; follows "VALUE is"."""
    if hasattr(annotation, "__metadata__"):
        own = [meta for meta in annotation.__metadata__ if meta.pattern or _limits(meta)]
        return _expected(annotation.__origin__, own[0] if own else limits)
    if get_origin(annotation) is tuple:
        return "no list of texts"
    for part in get_args(annotation):
        if part is not type(None):
            return _expected(part, limits)
    if annotation is bool:
        return "neither true nor false"
    if annotation in (int, float):
        kind = "whole number" if annotation is int else "number"
        return " ".join((f"no {kind}", *([_limits(limits)] if limits else ())))
    if limits is None or limits.pattern is None:
        return "no text"
    if choices := re.fullmatch(r"\^\(([\w|-]+)\)\$", limits.pattern):
        return f"none of {choices[1].replace('|', ', ')}"
    return "no name of letters, digits, '.', '_' and '-'"


def _limits(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f"from {meta.ge} to {meta.le}"
    ends = {"of at least": meta.ge, "above": meta.gt, "at most": meta.le, "below": meta.lt}
    return " and ".join(f"{word} {end}" for word, end in ends.items() if end is not None)


_PARSED: dict[str, Callable[[Any], Any]] = {
    "kv_cache_memory": parse_bytes,
    "tenant_limits": lambda texts: parse_limits(texts, TenantLimits()),
}
