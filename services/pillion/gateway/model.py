"""The served model as the gateway knows it: its name, its text side and its sampling defaults; no weights."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pillion.config import Config
from pillion.gateway import thinking
from pillion.gateway.calls import FORMS, form_of, knows_tools
from pillion.gateway.guard import bare
from pillion.gateway.protocol.errors import ApiError, bad
from pillion.gateway.protocol.request import CallForm, Generation, Messages, Texts
from pillion.gateway.shaping import shaped
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.gateway.tokenizer import TextError, Tokenizer, load_tokenizer
from pillion.gateway.untaught import as_text
from pillion.modelfiles import Located, SamplingDefaults, chat_templates, locate, sampling_defaults

T = TypeVar("T")

WORKERS = 2
BLANKS = 4  # characters behind the last mark of a prompt
MAX_CHARACTERS = 2 << 20  # of a text that nothing else bounds; tokenizing takes some 150 bytes for each


class Model:
    """Immutable. Blocking; `Texter` calls it beside the event loop."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        defaults: SamplingDefaults,
        call_form: CallForm | None = None,
        thinks: bool = False,
        *,
        located: Located,
    ) -> None:
        """`call_form`: in which it writes tool calls, None for one that is not known. `thinks`: whether it
        marks reasoning.
        """
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults
        self.call_form = call_form
        self.thinks = thinks
        self.located = located

    def encode(self, prompt: Messages | Texts, max_tokens: int | None = None) -> tuple[tuple[int, ...], ...]:
        """The prompts' token ids. Raises ApiError.

        What can only be longer than `max_tokens` is refused before it takes time and memory.
        """
        param = "messages" if isinstance(prompt, Messages) else "prompt"
        most = MAX_CHARACTERS
        if max_tokens is not None:
            most = min(most, max_tokens * self.tokenizer.longest)
        try:
            if isinstance(prompt, Messages):
                return (self._chat(prompt, most),)
            if prompt.ids:
                return prompt.ids
            for text in prompt.texts:
                _bounded(text, most, param)
            encode = partial(
                self.tokenizer.encode, add_special=prompt.add_special_tokens, control=prompt.parse_special
            )
            return tuple(tuple(encode(text)) for text in prompt.texts)
        except TextError as error:
            raise bad(param, f"{param}: {error}.", "invalid_unicode") from None

    def shaped(self, asked: Generation, prompts: Sequence[Sequence[int]]) -> Generation:
        """The request with how its answer is drawn and read. Raises ApiError for what the model cannot do."""
        if asked.output.form != "chat":
            return asked
        opened = self.thinks and self._ends(prompts[0], thinking.OPEN)
        return shaped(asked, self.call_form, self.tokenizer.controls, thinks=self.thinks, opened=opened)

    def _ends(self, prompt: Sequence[int], text: str) -> bool:
        """Whether the prompt ends with the text, but for blanks."""
        tail = prompt[-(len(text) + BLANKS) :]  # a token has a character at least
        return self.tokenizer.decode(tail, skip_special=False).rstrip().endswith(text)

    def words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """How the tokenizer writes these words, with and without a space in front. Raises ApiError."""
        try:
            written = [
                self.tokenizer.encode(space + word, add_special=False)
                for word in words
                for space in ("", " ")
            ]
        except TextError as error:
            raise bad("bad_words", f"bad_words: {error}.", "invalid_unicode") from None
        return tuple(tuple(ids) for ids in written if ids)

    def texts(self, prompt: Messages | Texts) -> tuple[str, ...]:
        """The prompts as text, for an echo."""
        if isinstance(prompt, Messages):
            return (bare(self._render(prompt)),)
        if prompt.ids:
            return tuple(self.tokenizer.decode(ids, skip_special=False) for ids in prompt.ids)
        return prompt.texts

    def _chat(self, prompt: Messages, most: int) -> tuple[int, ...]:
        rendered = self._render(prompt)
        _bounded(rendered, most, "messages")
        if prompt.parse_special:
            rendered = bare(rendered)
        return tuple(self.tokenizer.encode_chat(rendered, add_special=prompt.add_special_tokens))

    def _effort(self, effort: str | None) -> dict[str, Any]:
        if effort is None:
            return {}
        return thinking.variables(effort, self.template.tool_source, thinks=self.thinks)

    def _render(self, prompt: Messages) -> str:
        messages, tools = prompt.messages, prompt.tools
        if self.call_form is not None and not knows_tools(self.template.tool_source):
            messages = tuple(as_text(messages, tools, FORMS[self.call_form].write))
            tools = ()
        try:
            return self.template.render(
                messages,
                tools=tools,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                kwargs={**self._effort(prompt.effort), **(prompt.kwargs or {})},
            )
        except TemplateError as error:
            raise ApiError(
                400, f"messages: {error}.", param="messages", code="chat_template_failed"
            ) from None


def _bounded(text: str, most: int, param: str) -> None:
    if len(text) > most:
        raise bad(
            param,
            f"{param} gives {len(text)} characters, which are too many tokens for this server; "
            f"at most {most} are looked at. Shorten it.",
            "context_length_exceeded",
        )


def load_model(config: Config) -> Model:
    """Reads, or fetches, the model's small files. Blocks. Raises ModelFileError, TemplateError."""
    settings = config.model
    located = locate(settings.model, settings.revision, config.cache_path, weights=False)
    tokenizer = load_tokenizer(located)
    sources = chat_templates(located, settings.chat_template)
    template = ChatTemplate(sources, tokenizer.special, tokenizer.guard)
    defaults = sampling_defaults(located, settings.generation_config)
    return Model(
        settings.served_model_name or located.name,
        tokenizer,
        template,
        defaults,
        _call_form(config.gateway.tool_call_parser, template),
        _thinks(config.gateway.reasoning_parser, template),
        located=located,
    )


def _call_form(setting: str, template: ChatTemplate) -> CallForm | None:
    if setting == "auto":
        return form_of(template.tool_source)
    return next((form for form in FORMS if form == setting), None)


def _thinks(setting: str, template: ChatTemplate) -> bool:
    return setting == "think" or (setting == "auto" and thinking.CLOSE in template.tool_source)


class Texter:
    """Runs what takes long for long texts in threads, so that streams go on meanwhile."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, "text")

    async def __call__(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
