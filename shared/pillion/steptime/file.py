"""A cost model's file: JSON, with a hash of what it says, by which a figure can name its model."""

from pathlib import Path

import msgspec

from .model import StepTime

SCHEMA = 1


class CostModelError(ValueError):
    """The file is not there, or is no cost model of this release."""


class _File(msgspec.Struct, frozen=True):
    v: int
    hash: str
    cost_model: StepTime


class _Version(msgspec.Struct):
    v: int


def save(model: StepTime, path: Path) -> None:
    """Whole or not at all. Makes the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(_File(SCHEMA, model.hash, model)), indent=1)
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(text + b"\n")
    beside.replace(path)


def load(path: Path) -> StepTime:
    """Raises CostModelError, which says what to do."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CostModelError(
            f"cannot read the cost model {path}: {error.strerror}; `pillion profile` makes one"
        ) from None
    again = "`pillion profile` makes it again"
    try:
        version = msgspec.json.decode(data, type=_Version).v
        if version != SCHEMA:
            raise CostModelError(f"{path} has schema {version}, this release reads {SCHEMA}; {again}")
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise CostModelError(f"{path} is no cost model: {error}; {again}") from None
    if file.cost_model.hash != file.hash:
        raise CostModelError(f"{path} was changed since it was measured: its hash differs; {again}")
    return file.cost_model
