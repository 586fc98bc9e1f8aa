"""The small files: special and end tokens, chat templates, sampling defaults."""

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType

from pillion.modelfiles import (
    Located,
    ModelFileError,
    SamplingDefaults,
    SpecialTokens,
    chat_templates,
    sampling_defaults,
    special_tokens,
)

TOKENS = {"<s>": 1, "</s>": 2, "<|eot_id|>": 9, "<|im_end|>": 7}


def folder(path: Path, **files: object) -> Located:
    """`config={...}` is written as config.json; text as a .jinja file."""
    files = {"config": {}} | files
    for name, content in files.items():
        if isinstance(content, str):
            (path / f"{name}.jinja").write_text(content)
        else:
            (path / f"{name}.json").write_text(json.dumps(content))
    return Located("folder", path, "folder")


def added() -> dict[str, object]:
    return {
        "added_tokens": [{"id": number, "content": text, "special": True} for text, number in TOKENS.items()]
    }


def test_end_tokens_are_the_union_of_all_that_say_so(tmp_path):
    located = folder(
        tmp_path,
        config={"eos_token_id": 4},
        generation_config={"eos_token_id": [5, 6]},
        tokenizer=added(),
        tokenizer_config={
            "eos_token": {"content": "</s>"},
            "bos_token": "<s>",
            "chat_template": "x<|im_end|>",
        },
    )
    found = special_tokens(located)
    assert found == SpecialTokens(bos="<s>", eos="</s>", end_ids=(2, 4, 5, 6, 7))


def test_a_turns_end_counts_only_where_the_template_writes_it(tmp_path):
    located = folder(tmp_path, config={"eos_token_id": 2}, tokenizer=added(), tokenizer_config={})
    assert special_tokens(located).end_ids == (2,)
    assert special_tokens(folder(tmp_path, chat_template="{{ m }}<|eot_id|>")).end_ids == (9,)


def test_tokens_of_older_files(tmp_path):
    located = folder(
        tmp_path,
        special_tokens_map={"eos_token": {"content": "</s>"}},
        tokenizer_config={"added_tokens_decoder": {"2": {"content": "</s>"}}},
    )
    assert special_tokens(located) == SpecialTokens(eos="</s>", end_ids=(2,))


@pytest.mark.parametrize("value", ["2", True, -1, [1, None], {}])
def test_a_wrong_end_token_is_named(tmp_path, value):
    with pytest.raises(ModelFileError, match=r"config\.json: eos_token_id must be"):
        special_tokens(folder(tmp_path, config={"eos_token_id": value}))


def test_gguf_end_tokens_and_templates(tmp_path):
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "<|eot_id|>", "</s>", "<|im_end|>", "x", "<|end|>"])
    writer.add_token_types([TokenType.CONTROL] * 4 + [TokenType.NORMAL] * 2)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(1)
    writer.add_chat_template(
        [{"name": "default", "template": "a<|im_end|><|end|>"}, {"name": "tool_use", "template": "b"}]
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    located = Located("gguf", path, "a")
    assert chat_templates(located) == {"default": "a<|im_end|><|end|>", "tool_use": "b"}
    assert special_tokens(located) == SpecialTokens(bos="<s>", eos="</s>", end_ids=(1, 2, 3))
    assert sampling_defaults(located) == SamplingDefaults()


def test_where_chat_templates_stand(tmp_path):
    assert chat_templates(folder(tmp_path)) == {}
    assert chat_templates(folder(tmp_path, tokenizer_config={"chat_template": "one"})) == {"default": "one"}
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]
    located = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert chat_templates(located) == {"default": "two", "tool_use": "three"}
    located = folder(tmp_path, chat_template="four")
    assert chat_templates(located) == {"default": "four", "tool_use": "three"}
    (tmp_path / "own.jinja").write_text("five")
    assert chat_templates(located, tmp_path / "own.jinja") == {"default": "five"}
    with pytest.raises(ModelFileError, match=r"--chat-template: there is no file .*none\.jinja"):
        chat_templates(located, tmp_path / "none.jinja")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template must be"):
        chat_templates(folder(tmp_path, tokenizer_config={"chat_template": 5}))


def test_sampling_defaults(tmp_path):
    assert sampling_defaults(folder(tmp_path)) == SamplingDefaults()
    said = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "max_new_tokens": 99}
    located = folder(tmp_path, generation_config=said | {"do_sample": True, "transformers_version": "5"})
    assert sampling_defaults(located) == SamplingDefaults(0.6, 0.9, 20, None, 1.1, 99)
    assert sampling_defaults(located, "none") == SamplingDefaults()
    assert sampling_defaults(folder(tmp_path, generation_config={"do_sample": False})).temperature == 0.0


def test_the_demo_answers_sensibly_by_default(demo):
    assert sampling_defaults(demo) == SamplingDefaults(temperature=0.2, top_p=0.9)
    assert sampling_defaults(demo, "none") == SamplingDefaults()


@pytest.mark.parametrize(
    ("key", "value"), [("top_p", 7), ("temperature", "hot"), ("top_k", -1), ("top_p", True)]
)
def test_a_wrong_sampling_default_names_the_file_and_the_way_out(tmp_path, key, value):
    with pytest.raises(
        ModelFileError, match=rf"generation_config\.json: {key} is .*--generation-config none"
    ):
        sampling_defaults(folder(tmp_path, generation_config={key: value}))


@pytest.mark.parametrize(("content", "message"), [(b"{", "is no JSON"), (b"[]", "must hold a JSON object")])
def test_broken_json_is_named(tmp_path, content, message):
    located = folder(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"config\.json.*{message}"):
        special_tokens(located)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"config\.json is missing"):
        special_tokens(located)
