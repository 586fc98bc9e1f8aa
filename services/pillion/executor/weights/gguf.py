"""Weights from a GGUF file, dequantized one tensor at a time, under Hugging Face names."""

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from pillion.executor.models.spec import ModelSpec
from pillion.executor.weights.four_bit import unpack
from pillion.executor.weights.identity import identity
from pillion.executor.weights.names import EMBEDDING, HEAD, NORM
from pillion.kernels.four_bit import FourBit
from pillion.modelfiles import ModelFileError
from pillion.modelfiles.gguf import GgufFile

_TOP = {EMBEDDING: "token_embd.weight", NORM: "output_norm.weight", HEAD: "output.weight"}
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    if name in _TOP:
        return _TOP[name]
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        raise KeyError(name)
    return f"blk.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


class GgufWeights:
    """Maps the file; `read` gives float32."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        self._file = GgufFile(path)
        self.source = path
        self.identity = identity([(path, self._file.data_start)])
        # Files of the `llama` kind hold the rows of q and k in pairs (2i, 2i+1) of each head's rotation,
        # where the checkpoint has (i, i + half); those of other kinds are in the checkpoint's order.
        self._heads: dict[str, int] = {}
        if self._file.text("general.architecture") == "llama":
            self._heads = {"self_attn.q_proj": spec.num_heads, "self_attn.k_proj": spec.num_kv_heads}

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._file.tensors.get(gguf_name(name))
        return None if tensor is None else tensor.shape

    def read(self, name: str) -> torch.Tensor:
        tensor = self._file.tensors[gguf_name(name)]
        raw = np.frombuffer(self._file.data(tensor), dtype=np.uint8).reshape(*tensor.shape[:-1], -1)
        try:
            values = dequantize(raw, GGMLQuantizationType(tensor.type))
        except NotImplementedError:
            raise ModelFileError(
                f"{self.origin(name)} has the type {tensor.type_name}, which cannot be dequantized"
            ) from None
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)
        if any(f".{part}." in name for part in self._heads):
            values = values[self._rows(name, len(values))]
        # dequantize may hand out a view of the map, which is read-only.
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def four_bit(self, name: str) -> FourBit | None:
        """The matrix as the file holds it, if that is in 4 bit."""
        tensor = self._file.tensors[gguf_name(name)]
        if len(tensor.shape) != 2:
            return None
        raw = np.frombuffer(self._file.data(tensor), dtype=np.uint8).reshape(tensor.shape[0], -1)
        matrix = unpack(raw, tensor.type)
        return matrix if matrix is None else matrix[torch.from_numpy(self._rows(name, len(raw)))]

    def _rows(self, name: str, count: int) -> NDArray[np.intp]:
        """Which rows of the file are those of the checkpoint, in its order."""
        rows = np.arange(count)
        heads = next((count for part, count in self._heads.items() if f".{part}." in name), None)
        return rows if heads is None else rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def origin(self, name: str) -> str:
        return f"{self.source}: tensor {gguf_name(name)}"

    def close(self) -> None:
        self._file.close()
