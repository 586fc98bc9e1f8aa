"""What the banner says of a replica's facts."""

from pillion.config import Config, Executor, Model
from pillion.contracts.entries import Facts
from pillion.ops.banner import capacity


def facts(max_model_len: int, num_blocks: int, max_num_seqs: int = 64) -> Facts:
    return Facts(
        model="m", fingerprint="f", max_model_len=max_model_len, vocab_size=8, end_tokens=(), block_size=16,
        num_blocks=num_blocks, max_num_seqs=max_num_seqs, max_step_tokens=512, tile=32, dtype="float32",
        backend="torch", backend_reason="the only one",
    )  # fmt: skip


def test_a_context_that_was_lowered_is_said_with_the_remedy() -> None:
    told = capacity(Config(), 2048, facts(640, 41))
    assert told[-1] == (
        "  context   640 tokens: lowered from 2048, the KV pool holds no more; give --num-kv-blocks 129 or "
        "more --kv-cache-memory"
    )
    asked = Config(model=Model(max_model_len=640))
    for stands in (capacity(asked, 2048, facts(640, 41)), capacity(Config(), 640, facts(640, 41))):
        assert not [line for line in stands if "lowered" in line]


def test_one_of_a_thing_is_singular() -> None:
    told = "\n".join(capacity(Config(executor=Executor(threads=1)), 640, facts(640, 41, 1)))
    assert "float32, 1 thread\n" in told
    assert "40 KV blocks of 16 tokens: 1 request of the full 640 tokens" in told
    assert "up to 1 sequence, 512 tokens a step" in told


def test_what_is_held_in_fewer_bits_is_said() -> None:
    config = Config(model=Model(quantization="int8"), executor=Executor(threads=2, kv_cache_dtype="int8"))
    told = "\n".join(capacity(config, 640, facts(640, 41)))
    assert "computes  float32, weights in int8, 2 threads" in told
    assert "holds     40 KV blocks in int8 of 16 tokens" in told
