"""The requests of a run, from its seed. Pure: the same seed gives the same requests."""

import random
from dataclasses import dataclass
from typing import Any

_WORDS = (
    *("river", "stone", "garden", "window", "letter", "winter", "market", "bridge", "candle", "forest"),
    *("harbour", "island", "kitchen", "ladder", "mirror", "needle", "orchard", "paper", "question"),
)
_SHAPES: tuple[dict[str, Any], ...] = (
    {"guided_regex": "([a-z]{2,9} )+"},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"grammar": 'root ::= item+\nitem ::= "- " [a-z ]+ "\\n"'}},
)
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_CALLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": _CITY}}],
    "tool_choice": "required",
}
_STOPS = ("e", " the", "\n", "an", "0", "st")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the model can take."""

    vocab_size: int
    max_model_len: int
    output: int = 120  # the most tokens of an answer

    @property
    def ids(self) -> range:
        """Ordinary tokens: past the special ones, before what a vocabulary is padded with."""
        return range(self.vocab_size // 16, self.vocab_size * 3 // 4)

    @property
    def longest(self) -> int:
        """The longest prompt that is sent."""
        return min(1500, self.max_model_len - self.output - 64)


@dataclass(frozen=True, slots=True)
class Work:
    """One request. What it is answered with depends on nothing but itself."""

    index: int
    path: str
    body: dict[str, Any]


def requests(seed: int, count: int, sizes: Sizes) -> list[Work]:
    """Greedy and sampled, chat and completion, one choice and several, short prompts and long, with stops,
    constraints and tool calls."""
    dice = random.Random(f"work {seed}")
    return [Work(index, *_request(dice, index, sizes)) for index in range(count)]


def _request(dice: random.Random, index: int, sizes: Sizes) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "max_tokens": dice.randint(sizes.output // 4, sizes.output),
        "seed": dice.randrange(1 << 31),
        "ignore_eos": dice.random() < 0.7,
        "temperature": dice.choice((0.0, 0.7, 1.0)),
        "top_p": dice.choice((1.0, 0.9)),
    }
    if dice.random() < 0.2:
        body["n"] = dice.randint(2, 3)
    if dice.random() < 0.2:
        body["stop"] = dice.sample(_STOPS, 2)
    if dice.random() < 0.2:
        body["frequency_penalty"] = 0.5
    if index % 3 == 0 and dice.random() < 0.3:
        body |= _CALLS
    elif dice.random() < 0.2:
        body |= dice.choice(_SHAPES)
    if index % 3 == 0:
        words = " ".join(dice.choices(_WORDS, k=dice.randint(4, 30)))
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}
    length = dice.randint(8, max(sizes.longest // 6, 9))
    if index % 3 == 1:  # long enough that kills hit in the middle of its prefill
        length = dice.randint(sizes.longest // 2, sizes.longest)
    return "/v1/completions", body | {"prompt": dice.choices(sizes.ids, k=length)}
