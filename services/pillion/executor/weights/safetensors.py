"""Weights from a folder of safetensors files, one or many, mapped."""

import struct
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError, safe_open

from pillion.executor.weights.identity import identity
from pillion.modelfiles import ModelFileError
from pillion.modelfiles.gguf import shown
from pillion.modelfiles.texts import read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER = 32 << 20  # bytes, of some 100 a tensor; the format allows 100 MB
_FLOATS = ("F64", "F32", "F16", "BF16")


_Size = Annotated[int, Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor in the header; offsets count from the header's end."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


class SafetensorsFolder:
    """Opens every file once and reads its header; tensors stay in the map until asked for."""

    def __init__(self, folder: Path) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, Path] = {}
        headers: list[tuple[Path, int]] = []
        files, indexed = _files(folder)
        for path in files:
            entries, size = _header(path)
            headers.append((path, size))
            for name, entry in entries.items():
                if entry.dtype not in _FLOATS:
                    continue  # a buffer of an old checkpoint; a weight of such a type is reported as missing
                self._shapes[name], self._places[name] = entry.shape, path
        for name, path in indexed.items():
            if name not in self._places:
                raise ModelFileError(
                    f"{path} lacks tensor {name}, which {folder / _INDEX} says is there; fetch it again"
                )
        self._open: dict[Path, Any] = {path: _opened(path) for path in files}
        self.source = folder
        self.identity = identity(headers)

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name)

    def read(self, name: str) -> torch.Tensor:
        path = self._places[name]
        try:
            tensor: torch.Tensor = self._open[path].get_tensor(name)
        except SafetensorError as error:
            raise ModelFileError(f"{path}: tensor {name} cannot be read: {error}; fetch it again") from None
        return tensor

    def four_bit(self, name: str) -> None:
        """These files hold no 4-bit blocks."""

    def origin(self, name: str) -> str:
        return f"{self._places.get(name, self.source)}: tensor {name}"

    def close(self) -> None:
        self._open.clear()


def _opened(path: Path) -> Any:
    """The library checks once more: sizes against types, and that tensors fill the file without overlap."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is no safetensors file: {str(error)[:200]}; fetch it again") from None


def _files(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files to open, and which tensors the index promises in each."""
    if (folder / _INDEX).is_file():
        mapping = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise ModelFileError(f"{folder / _INDEX} has no weight_map; fetch it again")
        for name in mapping.values():
            if not isinstance(name, str) or Path(name).name != name:
                raise ModelFileError(f"{folder / _INDEX} names a file outside its folder: {name!r}")
        indexed = {tensor: folder / name for tensor, name in mapping.items()}
        files = sorted(set(indexed.values()))
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise ModelFileError(
                f"{folder} lacks {', '.join(missing)}, of {len(files)} weight files; fetch the model again"
            )
        return files, indexed
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE], {}
    if files := sorted(folder.glob("*.safetensors")):
        return files, {}
    other = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
    hint = f" (it has {other[0]}: convert it to safetensors)" if other else ""
    raise ModelFileError(f"{folder} holds no .safetensors file{hint}; fetch the model again")


def _header(path: Path) -> tuple[dict[str, _Entry], int]:
    """The directory of one file and its length in bytes, checked against the file's size."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER + 1
            if length > min(_MAX_HEADER, size - 8):
                raise ModelFileError(
                    f"{path} is truncated or no safetensors file: its header does not fit; fetch it again"
                )
            raw = file.read(length)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        header = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelFileError(
            f"{path} is no safetensors file: its header is no JSON object; fetch it again"
        ) from None
    header.pop("__metadata__", None)
    entries: dict[str, _Entry] = {}
    for name, part in header.items():
        try:
            entry = entries[name] = msgspec.json.decode(part, type=_Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ModelFileError(
                f"{path}: the header's entry of tensor {shown(name)} is damaged; fetch it again"
            ) from None
        tensor_end = 8 + length + entry.data_offsets[1]
        if tensor_end > size:
            raise ModelFileError(
                f"{path} is truncated: tensor {shown(name)} ends at byte {tensor_end}, the file has {size}; "
                "fetch it again"
            )
    return entries, 8 + length
