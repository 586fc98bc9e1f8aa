"""Reads the metadata and the tensor directory of a GGUF file, and nothing else.

Written for servers: the file is mapped, arrays stay in the map until they are asked for, and every length and
offset is checked before it is followed, so that a damaged or hostile file is an error and never a crash or a
huge allocation. Format: the GGUF specification of the ggml project, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pillion.modelfiles.errors import ModelFileError

MAGIC = b"GGUF"
# Far beyond what any model needs, and small enough that a hostile file costs neither time nor memory.
MAX_DIMS = 4
MAX_NESTING = 2
MAX_NAME = 1 << 16  # bytes
MAX_ENTRIES = 1 << 16  # tensors, and metadata pairs
MAX_ELEMENTS = 1 << 23  # of all arrays together; a vocabulary has some 2^18 tokens and 2^19 merges
MAX_TEXT = 64 << 20  # bytes of all strings together that do not stand in an array

_STRING, _ARRAY = 8, 9
# Value type -> struct code; strings and arrays are read apart.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# Tensor type -> (name, elements a block, bytes a block).
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the directory. `shape` has rows first, as in PyTorch; `offset` is the file's."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type][0]


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array that is still in the map; iterating decodes it."""

    key: str
    type: int
    count: int
    start: int
    buffer: memoryview
    path: Path

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        if self.type == _STRING:
            return self._strings()
        code = _SCALARS.get(self.type)
        if code is None:
            raise ModelFileError(f"{self.path}: metadata {self.key} nests arrays, which no known key does")
        size = struct.calcsize("<" + code)
        values = struct.iter_unpack("<" + code, self.buffer[self.start : self.start + self.count * size])
        return (value for (value,) in values)

    def _strings(self) -> Iterator[str]:
        # The walk that found the array's end has checked every length.
        buffer, at, length = self.buffer, self.start, struct.Struct("<Q")
        for _ in range(self.count):
            end = at + 8 + length.unpack_from(buffer, at)[0]
            try:
                yield str(buffer[at + 8 : end], "utf-8")
            except UnicodeDecodeError:
                raise ModelFileError(
                    f"{self.path}: metadata {self.key} holds a string that is not UTF-8"
                ) from None
            at = end


