"""Builds a tokenizer from what a GGUF file says about it."""

from collections.abc import Mapping
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pillion.modelfiles import ModelFileError
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.special import CONTROL

_UNKNOWN, _USER_DEFINED = 2, 4  # token types, beside CONTROL
_KEY = "tokenizer.ggml."
_SPACE = "▁"

# How each model family cuts text into words before merging; as its own tokenizer.json says.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Words(NamedTuple):
    pattern: str | None = None  # None: GPT-2's
    digits: bool = False  # every digit stands alone
    whole: bool = False  # a word that is a token is not merged from its parts
    bos: bool = False  # the default where the file does not say
    nfc: bool = False


_PRE: Mapping[str, _Words] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2"), _Words()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _Words(digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Words(_LLAMA3, whole=True, bos=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Words(_QWEN2, nfc=True)),
    "tekken": _Words(_TEKKEN, whole=True, bos=True),
}


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The tokenizer that the metadata describes: byte-level BPE (`gpt2`) or SentencePiece BPE (`llama`).

    Raises ModelFileError.
    """
    texts = gguf.strings(_KEY + "tokens")
    if texts is None:
        raise ModelFileError(f"{gguf.path} holds no tokenizer; use a file that was converted with one")
    kind = gguf.text(_KEY + "model")
    match kind:
        case "gpt2":
            tokenizer, adds_bos = _byte_level(gguf, texts)
        case "llama":
            tokenizer, adds_bos = _sentencepiece(gguf, texts), True
        case _:
            raise ModelFileError(
                f"{gguf.path}: tokenizer {kind} is not supported; supported are gpt2 and llama"
            )
    types = gguf.numbers(_KEY + "token_type")
    added = {CONTROL: True, _UNKNOWN: True, _USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(text, special=added[type_], normalized=False)
            for text, type_ in zip(texts, types or (), strict=False)
            if type_ in added and text
        ]
    )
    _add_ends(gguf, tokenizer, texts, adds_bos)
    return tokenizer


def _byte_level(gguf: GgufFile, texts: list[str]) -> tuple[Tokenizer, bool]:
    name = gguf.text(_KEY + "pre") or "default"
    words = _PRE.get(name)
    if words is None:
        raise ModelFileError(
            f"{gguf.path}: pre-tokenizer {name} is not supported; use the model's folder, or one of "
            + ", ".join(_PRE)
        )
    merges = []
    for merge in gguf.strings(_KEY + "merges") or ():
        left, space, right = merge.partition(" ")
        if not space or not left or not right:
            raise ModelFileError(f"{gguf.path}: {_KEY}merges holds {merge[:80]!r}, which is no pair")
        merges.append((left, right))
    vocabulary = {text: number for number, text in enumerate(texts)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=words.whole))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise ModelFileError(f"{gguf.path}: the tokenizer's tokens and merges do not fit: {error}") from None
    steps: list[pre_tokenizers.PreTokenizer] = []
    if words.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(words.pattern), behavior="isolated"))
    if words.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words.bos


def _sentencepiece(gguf: GgufFile, texts: list[str]) -> Tokenizer:
    """SentencePiece merges the neighbours whose union has the best score; as a list of merges, best first."""
    scores = gguf.numbers(_KEY + "scores") or []
    if len(scores) != len(texts):
        raise ModelFileError(f"{gguf.path}: {_KEY}scores has {len(scores)} entries for {len(texts)} tokens")
    vocabulary = {text: number for number, text in enumerate(texts)}
    types = gguf.numbers(_KEY + "token_type") or []
    mergeable = (
        {text for text, type_ in zip(texts, types, strict=False) if type_ == 1} if types else set(texts)
    )
    pairs = [
        (-scores[vocabulary[text]], vocabulary[text], cut, text)
        for text in mergeable
        for cut in range(1, len(text))
        if text[:cut] in mergeable and text[cut:] in mergeable
    ]
    pairs.sort()
    unknown = gguf.integer(_KEY + "unknown_token_id")
    prefixed = gguf.flag(_KEY + "add_space_prefix")
    prefixed = True if prefixed is None else prefixed
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(text[:cut], text[cut:]) for _, _, cut, text in pairs],
            unk_token=texts[unknown] if unknown is not None and unknown < len(texts) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _add_ends(gguf: GgufFile, tokenizer: Tokenizer, texts: list[str], adds_bos: bool) -> None:
    """What stands before and after a text where special tokens are added."""
    parts, special = ["$A"], []
    for role, default in (("bos", adds_bos), ("eos", False)):
        said = gguf.flag(f"{_KEY}add_{role}_token")
        number = gguf.integer(f"{_KEY}{role}_token_id")
        if (default if said is None else said) and number is not None and number < len(texts):
            parts.insert(0 if role == "bos" else len(parts), texts[number])
            special.append((texts[number], number))
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single=parts, special_tokens=special)
