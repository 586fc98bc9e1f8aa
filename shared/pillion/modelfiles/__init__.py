"""A model's files: where they are, and what the small ones say. No torch, no numpy."""

from pillion.modelfiles.chat import chat_templates
from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.generation import SamplingDefaults, sampling_defaults
from pillion.modelfiles.locate import Located, locate
from pillion.modelfiles.special import SpecialTokens, special_tokens

__all__ = [
    "Located",
    "ModelFileError",
    "SamplingDefaults",
    "SpecialTokens",
    "chat_templates",
    "locate",
    "sampling_defaults",
    "special_tokens",
]