class GgufFile:
    """An open GGUF file: `metadata` by key (scalars, str or `Array`) and `tensors` by name.

    Raises ModelFileError where the file is missing, truncated or not what it says.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self.size = file.seek(0, 2)
                if self.size < 24:
                    raise ModelFileError(f"{self.path} is no GGUF file: it has only {self.size} bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(f"cannot read {self.path}: {error.strerror}") from None
        self.buffer = memoryview(self._map)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        cursor = _Cursor(self.buffer, self.size, self.path)
        version, tensor_count, pair_count = cursor.preamble()
        self.version = version
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = cursor.string("a metadata key", MAX_NAME)
            if key in self.metadata:
                raise ModelFileError(f"{self.path}: metadata {shown(key)} stands twice")
            self.metadata[key] = cursor.value(key)
        entries = [cursor.tensor() for _ in range(tensor_count)]

        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelFileError(f"{self.path}: general.alignment is {alignment!r}, no power of two")
        self.data_start = -(-cursor.at // alignment) * alignment
        self.tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in entries:
            tensor = Tensor(name, shape, kind, self.data_start + offset, _nbytes(shape, kind))
            if name in self.tensors:
                raise ModelFileError(f"{self.path}: tensor {shown(name)} stands twice")
            if offset % alignment:
                raise ModelFileError(
                    f"{self.path}: tensor {shown(name)} starts at {offset}, not aligned to {alignment}"
                )
            if tensor.offset + tensor.nbytes > self.size:
                raise ModelFileError(
                    f"{self.path} is truncated: tensor {shown(name)} ends at byte "
                    f"{tensor.offset + tensor.nbytes}, the file has {self.size}; fetch it again"
                )
            self.tensors[name] = tensor
        self._apart()

    def _apart(self) -> None:
        """No byte belongs to two tensors."""
        end, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise ModelFileError(
                    f"{self.path} is damaged: tensors {shown(before)} and {shown(tensor.name)} overlap; "
                    "fetch it again"
                )
            if tensor.nbytes:
                end, before = tensor.offset + tensor.nbytes, tensor.name

    def data(self, tensor: Tensor) -> memoryview:
        """The tensor's bytes, in the map."""
        return self.buffer[tensor.offset : tensor.offset + tensor.nbytes]

    def text(self, key: str) -> str | None:
        """A string of the metadata, or None where it is absent."""
        value: str | None = self._typed(key, str, "a string")
        return value

    def integer(self, key: str) -> int | None:
        """An integer of the metadata, or None where it is absent."""
        value: int | None = self._typed(key, int, "an integer")
        return value

    def real(self, key: str) -> float | None:
        """A number of the metadata, or None where it is absent."""
        value = self._typed(key, (int, float), "a number")
        return None if value is None else float(value)

    def flag(self, key: str) -> bool | None:
        """A truth value of the metadata, or None where it is absent."""
        value = self._typed(key, (bool, int), "true or false")
        return None if value is None else bool(value)

    def array(self, key: str) -> Array | None:
        """An array of the metadata, or None where it is absent."""
        value: Array | None = self._typed(key, Array, "an array")
        return value

    def strings(self, key: str) -> list[str] | None:
        """An array of strings, decoded, or None where it is absent."""
        value = self.array(key)
        if value is not None and value.type != _STRING:
            raise ModelFileError(f"{self.path}: metadata {key} is not an array of strings")
        return None if value is None else list(value)

    def numbers(self, key: str) -> list[Any] | None:
        """An array of numbers, decoded, or None where it is absent."""
        value = self.array(key)
        if value is not None and value.type not in _SCALARS:
            raise ModelFileError(f"{self.path}: metadata {key} is not an array of numbers")
        return None if value is None else list(value)

    def _typed(self, key: str, kind: Any, said: str) -> Any:
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise ModelFileError(f"{self.path}: metadata {key} is not {said}")
        return value

    def close(self) -> None:
        """Gives the map back. Arrays and data that were handed out must be dropped first."""
        self.metadata = {}
        self.buffer.release()
        try:
            self._map.close()
        except BufferError:
            return  # a view is still out; the map goes with the last of them

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shown(name: str) -> str:
    """A name from a file, fit for one line of a message."""
    return name if name.isprintable() and len(name) <= 80 else repr(name[:80])


def _nbytes(shape: tuple[int, ...], kind: int) -> int:
    _, block, size = TENSOR_TYPES[kind]
    elements = 1
    for dim in shape:
        elements *= dim
    return elements // block * size


