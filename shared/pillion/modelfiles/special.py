"""The special tokens of a model, and which of them end a sequence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pillion.modelfiles.chat import chat_templates
from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.locate import Located
from pillion.modelfiles.texts import read_bytes, read_json

# Tokens that end a turn in the field's chat formats. One counts where the model has it as a token and its
# template writes it; the tokenizer's own end token then often only ends documents.
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|eot|>",
    "<|endoftext|>",
)

CONTROL = 3  # GGUF token type
_GGUF_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROLES = ("bos", "eos", "pad", "unk")
_GGUF_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Texts of the tokens with a role, None where there is none; the ids that end a sequence, ascending."""

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None
    end_ids: tuple[int, ...] = ()


def special_tokens(located: Located) -> SpecialTokens:
    """Reads them from the tokenizer's, the model's and the generation config. Raises ModelFileError."""
    sources = chat_templates(located).values()
    if located.kind == "gguf":
        return _of_gguf(located.path, sources)
    return _of_folder(located.path, sources)


def _of_gguf(path: Path, sources: Iterable[str]) -> SpecialTokens:
    with GgufFile(path) as gguf:
        tokens = gguf.strings("tokenizer.ggml.tokens") or []
        types = gguf.numbers("tokenizer.ggml.token_type") or []
        prefix = "tokenizer.ggml."
        roles: dict[str, str] = {}
        for role, name in _GGUF_ROLES.items():
            number = gguf.integer(f"{prefix}{name}_token_id")
            if number is not None:
                if not 0 <= number < len(tokens):
                    raise ModelFileError(
                        f"{path}: {prefix}{name}_token_id is {number}, but there are {len(tokens)} tokens"
                    )
                roles[role] = tokens[number]
        ends = {gguf.integer(prefix + key) for key in _GGUF_ENDS} - {None}
        if any(number is not None and number < 0 for number in ends):
            raise ModelFileError(f"{path}: an end token's id is negative")
        control = {
            tokens[number]: number for number, kind in enumerate(types[: len(tokens)]) if kind == CONTROL
        }
    return SpecialTokens(**roles, end_ids=_ends(ends, control, sources))


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Added] = []


def _of_folder(folder: Path, sources: Iterable[str]) -> SpecialTokens:
    path = folder / "tokenizer_config.json"
    config = read_json(path, optional=True)
    mapped = read_json(folder / "special_tokens_map.json", optional=True)
    roles = {role: _content(config.get(f"{role}_token") or mapped.get(f"{role}_token")) for role in _ROLES}
    added = _added_tokens(folder, config)
    ends: set[Any] = set()
    for name in ("config.json", "generation_config.json"):
        ends.update(
            _ids(folder / name, read_json(folder / name, optional=name != "config.json").get("eos_token_id"))
        )
    if roles["eos"] in added:
        ends.add(added[roles["eos"]])
    return SpecialTokens(**roles, end_ids=_ends(ends, added, sources))


def _added_tokens(folder: Path, config: dict[str, Any]) -> dict[Any, int]:
    path = folder / "tokenizer.json"
    decoder = config.get("added_tokens_decoder") or {}
    try:
        added = {_content(entry): int(number) for number, entry in decoder.items()}
    except (AttributeError, ValueError):
        raise ModelFileError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder must map token ids to tokens"
        ) from None
    try:
        added |= {
            token.content: token.id
            for token in msgspec.json.decode(read_bytes(path), type=_Tokenizer).added_tokens
        }
    except FileNotFoundError:
        return added  # the gateway says what a missing tokenizer means; the executor can do without
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} is no tokenizer ({error}); fetch it again") from None
    return added


def _content(entry: Any) -> str | None:
    """A token is written as text, or as an object with its text and how it is matched."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _ids(path: Path, value: Any) -> set[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in values):
        raise ModelFileError(f"{path}: eos_token_id must be a token id or a list of them, not {value!r}")
    return set(values)


def _ends(ends: set[Any], tokens: Mapping[Any, int], sources: Iterable[str]) -> tuple[int, ...]:
    written = {text for text in TURN_ENDS for source in sources if text in source}
    return tuple(sorted(ends | {tokens[text] for text in written if text in tokens}))
