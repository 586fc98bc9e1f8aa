"""Text to token ids and back, on the `tokenizers` library; neither torch nor transformers."""

import json
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from pillion.gateway.detokenizer import Detokenizer
from pillion.gateway.gguf_tokenizer import build_tokenizer
from pillion.gateway.guard import MARK, Guard
from pillion.modelfiles import Located, ModelFileError, SpecialTokens, special_tokens
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.pieces import UnsupportedDecoder, decoding
from pillion.modelfiles.texts import read_json

MAX_JOINED = 4  # characters that a normalizer makes one of


class TextError(ValueError):
    """Text that cannot be tokenized, because it is no valid Unicode."""


class Tokenizer:
    """One model's tokenizer. Immutable to its users; may be used from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._lock = threading.Lock()  # of the backend's one switch, which `_encode` sets
        added = backend.get_added_tokens_decoder()
        self.special = special
        self.controls = {token.content: number for number, token in added.items() if token.special}
        self.special_ids = frozenset(self.controls.values())
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        # A normalizer may join what follows one another, as Unicode's composition does.
        joins = 1 if backend.normalizer is None else MAX_JOINED
        self.longest = (
            max(map(len, vocabulary), default=0) * joins
        )  # characters of text that one token can take
        self.guard = Guard(self.controls)
        self._to_bytes, self._errors, self._strip = decoding(_decoder(backend))
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special: bool = True, control: bool = False) -> list[int]:
        """Token ids of a plain text. Raises TextError.

        `add_special` adds what the model wants around a text (mostly a token that begins it). `control` reads
        control tokens that stand in the text as such; otherwise they are text like any other.
        """
        return list(self._encode(text, add_special, control).ids)

    def encode_chat(self, rendered: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a rendered chat template: its control tokens count, those in users' text do not.

        `add_special` adds what the model wants around a text, which most templates write themselves. Raises
        TextError.
        """
        if MARK not in rendered:
            return self.encode(rendered, add_special=add_special, control=True)
        pieces = [self._encode(piece, False, control) for piece, control in self.guard.split(rendered)]
        if add_special:
            whole = tokenizers.Encoding.merge(pieces)
            return list(self._backend.post_process(whole, add_special_tokens=True).ids)
        return [number for piece in pieces for number in piece.ids]

    def _encode(self, text: str, add_special: bool, control: bool) -> tokenizers.Encoding:
        try:
            with self._lock:
                self._backend.encode_special_tokens = not control
                # Of one text as of many, since only this one lets other threads run meanwhile.
                (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special)
        except (UnicodeEncodeError, TypeError):
            raise TextError("the text holds lone surrogates, which are no valid Unicode") from None
        return encoding

    def decode(self, tokens: Iterable[int], *, skip_special: bool = True) -> str:
        """The whole text of some tokens; equal to what a `detokenizer` gives part by part."""
        detokenizer = self.detokenizer(skip_special=skip_special)
        return detokenizer.push(tokens) + detokenizer.flush()

    def detokenizer(
        self, *, skip_special: bool = True, continues: bool = False, shown: Collection[str] = ()
    ) -> Detokenizer:
        """A new one for one choice. `continues`: the tokens go on a text before them, so that a space which
        SentencePiece-style models put in front of every word is kept at the start. `shown`: special tokens
        that are not skipped."""
        skipped = self.special_ids if skip_special else frozenset()
        if skipped and shown:
            skipped -= {self.controls.get(text) for text in shown}
        return Detokenizer(self.piece, skipped, self._errors, None if continues else self._strip)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, maybe a part of a character; empty for an id without a token."""
        piece = self._pieces.get(token)
        if piece is None:
            text = self._backend.id_to_token(token) if 0 <= token < self.vocab_size else None
            piece = b"" if text is None else self._to_bytes(text)
            if 0 <= token < self.vocab_size:
                self._pieces[token] = piece
        return piece

    def token(self, number: int) -> str:
        """The token's bytes as text, U+FFFD for what is no whole character."""
        return self.piece(number).decode("utf-8", "replace")


def load_tokenizer(located: Located) -> Tokenizer:
    """The tokenizer from tokenizer.json or from a GGUF file's metadata. Raises ModelFileError."""
    special = special_tokens(located)
    if located.kind == "gguf":
        with GgufFile(located.path) as gguf:
            backend = build_tokenizer(gguf)
    else:
        backend = _from_folder(located.path, special)
    try:
        return Tokenizer(backend, special)
    except UnsupportedDecoder as error:
        raise ModelFileError(f"{located.path}: {error}") from None


def _from_folder(folder: Path, special: SpecialTokens) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"{folder} has no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise ModelFileError(f"{path} is no tokenizer ({error}); fetch it again") from None
    # Where the configuration says so outright, it overrules the file's own post-processing.
    wanted = read_json(folder / "tokenizer_config.json", optional=True).get("add_bos_token")
    if isinstance(wanted, bool) and special.bos is not None:
        bos = backend.token_to_id(special.bos)
        if bos is not None and (bos in backend.encode("", add_special_tokens=True).ids) is not wanted:
            backend.post_processor = processors.TemplateProcessing(
                single=f"{special.bos} $A" if wanted else "$A",
                special_tokens=[(special.bos, bos)] if wanted else [],
            )
    return backend


def _decoder(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """What tokenizer.json would say under `decoder`."""
    said: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    return said