class _Cursor:
    """Walks the header; whatever it hands out has been checked against the file's size."""

    def __init__(self, buffer: memoryview, size: int, path: Path) -> None:
        self.buffer, self.size, self.path, self.at = buffer, size, path, 0
        self._elements, self._text = MAX_ELEMENTS, MAX_TEXT  # what may still come

    def preamble(self) -> tuple[int, int, int]:
        """Version, number of tensors, number of metadata pairs."""
        if bytes(self.buffer[:4]) != MAGIC:
            raise ModelFileError(f"{self.path} is no GGUF file: it does not begin with GGUF")
        self.at = 4
        version = self._number("I", "the version")
        if version & 0xFFFF == 0:
            raise ModelFileError(f"{self.path} is a big-endian GGUF file; use a little-endian one")
        if version not in (2, 3):
            raise ModelFileError(
                f"{self.path} is GGUF version {version}; versions 2 and 3 are read, convert it again"
            )
        tensors = self._number("Q", "the number of tensors")
        pairs = self._number("Q", "the number of metadata pairs")
        # The shortest tensor entry has 24 bytes, the shortest pair 13.
        if tensors * 24 + pairs * 13 > self.size:
            raise ModelFileError(
                f"{self.path} announces {tensors} tensors and {pairs} metadata pairs, "
                f"more than its {self.size} bytes hold"
            )
        if max(tensors, pairs) > MAX_ENTRIES:
            raise ModelFileError(
                f"{self.path} has {tensors} tensors and {pairs} metadata pairs; {MAX_ENTRIES} can be read"
            )
        return version, tensors, pairs

    def string(self, what: str, limit: int | None = None) -> str:
        length = self._number("Q", f"the length of {what}")
        if limit is not None and length > limit:
            raise ModelFileError(f"{self.path}: the length of {what} is {length}, more than {limit}")
        self._text -= length
        if self._text < 0 and length <= self.size - self.at:
            raise ModelFileError(f"{self.path}: its texts are longer than {MAX_TEXT} bytes, up to {what}")
        start = self._take(length, what)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"{self.path}: {what} is not UTF-8") from None

    def value(self, key: str) -> Any:
        what = f"metadata {shown(key)}"
        kind = self._number("I", f"the type of {what}")
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(key, 1)
        if kind not in _SCALARS:
            raise ModelFileError(f"{self.path}: {what} has the unknown type {kind}")
        return self._number(_SCALARS[kind], what)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape with rows first, type, offset from the data's start."""
        name = self.string("a tensor's name", MAX_NAME)
        what = f"tensor {shown(name)}"
        dims = self._number("I", f"the dimensions of {what}")
        if not 1 <= dims <= MAX_DIMS:
            raise ModelFileError(f"{self.path}: {what} has {dims} dimensions, 1 to {MAX_DIMS} are possible")
        shape = tuple(reversed([self._number("Q", f"the shape of {what}") for _ in range(dims)]))
        kind = self._number("I", f"the type of {what}")
        if kind not in TENSOR_TYPES:
            raise ModelFileError(
                f"{self.path}: {what} has the unknown type {kind}; convert the model to another type"
            )
        if shape[-1] % TENSOR_TYPES[kind][1]:
            raise ModelFileError(
                f"{self.path}: {what} has rows of {shape[-1]}, no whole {TENSOR_TYPES[kind][0]} blocks"
            )
        return name, shape, kind, self._number("Q", f"the offset of {what}")

    def _array(self, key: str, depth: int) -> Array:
        what = f"metadata {shown(key)}"
        kind = self._number("I", f"the type of {what}")
        count = self._number("Q", f"the length of {what}")
        start = self.at
        if count > self.size - start:
            raise ModelFileError(self._short(what))
        self._elements -= count
        if self._elements < 0:
            raise ModelFileError(
                f"{self.path}: its arrays have more than {MAX_ELEMENTS} elements, up to {what}"
            )
        if kind in _SCALARS:
            self._take(count * struct.calcsize("<" + _SCALARS[kind]), what)
        elif kind == _STRING:
            self._skip_strings(count, what)
        elif kind == _ARRAY and depth < MAX_NESTING:
            if count * 12 > self.size - self.at:
                raise ModelFileError(self._short(what))
            for _ in range(count):
                self._array(key, depth + 1)
        else:
            raise ModelFileError(f"{self.path}: {what} is an array of the unknown type {kind}")
        return Array(key, kind, count, start, self.buffer, self.path)

    def _skip_strings(self, count: int, what: str) -> None:
        unpack, buffer, size, at = struct.Struct("<Q").unpack_from, self.buffer, self.size, self.at
        if count * 8 > size - at:
            raise ModelFileError(self._short(what))
        last = size - 8
        for _ in range(count):
            if at > last:
                raise ModelFileError(self._short(what))
            at += 8 + unpack(buffer, at)[0]
        if at > size:
            raise ModelFileError(self._short(what))
        self.at = at

    def _number(self, code: str, what: str) -> Any:
        start = self._take(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self.buffer, start)[0]

    def _take(self, count: int, what: str) -> int:
        start = self.at
        if count > self.size - start:
            raise ModelFileError(self._short(what))
        self.at = start + count
        return start

    def _short(self, what: str) -> str:
        return f"{self.path} is truncated or damaged: {what} goes past the file's end; fetch it again"
