"""A model's tokens as bytes, read without the tokenizer that makes them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.locate import Located
from pillion.modelfiles.pieces import byte_fallback, byte_level, decoding
from pillion.modelfiles.special import CONTROL, special_tokens
from pillion.modelfiles.texts import read_bytes

_UNKNOWN = 2  # GGUF token type, beside CONTROL
_KEY = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces[i]` is what token i stands for, maybe a part of a character; empty where there is none.
    `special` tokens control the model and are no text; `ends` end a sequence."""

    pieces: tuple[bytes, ...]
    special: tuple[int, ...]
    ends: tuple[int, ...]


def vocabulary(located: Located) -> Vocabulary:
    """From tokenizer.json or from a GGUF file's metadata. Raises ModelFileError."""
    ends = special_tokens(located).end_ids
    texts, special = _of_gguf(located.path) if located.kind == "gguf" else _of_folder(located.path)
    size = max(texts, default=-1) + 1
    return Vocabulary(tuple(texts.get(token, b"") for token in range(size)), tuple(sorted(special)), ends)


def _of_gguf(path: Path) -> tuple[dict[int, bytes], Iterable[int]]:
    with GgufFile(path) as gguf:
        texts = gguf.strings(_KEY + "tokens") or []
        types = gguf.numbers(_KEY + "token_type") or []
        piece = byte_fallback if gguf.text(_KEY + "model") == "llama" else byte_level
    pieces = {token: piece(text) for token, text in enumerate(texts)}
    return pieces, [token for token, kind in enumerate(types) if kind in (CONTROL, _UNKNOWN)]


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _File(msgspec.Struct):
    model: _Model
    decoder: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


def _of_folder(folder: Path) -> tuple[dict[int, bytes], Iterable[int]]:
    path = folder / "tokenizer.json"
    try:
        file = msgspec.json.decode(read_bytes(path), type=_File)
    except FileNotFoundError:
        raise ModelFileError(f"{folder} has no tokenizer.json; fetch the model again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} is no tokenizer ({error}); fetch it again") from None
    words = file.model.vocab
    numbered = words.items() if isinstance(words, dict) else ((word, n) for n, (word, _) in enumerate(words))
    piece = decoding(file.decoder).piece
    pieces = {token: piece(text) for text, token in numbered}
    pieces |= {token.id: piece(token.content) for token in file.added_tokens}
    return pieces, [token.id for token in file.added_tokens if token.special]
