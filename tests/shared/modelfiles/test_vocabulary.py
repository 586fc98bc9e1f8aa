"""A model's tokens as bytes: those that the gateway's tokenizer has, read without it."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from pillion.gateway.tokenizer import load_tokenizer
from pillion.modelfiles import Located, ModelFileError, locate
from pillion.modelfiles.vocabulary import vocabulary
from tests.conftest import TinyModel


def same_as_the_tokenizers(located: Located) -> int:
    known, tokenizer = vocabulary(located), load_tokenizer(located)
    assert len(known.pieces) == tokenizer.vocab_size
    assert list(known.pieces) == [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    assert known.special == tuple(sorted(tokenizer.special_ids))
    assert known.ends == tokenizer.special.end_ids
    return tokenizer.vocab_size


def test_of_a_gguf_file(demo: Located) -> None:
    assert same_as_the_tokenizers(demo) == 49152


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_of_tiny_models(tiny_model: TinyModel, kind: str) -> None:
    assert same_as_the_tokenizers(locate(str(tiny_model("llama3", kind)))) in (259, 320)


def test_of_sentencepiece_bytes(tmp_path: Path) -> None:
    """Words with a mark for the space, single bytes, and a token that is not special."""
    words = {"<unk>": 0, "</s>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁a": 4, "b": 5}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken("<x>", special=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    located = Located("folder", tmp_path, "x")
    same_as_the_tokenizers(located)
    assert vocabulary(located).pieces[2:] == (b"\xc3", b"\xa9", b" a", b"b", b"<x>")


@pytest.mark.parametrize(("content", "words"), [(None, "has no tokenizer.json"), ("{", "is no tokenizer")])
def test_what_cannot_be_read_is_said(tmp_path: Path, content: str | None, words: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match=words):
        vocabulary(Located("folder", tmp_path, "x"))
