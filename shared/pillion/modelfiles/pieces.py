"""How a tokenizer's decoder turns tokens into bytes. Known are those of byte-level and SentencePiece BPE."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pillion.modelfiles.errors import ModelFileError

_SPACE = "▁"
EACH_BYTE = "pillion-each-byte"
"""SentencePiece-style decoders show bytes that are no UTF-8 one by one; the handler's name, see codecs."""


class Decoding(NamedTuple):
    """`piece`: a token's text to its bytes, maybe a part of a character; `errors`: what becomes of invalid
    UTF-8; `strip`: what the first piece of a text loses, None for nothing."""

    piece: Callable[[str], bytes]
    errors: str
    strip: Callable[[bytes], bytes] | None


class UnsupportedDecoder(ModelFileError):
    """A tokenizer that turns tokens into text in a way that is not known here."""


def decoding(decoder: Mapping[str, Any] | None) -> Decoding:
    """By what tokenizer.json says under `decoder`. Raises UnsupportedDecoder."""
    steps: list[dict[str, Any]] = (decoder or {}).get("decoders") or [decoder or {}]
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return Decoding(byte_level, "replace", None)
    if kinds == ["Metaspace"]:
        drops = steps[0].get("prepend_scheme", "always") != "never"
        mark = str(steps[0].get("replacement", _SPACE))
        # Of the first token every space is dropped.
        return Decoding(
            lambda text: text.replace(mark, " ").encode(),
            "replace",
            (lambda piece: piece.replace(b" ", b"")) if drops else None,
        )
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds:
        strips = any(step.get("type") == "Strip" and step.get("start") for step in steps)
        strip = (lambda piece: piece.removeprefix(b" ")) if strips else None
        return Decoding(byte_fallback, EACH_BYTE, strip)
    raise UnsupportedDecoder(
        f"the tokenizer's decoder ({', '.join(map(str, kinds))[:200]}) is of a kind that is not supported"
    )


def byte_fallback(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return text.encode()
    return text.replace(_SPACE, " ").encode()


def byte_level(text: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in text])
    except KeyError:  # an added token, which is written as itself
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself where it is visible Latin-1, else from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()
