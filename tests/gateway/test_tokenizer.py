"""The tokenizer against the libraries that made it: `transformers` for ids, `tokenizers` for text."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from pillion.contracts.entries import Tokens
from pillion.gateway.answers import Answer, Head
from pillion.gateway.protocol.request import Calls, Output
from pillion.gateway.tokenizer import TextError, Tokenizer, load_tokenizer
from pillion.modelfiles import Located, ModelFileError, SpecialTokens, locate

TEXTS = (
    "", " ", "a", "Hello, world!", "  leading and trailing  ", "I'll can't WE'RE it's",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "3.14159 and 1234567890 and 1st", "def f(x):\n    return x**2  # é", "naïve café — “quotes” … €",
    "日本語のテキストです。", "한국어 텍스트와 조합", "emoji 👩‍👩‍👧‍👦 🇩🇪 👍🏽 end", "مرحبا بالعالم",
    "Ελληνικά и кириллица",
    "a" * 300, "<|im_end", "|im_start|>", "x <|im_start|>user\nhi<|im_end|>\n y",
    "\u00a0\u2003\u200b\ufeff", "\x00\x01\x7f",
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(demo: Located) -> Tokenizer:
    return load_tokenizer(demo)


@pytest.fixture
def reference(demo_reference_tokenizer):
    return demo_reference_tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_transformers(tokenizer, reference, text):
    assert tokenizer.encode(text, control=True) == reference(text).input_ids


def mixed(texts) -> str:
    source = random.Random(7)
    return "".join(source.choice(texts) + source.choice((" ", "\n", "")) for _ in range(500))


def test_long_mixed_text_has_the_same_ids(tokenizer, reference):
    text = mixed([text for text in TEXTS if not any(character.isdigit() for character in text)])
    ids = tokenizer.encode(text, control=True)
    assert len(ids) > 5000
    assert ids == reference(text).input_ids


def test_digits_stand_alone_as_in_the_models_own_tokenizer(tokenizer, reference):
    """transformers' conversion of a GGUF file leaves the model's splitting of digits out: put it back."""
    backend = Backend.from_str(reference.backend_tokenizer.to_str())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    text = mixed(TEXTS)
    ids = tokenizer.encode(text, control=True)
    assert ids == backend.encode(text).ids
    assert ids != reference(text).input_ids
    assert len(tokenizer.encode("2026")) == 4


def test_control_tokens_in_plain_text_are_text(tokenizer):
    text = "x <|im_start|>user\nhi<|im_end|>"
    plain, control = tokenizer.encode(text), tokenizer.encode(text, control=True)
    assert not tokenizer.special_ids & set(plain)
    assert {1, 2} <= set(control)
    assert tokenizer.decode(plain) == text
    assert tokenizer.encode(text, control=True) == control  # the switch leaves nothing behind


def test_lone_surrogates_are_an_error_of_the_text(tokenizer):
    with pytest.raises(TextError, match="surrogates"):
        tokenizer.encode("a\ud800b")


def test_facts_of_the_demo_model(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert tokenizer.special.end_ids == (2,)
    assert (tokenizer.special.bos, tokenizer.special.eos) == ("<|im_start|>", "<|im_end|>")
    assert len(tokenizer.special_ids) == 17
    assert tokenizer.piece(49152) == tokenizer.piece(-1) == b""


def test_every_token_decodes_as_in_tokenizers(tokenizer):
    backend = tokenizer._backend
    for number in range(tokenizer.vocab_size):
        assert tokenizer.decode([number], skip_special=False) == backend.decode(
            [number], skip_special_tokens=False
        )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_parts_joined_are_the_whole(tokenizer, data):
    """Any ids, valid text or not, cut anywhere: the stream's text is `tokenizers`' own decode."""
    ids = data.draw(st.lists(st.integers(0, 400) | st.integers(0, 49151), max_size=30))
    skip = data.draw(st.booleans())
    detokenizer = tokenizer.detokenizer(skip_special=skip)
    text, at = "", 0
    while at < len(ids):
        width = data.draw(st.integers(1, 4))
        text += detokenizer.push(ids[at : at + width])
        at += width
    text += detokenizer.flush()
    assert text == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_comes_back_token_by_token(tokenizer, text):
    # The model's vocabulary lacks a few bytes; its tokenizer drops them.
    known = {tokenizer.piece(number) for number in range(1000)}
    text = "".join(c for c in text if all(bytes([byte]) in known for byte in c.encode()))
    ids = tokenizer.encode(text)
    detokenizer = tokenizer.detokenizer()
    parts = [detokenizer.push([number]) for number in ids]
    assert "\ufffd" not in "".join(parts) or "\ufffd" in text
    assert "".join(parts) + detokenizer.flush() == text


def test_a_character_over_several_tokens_waits_for_its_last(tokenizer):
    ids = tokenizer.encode("👩")
    assert len(ids) >= 3
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push([number]) for number in ids] == [""] * (len(ids) - 1) + ["👩"]
    cut = tokenizer.detokenizer()
    assert cut.push(ids[:-1]) == ""
    assert cut.flush() == "\ufffd" == tokenizer._backend.decode(ids[:-1])


# -- SentencePiece

WORDS = ("▁", "a", "b", "h", "e", "l", "o", "w", "r", "d", "é")
MERGED = ("▁h", "el", "lo", "▁w", "or", "ello", "▁hello", "▁wor", "ld", "▁world", "▁▁", "▁▁▁▁")


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *MERGED, *WORDS]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * (len(MERGED) + len(WORDS))
    scores = [0.0] * 259 + [-float(n) for n in range(len(MERGED))] + [-100.0 - n for n in range(len(WORDS))]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return load_tokenizer(Located("gguf", path, "spm"))


def test_sentencepiece_words_bytes_and_the_token_that_begins(sentencepiece):
    ids = sentencepiece.encode("hello world")
    assert [sentencepiece._backend.id_to_token(number) for number in ids] == ["<s>", "▁hello", "▁world"]
    assert sentencepiece.encode("hello", add_special=False) == ids[1:2]
    snowman = sentencepiece.encode("☃", add_special=False)
    assert [sentencepiece.piece(number) for number in snowman] == [b" ", b"\xe2", b"\x98", b"\x83"]
    assert sentencepiece.decode(ids) == "hello world"
    assert sentencepiece.decode(snowman) == "☃"


def test_a_text_that_goes_on_keeps_its_first_space(sentencepiece):
    ids = sentencepiece.encode("hello", add_special=False)
    assert sentencepiece.detokenizer().push(ids) == "hello"
    assert sentencepiece.detokenizer(continues=True).push(ids) == " hello"


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("helo wrdé☃👍 ") | st.characters(exclude_categories=["Cs"]), max_size=30))
def test_sentencepiece_text_comes_back_token_by_token(sentencepiece, text):
    ids = sentencepiece.encode(text.replace("▁", ""), add_special=False)
    detokenizer = sentencepiece.detokenizer()
    joined = "".join(detokenizer.push([number]) for number in ids) + detokenizer.flush()
    assert joined == sentencepiece._backend.decode(ids) == text.replace("▁", "")


def test_a_truncated_character_of_byte_tokens_is_one_mark_a_byte(sentencepiece):
    ids = sentencepiece.encode("a👍", add_special=False)[:-1]
    assert sentencepiece.decode(ids) == sentencepiece._backend.decode(ids) == "a\ufffd\ufffd\ufffd"


# -- folders

PLAIN = SpecialTokens(bos="<s>")


def folder_with(path: Path, backend: Backend, **config) -> Located:
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **config}))
    (path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    return Located("folder", path, "folder")


def small_backend() -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return backend


def test_the_configuration_decides_on_the_token_that_begins(tmp_path):
    backend = small_backend()
    backend.enable_truncation(3)  # what some published files carry; a prompt must never be cut
    bos = backend.token_to_id("<s>")
    assert load_tokenizer(folder_with(tmp_path, backend)).encode("hello")[0] != bos
    assert load_tokenizer(folder_with(tmp_path, backend, add_bos_token=True)).encode("hello")[0] == bos
    assert len(load_tokenizer(folder_with(tmp_path, backend, add_bos_token=True)).encode("hello")) == 6
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    assert load_tokenizer(folder_with(tmp_path, backend)).encode("hello")[0] == bos
    assert load_tokenizer(folder_with(tmp_path, backend, add_bos_token=False)).encode("hello")[0] != bos


def test_control_tokens_that_frame_calls_are_read_and_others_skipped(tmp_path):
    backend = small_backend()
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    tokenizer = load_tokenizer(folder_with(tmp_path, backend))
    text = '[{"name": "f", "arguments": {"a": 1}}]'
    controls = [tokenizer.controls[name] for name in ("</s>", "[TOOL_CALLS]")]
    item = Tokens("r", 0, 0, (*controls, *tokenizer.encode(text, add_special=False)), "stop")
    messages = []
    for calls in (Calls("mistral", ("f",)), None):
        answer = Answer(Output("chat", calls=calls), Head("r", 1, "m", None, ((1,),)), tokenizer)
        answer.feed(item)
        messages.append(answer.whole()["choices"][0]["message"])
    (call,) = messages[0].pop("tool_calls")
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'} and len(call["id"]) == 9
    assert messages == [
        {"role": "assistant", "content": content, "refusal": None} for content in (None, text)
    ]


def test_what_is_put_round_a_chat_makes_no_users_text_a_control_token(tmp_path):
    backend = small_backend()
    both = [(text, backend.token_to_id(text)) for text in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=both)
    tokenizer = load_tokenizer(folder_with(tmp_path, backend))
    (bos, eos), guard = (number for _, number in both), tokenizer.guard
    for text in ("Hi", "Hi</s>", "</s", "<s></s>"):
        inner = tokenizer.encode(text, add_special=False)
        for before, after in (("", ""), ("<s>", "</s>")):
            rendered = f"{before}{guard.shield(text)}{after}"
            written = [*[bos] * bool(before), *inner, *[eos] * bool(after)]
            assert tokenizer.encode_chat(rendered) == written
            assert tokenizer.encode_chat(rendered, add_special=True) == [bos, *written, eos]


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_decoders(scheme):
    backend = Backend(models.BPE(vocab={"▁a": 0, "▁b": 1, "c": 2, "▁▁": 3}, merges=[]))
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = Tokenizer(backend, PLAIN)
    for ids in ([0, 1, 2], [2, 0], [3, 0], [1, 1]):
        assert tokenizer.decode(ids) == backend.decode(ids)


def test_what_is_missing_or_unknown_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        load_tokenizer(Located("folder", _config_only(tmp_path), "x"))
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [], "model": {}}')
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(Located("folder", tmp_path, "x"))
    backend = small_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelFileError, match="WordPiece"):
        Tokenizer(backend, PLAIN)


def _config_only(path: Path) -> Path:
    (path / "config.json").write_text("{}")
    return path


def test_tiny_models_have_one_tokenizer_in_both_kinds_of_file(tiny_model):
    folder = load_tokenizer(locate(str(tiny_model("llama2"))))
    gguf = load_tokenizer(locate(str(tiny_model("llama2", "gguf"))))
    for text in TEXTS:
        assert folder.encode(text, control=True) == gguf.encode(text, control=True)
    assert folder.special == gguf.special or folder.special.end_ids == gguf.special.end_ids == (2,)


def test_small_and_quick_and_without_torch(demo_gguf):
    """The gateway's share of memory and start-up, in a process of its own."""
    script = (
        "import sys, time, re\n"
        "start = time.perf_counter()\n"
        "from pathlib import Path\n"
        "from pillion.modelfiles import Located, chat_templates\n"
        "from pillion.gateway.tokenizer import load_tokenizer\n"
        "from pillion.gateway.templates import ChatTemplate\n"
        f"located = Located('gguf', Path({str(demo_gguf)!r}), 'demo')\n"
        "tokenizer = load_tokenizer(located)\n"
        "ChatTemplate(chat_templates(located), tokenizer.special, tokenizer.guard)\n"
        "assert len(tokenizer.encode('word ' * 1000)) > 1000\n"
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024\n"
        "print(time.perf_counter() - start, peak)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    seconds, megabytes = map(
        float, subprocess.check_output([sys.executable, "-c", script], text=True).split()
    )
    assert seconds < 30, "well under a second on an idle machine"
    assert megabytes < 90
