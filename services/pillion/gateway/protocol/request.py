"""The neutral record that each form of a request becomes. No message here is ever changed."""

from dataclasses import dataclass
from typing import Any, Literal

from pillion.contracts.entries import Constraint

FormName = Literal["chat", "completion"]
CallForm = Literal["hermes", "llama3_json", "mistral"]


@dataclass(frozen=True, slots=True)
class Calls:
    """The tool calls that may stand in an answer's text."""

    form: CallForm
    names: tuple[str, ...]  # of the functions that may be called
    single: bool = False  # the first one ends the choice
    certain: bool = False  # tokens are drawn such that calls are whole: arguments are shown as they come
    early: bool = False  # they are shown as they come all the same, in a stream


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that a chat may call."""

    definitions: tuple[dict[str, Any], ...]
    required: bool = False  # at least one of them is called
    only: tuple[str, ...] = ()  # of these; () for any
    parallel: bool = True  # more than one call may be made


@dataclass(frozen=True, slots=True)
class Messages:
    """A chat, for the model's template."""

    messages: tuple[dict[str, Any], ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    add_special_tokens: bool = False  # beside those that the template writes
    parse_special: bool = False  # control tokens in its texts are read as such
    ignored_keys: int = 0  # unknown keys inside the messages
    effort: str | None = None  # how much the model is to reason


@dataclass(frozen=True, slots=True)
class Texts:
    """Plain prompts. Exactly one of the two is not empty."""

    texts: tuple[str, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    add_special_tokens: bool = True
    parse_special: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """How tokens are to be drawn. None: the model's default, else the API's."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    logit_bias: dict[int, float]
    seed: int | None
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What the text has to be, and the field that says so."""

    constraint: Constraint
    param: str
    parts: "tuple[Shape, ...]" = ()  # what it is made of: a mistake in one is told as that one's

    def behind(self, text: str) -> "Shape":
        """The same, where any text may come until that one."""
        return Shape(Constraint(self.constraint.kind, self.constraint.text, text), self.param)


@dataclass(frozen=True, slots=True)
class Output:
    """What of the tokens the client sees, and in which form. All that the output stage needs of a request."""

    form: FormName
    stream: bool = False
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # what ended the choice, string or token, is shown too
    min_tokens: int = 0  # stop strings do not count within the first so many tokens
    skip_special: bool = True
    logprobs: int | None = None  # None: none; else so many alternatives a token
    echo: bool = False
    prompt_logprobs: int | None = None  # as `logprobs`, of the prompt's tokens
    scored: int | None = None  # so many alternatives of each prompt token are needed, for either
    only_prompt: bool = False  # what is generated, one token, is not shown
    include_usage: bool = False  # a last chunk with the usage
    continuous_usage: bool = False  # usage in every chunk
    token_ids: bool = False
    tokens_as_ids: bool = False  # logprobs name tokens as token_id:N
    continues: bool = False  # the tokens go on a text before them
    calls: Calls | None = None
    thinks: bool = False  # the text may begin with reasoning
    thinking: bool = False  # it does: the prompt has the mark before it
    show_thinking: bool = True


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a prompt counts. `tokens` -1: as many as leave room for the answer."""

    tokens: int
    last: bool = True  # else the first


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request for tokens."""

    prompt: Messages | Texts
    output: Output
    wishes: Wishes
    tools: Tools | None = None
    shape: Shape | None = None
    model: str | None = None
    max_tokens: int | None = None  # None: what is left of the context
    keep: Keep | None = None  # of a prompt that is longer
    priority: int = 0
    cache_salt: str = ""
    label: str | None = None  # the client's own name for it


@dataclass(frozen=True, slots=True)
class Tokenize:
    prompt: Messages | Texts
    model: str | None
    strings: bool  # also each token's text


@dataclass(frozen=True, slots=True)
class Detokenize:
    tokens: tuple[int, ...]
    model: str | None
