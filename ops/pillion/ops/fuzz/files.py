"""Mutated model files through every reader that a start goes through.

Runs in a process of its own with bounded memory (`python -m pillion.ops.fuzz.files SEED SECONDS`), so that a
crash and a huge allocation are seen as what they are.
"""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pillion.ops.fuzz.findings import Findings
from pillion.ops.fuzz.mutate import bent, flipped

_MEMORY = 6 << 30  # bytes of address space
_CASE_SECONDS = 10.0
_OVER_SECONDS = 120.0  # that the process may take beyond its time: it imports much


class Slow(Exception):
    """A file kept its reader busy for too long."""


def run(seed: int, seconds: float) -> Findings:
    """Runs the process and takes in what it says."""
    command = [sys.executable, "-m", "pillion.ops.fuzz.files", str(seed), str(seconds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + _OVER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        findings = Findings("files")
        findings.blame(f"the readers hang: {str(error.stderr)[-1500:]}")
        return findings
    if done.returncode:
        findings = Findings("files")
        findings.blame(f"the readers died with {done.returncode}: {done.stderr[-1500:]}")
        return findings
    said = json.loads(done.stdout)
    findings = Findings("files", wrong=said["wrong"], wrongs=said["wrongs"])
    findings.outcomes.update(said["outcomes"])
    return findings


def try_files(seed: int, seconds: float, folder: Path) -> Findings:
    """Mutates the small models that it makes in `folder`. Every reader may refuse, with an error of ours."""
    findings, rng, until = Findings("files"), random.Random(seed), time.monotonic() + seconds
    gguf, tensors = folder / "small.gguf", folder / "folder"
    _make_gguf(gguf)
    _make_folder(tensors)
    _read("gguf", gguf, findings, valid=True)
    _read("safetensors", tensors, findings, valid=True)
    whole = gguf.read_bytes()
    files = {path.name: path.read_bytes() for path in sorted(tensors.iterdir())}
    target = folder / "mutated.gguf"
    while time.monotonic() < until:
        if rng.random() < 0.5:
            # Mostly in the directory: what stands in the tensors is numbers, and any are right.
            head = 3000 if rng.random() < 0.9 else len(whole)
            target.write_bytes(flipped(rng, whole[:head]) + whole[head:])
            _read("gguf", target, findings)
        else:
            name = rng.choice(list(files))
            (tensors / name).write_bytes(_mutated(rng, name, files[name]))
            _read("safetensors", tensors, findings)
            (tensors / name).write_bytes(files[name])
    return findings


def _mutated(rng: random.Random, name: str, data: bytes) -> bytes:
    if name.endswith(".json") and rng.random() < 0.7:
        return json.dumps(bent(rng, json.loads(data)), default=str).encode(errors="replace")
    if name.endswith(".safetensors") and rng.random() < 0.6:
        length = int.from_bytes(data[:8], "little")
        head = json.dumps(bent(rng, json.loads(data[8 : 8 + length])), default=str).encode(errors="replace")
        return len(head).to_bytes(8, "little") + head + data[8 + length :]
    return flipped(rng, data)


def _read(kind: str, path: Path, findings: Findings, valid: bool = False) -> None:
    from pillion.config import ConfigError
    from pillion.executor.models.registry import read_spec
    from pillion.executor.weights import open_weights
    from pillion.gateway.templates import ChatTemplate, TemplateError
    from pillion.gateway.tokenizer import load_tokenizer
    from pillion.modelfiles import (
        Located,
        ModelFileError,
        chat_templates,
        locate,
        sampling_defaults,
        special_tokens,
    )

    def weights(located: Located) -> None:
        with open_weights(located, read_spec(located)) as opened:
            for name in opened:
                opened.get(name)

    def text(located: Located) -> None:
        tokenizer = load_tokenizer(located)
        tokenizer.decode(tokenizer.encode("Hello, grüne Welt 🙂"))
        template = ChatTemplate(chat_templates(located), tokenizer.special, tokenizer.guard)
        template.render(({"role": "user", "content": "hi"},), add_generation_prompt=True)

    readers = (weights, text, special_tokens, sampling_defaults)
    for reader in readers:
        outcome = "read"
        try:
            with _deadline():
                reader(locate(str(path)))
        except (ModelFileError, ConfigError, TemplateError) as error:
            outcome = "refused"
            if valid:
                findings.blame(f"{kind}: a valid file is refused: {error}")
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            findings.blame(f"{kind}, {reader.__name__}: {where}", str(error)[:300])
            continue
        findings.note(f"{kind} {outcome}")


@contextmanager
def _deadline() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Slow(f"longer than {_CASE_SECONDS:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _CASE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# --- small valid models ----------------------------------------------------------------------------

_WIDTH, _MLP, _HEADS, _KV_HEADS, _VOCABULARY, _LAYERS = 32, 64, 4, 2, 288, 1
_TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _shapes() -> dict[str, tuple[int, ...]]:
    """Tensors of the checkpoint, by Hugging Face name."""
    kv = _WIDTH // _HEADS * _KV_HEADS
    layer = {
        "input_layernorm": (_WIDTH,), "post_attention_layernorm": (_WIDTH,),
        "self_attn.q_proj": (_WIDTH, _WIDTH), "self_attn.k_proj": (kv, _WIDTH),
        "self_attn.v_proj": (kv, _WIDTH), "self_attn.o_proj": (_WIDTH, _WIDTH),
        "mlp.gate_proj": (_MLP, _WIDTH), "mlp.up_proj": (_MLP, _WIDTH), "mlp.down_proj": (_WIDTH, _MLP),
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (_VOCABULARY, _WIDTH), "model.norm.weight": (_WIDTH,)}
    for number in range(_LAYERS):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _make_folder(folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir()
    values = {name: np.full(shape, 0.1, np.float32) for name, shape in _shapes().items()}
    save_file(values, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": _VOCABULARY, "hidden_size": _WIDTH,
        "intermediate_size": _MLP, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"temperature": 0.7, "top_p": 0.9, "eos_token_id": [2, 0], "max_new_tokens": 20}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    settings = {"chat_template": _TEMPLATE, "bos_token": _SPECIAL[0], "eos_token": _SPECIAL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate((*_SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))


def _make_gguf(path: Path) -> None:
    import numpy as np
    from gguf import GGUFWriter, TokenType
    from tokenizers import pre_tokenizers

    from pillion.executor.weights.gguf import gguf_name

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*_SPECIAL, *letters]
    writer = GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(256)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_MLP)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *(f"[PAD{n}]" for n in range(len(tokens), _VOCABULARY))])
    kinds = [TokenType.CONTROL] * len(_SPECIAL) + [TokenType.NORMAL] * len(letters)
    writer.add_token_types(kinds + [TokenType.UNUSED] * (_VOCABULARY - len(tokens)))
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_TEMPLATE)
    for name, shape in _shapes().items():
        writer.add_tensor(gguf_name(name), np.full(shape, 0.1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    try:
        import pillion.executor.weights  # noqa: F401 - before the memory is bounded

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        findings = try_files(seed, seconds, folder)
        print(json.dumps(findings.raw()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
