"""Damaged and hostile model files, whole: they serve, or are refused by our error with the file's name.

Real small models are damaged at drawn places. Whatever the damage is, reading them ends soon, in bounded
memory, with a model or with a ModelFileError.
"""

import json
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillion.executor.models.registry import read_spec
from pillion.executor.weights import open_weights
from pillion.gateway.tokenizer import load_tokenizer
from pillion.modelfiles import ModelFileError, chat_templates, locate, sampling_defaults, special_tokens

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)
SECONDS = 20.0  # on a busy machine; a few milliseconds else
MEMORY = 96 << 20  # bytes beyond the file's own
DRAWN = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)


@pytest.fixture(scope="module")
def gguf(tiny_model: Any) -> bytes:
    content: bytes = tiny_model("smollm2", "gguf").read_bytes()
    return content


@pytest.fixture(scope="module")
def folder(tiny_model: Any) -> Path:
    made: Path = tiny_model("smollm2")
    return made


@st.composite
def places(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    """Where, as a share of what is damaged, and with what."""
    value = st.sampled_from(EDGES) | st.integers(0, 1 << 16)
    piece = st.builds(
        lambda n, w: (n % (1 << 8 * w)).to_bytes(w, "little"), value, st.sampled_from((1, 4, 8))
    )
    return draw(
        st.lists(
            st.tuples(st.floats(0, 1), piece | st.binary(min_size=1, max_size=16)), min_size=1, max_size=5
        )
    )


def damaged(content: bytes, where: list[tuple[float, bytes]], end: int) -> bytes:
    """With each piece written over the first `end` bytes somewhere."""
    result = bytearray(content)
    for share, piece in where:
        at = int(share * (end - len(piece)))
        result[at : at + len(piece)] = piece
    return bytes(result)


def outcome(path: Path) -> str:
    """Reads all that the services read. What was said, or "" where it serves."""
    begin = time.monotonic()
    tracemalloc.start()
    try:
        located = locate(str(path))
        spec = read_spec(located)
        special_tokens(located)
        chat_templates(located)
        sampling_defaults(located)
        load_tokenizer(located).encode("a b")
        with open_weights(located, spec) as weights:
            for name in weights:
                weights.get(name)
        return ""
    except ModelFileError as error:
        assert path.name in str(error) and len(str(error)) < 2000 and "\n" not in str(error), str(error)
        return str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MEMORY
        assert time.monotonic() - begin < SECONDS


def drawn(check: Callable[[Any], str], strategy: st.SearchStrategy[Any], refused: int) -> None:
    """Runs `check` over drawn damage; at least so many of them were refused, so that it did occur."""
    said: list[str] = []

    @DRAWN
    @given(strategy)
    def run(where: Any) -> None:
        said.append(check(where))

    run()
    assert sum(map(bool, said)) >= refused, said


def test_a_gguf_header_damaged_anywhere(gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    assert outcome(_written(path, gguf)) == ""
    end = gguf.rindex(b"ffn_norm.weight") + 100
    drawn(lambda where: outcome(_written(path, damaged(gguf, where, end))), places(), 40)


def test_a_gguf_file_cut_anywhere(gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    drawn(lambda share: outcome(_written(path, gguf[: int(share * (len(gguf) - 64))])), st.floats(0, 1), 100)


def test_a_safetensors_header_damaged_anywhere(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "damaged"))
    file = copy / "model.safetensors"
    content = file.read_bytes()
    assert outcome(copy) == ""
    end = 8 + struct.unpack("<Q", content[:8])[0]

    def check(where: list[tuple[float, bytes]]) -> str:
        file.write_bytes(damaged(content, where, end))
        return outcome(copy)

    drawn(check, places(), 40)


HEADERS: dict[str, Any] = {
    "offsets that go back": {"t": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}},
    "negative offsets": {"t": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    "huge offsets": {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 63]}},
    "offsets beyond 64 bits": {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 70]}},
    "a size that is not the shape's": {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
    "a huge shape": {"t": {"dtype": "F32", "shape": [1 << 32, 1 << 32], "data_offsets": [0, 4]}},
    "a negative shape": {"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
    "a shape of words": {"t": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}},
    "an unknown type": {"t": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}},
    "a type that is none": {"t": {"dtype": {}, "shape": [1], "data_offsets": [0, 4]}},
    "no offsets": {"t": {"dtype": "F32", "shape": [1]}},
    "three offsets": {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}},
    "an entry that is none": {"t": 5},
    "two on the same bytes": {
        "t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "u": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    },
    "a hole": {
        "t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "u": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
    },
    "a list": [],
    "a name that is a novel": {"t\n" * 5000: 5},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_hostile_safetensors_headers(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "hostile"))
    header = json.dumps(HEADERS[kind]).encode()
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    assert "model.safetensors" in outcome(copy)


@pytest.mark.parametrize(
    "raw", [b"[" * 200_000, b'{"t":' * 100_000, b"\xff" * 40, b'{"t": "\\ud800"}', b"{}x"]
)
def test_headers_that_are_no_json(folder: Path, tmp_path: Path, raw: bytes) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "hostile"))
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(16))
    assert "model.safetensors" in outcome(copy)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.sampled_from(EDGES)
    | st.integers(-9, 9)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
)
def test_settings_of_any_kind(folder: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "odd"))
    file = copy / name
    content = json.loads(file.read_text()) if file.exists() else {}
    keys = {
        "generation_config.json": ["temperature", "top_k", "eos_token_id", "max_new_tokens", "do_sample"],
        "tokenizer_config.json": ["chat_template", "added_tokens_decoder", "eos_token", "add_bos_token"],
        "config.json": ["rope_scaling", "rope_theta", "sliding_window", "head_dim", "eos_token_id"],
    }.get(name, [])

    def check(change: dict[str, Any]) -> str:
        file.write_text(json.dumps(content | change))
        return outcome(copy)

    changes = st.dictionaries(st.sampled_from(sorted({*content, *keys})), JSON, min_size=1, max_size=2)
    drawn(check, changes, 5)


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"a":' * 200_000, b"", b"\xff\xfe", b"null"])
def test_settings_that_are_no_json(folder: Path, tmp_path: Path, raw: bytes) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        copy = Path(shutil.copytree(folder, tmp_path / name))
        (copy / name).write_bytes(raw)
        assert name in outcome(copy)


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
