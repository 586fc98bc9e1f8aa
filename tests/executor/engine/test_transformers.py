"""The engine computes what `transformers` computes."""

import pytest
import torch

CHUNKS = [1, 16, 17, 64, 255, 256, 257, 512]

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a fox who",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Water boils at",
    "Dear Sir or Madam,",
    "The three primary colours are",
    "import numpy as np\n",
    "To be or not",
    "A step carries decodes first, then",
    "Q: What is the tallest mountain?\nA:",
    "In the year 1969",
    "SELECT name FROM",
    "My favourite recipe begins with",
    "The mitochondria is",
    "It was the best of times,",
]


@pytest.fixture(scope="module")
def tokens(demo):
    """1500 token ids of real text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.path.parent, gguf_file=demo.path.name)
    sentences = " ".join(
        f"{prompt} {index} more words and {index * 7} more." for index, prompt in enumerate(PROMPTS * 12)
    )
    ids = tokenizer(sentences)["input_ids"][:1500]
    assert len(ids) == 1500
    return ids, [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]


def logits(driver, sequence):
    with torch.inference_mode():
        return driver.engine.model.logits(driver.states(sequence))


def worst(ours, theirs):
    """The largest difference as a share of the largest logit."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.fixture(scope="module")
def theirs(demo_transformers, tokens):
    """Logits of the first 520 positions."""
    with torch.inference_mode():
        return demo_transformers(torch.tensor([tokens[0][:520]])).logits[0]


@pytest.mark.parametrize("chunk", [*CHUNKS, None])
def test_logits_at_every_position(demo_float32, theirs, drive, tokens, chunk):
    # Chunks of one token are a step each: fewer positions will do. The whole prompt in one step ends at 512.
    count = {1: 140, None: 500}.get(chunk, 520)
    driver = drive(demo_float32)
    sequence = driver.add(tokens[0][:count])
    driver.finish([sequence], chunk)
    most = chunk or count
    assert [c for _, c in driver.chunks] == [most] * (count // most) + [count % most] * (count % most > 0)
    assert worst(logits(driver, sequence), theirs[:count]) < 1e-3


def test_greedy_tokens_of_sixteen_prompts(demo_float32, demo_transformers, drive, tokens):
    long, prompts = tokens
    driver = drive(demo_float32, record=False)
    sequences = [driver.add(ids, 8, ignore_eos=True) for ids in [long, *prompts[1:]]]
    driver.finish(sequences, 200)
    assert len(sequences) == 16
    assert len(sequences[0].tokens) == 1508
    for sequence in sequences:
        assert len(sequence.output) == 8
        with torch.inference_mode():
            theirs = demo_transformers(torch.tensor([sequence.tokens[:-1]]), logits_to_keep=8).logits[0]
        assert sequence.output == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("chunk", [1, 16, 17, 64, None])
@pytest.mark.parametrize(
    "name",
    ["llama2", "llama3", "smollm2", "yi", "mqa", "llama-biased", "llama-linear", "llama-yarn", "mistral",
     "qwen2", "qwen2-sliding", "qwen3"],
)  # fmt: skip
def test_every_architecture(tiny_model, make_engine, load_transformers, drive, name, chunk):
    path = tiny_model(name)
    ids = torch.randint(3, 320, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    driver = drive(make_engine(path, num_kv_blocks=40, max_model_len=512))
    sequence = driver.add(ids)
    driver.finish([sequence], chunk)
    most = chunk or 90
    assert [c for _, c in driver.chunks] == [most] * (90 // most) + [90 % most] * (90 % most > 0)
    with torch.inference_mode():
        theirs = load_transformers(path)(torch.tensor([ids])).logits[0]
    assert worst(logits(driver, sequence), theirs) < 1e-3


# Logits: what bfloat16 may err by on average, and where a choice is clear; float32's best two are closer at
# fewer than 4 % of the positions.
ERROR = 0.0325
MARGIN = 0.045


def test_bfloat16_where_the_choice_is_clear(demo_bfloat16, theirs, drive, tokens):
    driver = drive(demo_bfloat16)
    sequence = driver.add(tokens[0][:520])
    driver.finish([sequence], 128)
    best = theirs.topk(2).values
    clear = best[:, 0] - best[:, 1] > MARGIN
    ours = logits(driver, sequence)
    error = (ours - ours.mean(-1, keepdim=True)) - (theirs - theirs.mean(-1, keepdim=True))
    assert error.square().mean().sqrt() < ERROR
    share = 1 - clear.float().mean().item()
    wrong = (ours.argmax(-1) != theirs.argmax(-1)) & clear
    assert (share, int(wrong.sum())) == (pytest.approx(0, abs=0.04), 0)
