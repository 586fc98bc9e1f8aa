"""The GGUF reader: equal to the gguf package's, and never surprised by a damaged or hostile file."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.modelfiles import ModelFileError
from pillion.modelfiles.gguf import TENSOR_TYPES, GgufFile


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> bytes:
    import numpy as np

    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("a.number", 7)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.list", [1.5, 2.5])
    writer.add_array("a.words", ["one", "zwei", "三"])
    writer.add_bool("a.flag", True)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(4, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def opened(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


def test_reads_what_was_written(small, tmp_path):
    with opened(tmp_path / "a.gguf", small) as file:
        assert file.integer("a.number") == 7
        assert file.text("a.text") == "grüße"
        assert file.flag("a.flag") is True
        assert list(file.array("a.list")) == [1.5, 2.5]
        assert list(file.array("a.words")) == ["one", "zwei", "三"]
        assert file.text("not.there") is file.integer("not.there") is None
        assert file.tensors["one"].shape == (2, 3)
        assert file.data(file.tensors["one"]).cast("f").tolist() == [0, 1, 2, 3, 4, 5]
        assert file.data(file.tensors["two"]).nbytes == 8
        with pytest.raises(ModelFileError, match=r"a\.text is not an integer"):
            file.integer("a.text")


def test_table_of_types_is_the_gguf_packages():
    ours = {number: (block, size) for number, (_, block, size) in TENSOR_TYPES.items()}
    assert ours == {kind.value: tuple(sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def test_demo_file_as_the_gguf_package_reads_it(demo_gguf):
    reader = GGUFReader(demo_gguf)
    tracemalloc.start()
    with GgufFile(demo_gguf) as file:
        assert len(file.tensors) == len(reader.tensors) == 272
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20  # 49152 tokens and 48900 merges stay in the map
        for tensor in reader.tensors:
            ours = file.tensors[tensor.name]
            assert (ours.offset, ours.nbytes, ours.type) == (
                tensor.data_offset,
                tensor.n_bytes,
                tensor.tensor_type,
            )
            assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
            assert list(file.array(key)) == reader.fields[key].contents()
        assert file.text("tokenizer.chat_template") == reader.fields["tokenizer.chat_template"].contents()


def test_cut_anywhere_is_a_clear_error(small, tmp_path):
    for length in range(len(small) - 32):  # the end may be padding
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            opened(tmp_path / "cut.gguf", small[:length])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_damage_is_read_or_refused_never_worse(small, tmp_path_factory, data):
    content = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 9))
        value = data.draw(
            st.sampled_from((0, 1, 0xFF, 1 << 31, 1 << 63, (1 << 64) - 1)) | st.integers(0, 1 << 16)
        )
        width = data.draw(st.sampled_from((1, 4, 8)))
        content[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    tracemalloc.start()
    try:
        with opened(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(content)) as file:
            for value in file.metadata.values():
                if hasattr(value, "key"):
                    list(value)
            for tensor in file.tensors.values():
                bytes(file.data(tensor))
    except ModelFileError as error:
        assert "damaged.gguf" in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 << 20


def header(tensors: int = 0, pairs: int = 0, version: int = 3, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


# An array of eight bytes, in an array of arrays.
NESTED = struct.pack("<IQ", 0, 8) + bytes(8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "only 0 bytes"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (header(version=1), "version 1"),
        (header(version=0x03000000), "big-endian"),
        (header(tensors=1 << 60), "more than its"),
        (header(pairs=2, body=(text("k") + struct.pack("<IB", 7, 1)) * 2), "k stands twice"),
        (header(pairs=1, body=text("k") + struct.pack("<IQ", 8, 1 << 62)), "metadata k goes past"),
        (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 6, 1 << 62)), "metadata k goes past"),
        (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 8, 1 << 62)), "metadata k goes past"),
        (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 9, 1 << 62)), "metadata k goes past"),
        (header(pairs=1, body=text("k") + struct.pack("<II", 77, 0)), "unknown type 77"),
        (header(pairs=1, body=struct.pack("<Q", 3) + b"\xff\xfe\xfd" + bytes(9)), "not UTF-8"),
        (header(tensors=1, body=tensor("t", (4,), offset=32)), "tensor t ends at"),
        (header(tensors=1, body=tensor("t", (1 << 40, 1 << 40))), "tensor t ends at"),
        (header(tensors=1, body=tensor("t", (4,), offset=7)), "not aligned"),
        (header(tensors=1, body=tensor("t", (4,), kind=4)), "unknown type 4"),
        (header(tensors=1, body=tensor("t", (33,), kind=8)), "no whole Q8_0 blocks"),
        (header(tensors=1, body=tensor("t", (1,) * 9)), "9 dimensions"),
        (header(tensors=2, body=tensor("t", (4,)) * 2 + bytes(64)), "tensor t stands twice"),
        (
            header(tensors=2, body=tensor("t", (16,)) + tensor("u", (4,), offset=32) + bytes(128)),
            "tensors t and u overlap",
        ),
        (header(tensors=1 << 17, body=bytes(24 << 17)), "131072 tensors"),
        (header(pairs=1 << 17, body=bytes(13 << 17)), "131072 metadata pairs"),
        (
            header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 0, 1 << 24) + bytes(1 << 24)),
            "more than 8388608",
        ),
        (
            header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 9, 1 << 20) + NESTED * (1 << 20)),
            "more than 8388",
        ),
        (header(pairs=1, body=text("k\n" * 99) + struct.pack("<II", 77, 0)), r"metadata 'k\\nk"),
        (header(pairs=1, body=text("k") + struct.pack("<IIQI", 9, 9, 1, 9) + bytes(40)), "unknown type 9"),
        (
            header(pairs=1, body=text("general.alignment") + struct.pack("<II", 4, 24)),
            "no power of two",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_hostile_headers_are_refused_by_name(tmp_path, content, message):
    with pytest.raises(ModelFileError, match=message) as caught:
        opened(tmp_path / "hostile.gguf", content)
    assert "hostile.gguf" in str(caught.value)


def test_texts_together_are_bounded(tmp_path):
    """A file of many long texts is not copied into memory."""
    pair = text("k") + struct.pack("<I", 8) + text("x" * (1 << 20))
    body = b"".join(text(f"{number:03}") + pair[9:] for number in range(80))
    path = tmp_path / "long.gguf"
    path.write_bytes(header(pairs=80, body=body))
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="its texts are longer than"):
        GgufFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 << 20


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(ModelFileError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
