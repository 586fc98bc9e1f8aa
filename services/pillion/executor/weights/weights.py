"""One face for all weight files: names and shapes of the checkpoint, whatever the file calls them."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from pillion.executor.models.spec import ModelSpec
from pillion.executor.weights.gguf import GgufWeights
from pillion.executor.weights.names import expected_shapes
from pillion.executor.weights.safetensors import SafetensorsFolder
from pillion.kernels.four_bit import FourBit
from pillion.modelfiles import Located, ModelFileError


class Source(Protocol):
    """What a kind of file must offer."""

    identity: str

    def shape(self, name: str) -> tuple[int, ...] | None: ...
    def read(self, name: str) -> torch.Tensor: ...
    def four_bit(self, name: str) -> FourBit | None: ...
    def origin(self, name: str) -> str: ...
    def close(self) -> None: ...


class Weights:
    """The tensors of one model. All are there with the right shapes once this object exists."""

    def __init__(self, source: Source, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._source = source
        self.shapes = shapes  # by name; what `get` accepts
        self.identity = source.identity  # names the content; for the fingerprint
        for name, shape in shapes.items():
            found = source.shape(name)
            if found is None:
                raise ModelFileError(
                    f"{source.origin(name)} is missing; the model is incomplete, fetch it again"
                )
            if found != shape:
                raise ModelFileError(
                    f"{source.origin(name)} has the shape {found}, but the configuration makes it {shape}: "
                    "the weights and the configuration are not of one model"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in the file's own precision (float32 where it was quantized).

        It may be a read-only map of the file: copy it before writing. Raises KeyError for a name that is not
        in `shapes`, ModelFileError where the file cannot be read.
        """
        if name not in self.shapes:
            raise KeyError(name)
        return self._source.read(name)

    def four_bit(self, name: str) -> FourBit | None:
        """A matrix as the file holds it, where that is in 4 bit. Raises as `get` does."""
        if name not in self.shapes:
            raise KeyError(name)
        return self._source.four_bit(name)

    def close(self) -> None:
        """Gives the files back; tensors handed out stay valid."""
        self._source.close()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(located: Located, spec: ModelSpec) -> Weights:
    """Opens the model's files and checks that they hold all that `spec` needs. Raises ModelFileError."""
    source: Source = (
        GgufWeights(located.path, spec) if located.kind == "gguf" else SafetensorsFolder(located.path)
    )
    try:
        return Weights(source, expected_shapes(spec))
    except ModelFileError:
        source.close()
        raise
