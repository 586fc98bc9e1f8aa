"""The sampling defaults that a model recommends."""

from dataclasses import dataclass, fields
from typing import Any

from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.locate import Located
from pillion.modelfiles.texts import read_json


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets for a field that it leaves out. None: the API's default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None  # generation_config's max_new_tokens


_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, 100.0),
    "max_tokens": (1, 1 << 31),
}


# What the demo model's authors use in their model card's example; its GGUF file cannot say it.
_DEMO = SamplingDefaults(temperature=0.2, top_p=0.9)


def sampling_defaults(located: Located, mode: str = "auto") -> SamplingDefaults:
    """Of generation_config.json (a GGUF file has none; the demo's are known). `mode` none: neutral.

    Raises ModelFileError.

    `do_sample: false`, said outright, means temperature 0.
    """
    if mode == "none" or located.kind == "gguf":
        return _DEMO if mode != "none" and located.name == "demo" else SamplingDefaults()
    path = located.path / "generation_config.json"
    config = read_json(path, optional=True)
    values: dict[str, Any] = {}
    for field in fields(SamplingDefaults):
        value = config.get("max_new_tokens" if field.name == "max_tokens" else field.name)
        if value is None:
            continue
        low, high = _RANGES[field.name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ModelFileError(
                f"{path}: {field.name} is {value!r}; correct it, or start with --generation-config none"
            )
        values[field.name] = value
    if config.get("do_sample") is False and "temperature" not in values:
        values["temperature"] = 0.0
    return SamplingDefaults(**values)
