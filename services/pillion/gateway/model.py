"""The served model as the gateway knows it: its name, its text side and its sampling defaults; no weights."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pillion.config import Config
from pillion.gateway.guard import bare
from pillion.gateway.protocol.errors import ApiError, bad
from pillion.gateway.protocol.request import Messages, Texts
from pillion.gateway.templates import ChatTemplate, TemplateError
from pillion.gateway.tokenizer import TextError, Tokenizer, load_tokenizer
from pillion.modelfiles import SamplingDefaults, chat_templates, locate, sampling_defaults

T = TypeVar("T")

WORKERS = 2
MAX_CHARACTERS = 2 << 20  # of a text that nothing else bounds; tokenizing takes some 150 bytes for each


class Model:
    """Immutable. Blocking; `Texter` calls it beside the event loop."""

    def __init__(
        self, name: str, tokenizer: Tokenizer, template: ChatTemplate, defaults: SamplingDefaults
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self.defaults = defaults

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
            special = prompt.add_special_tokens
            for text in prompt.texts:
                _bounded(text, most, param)
            return tuple(tuple(self.tokenizer.encode(text, add_special=special)) for text in prompt.texts)
        except TextError as error:
            raise bad(param, f"{param}: {error}.", "invalid_unicode") from None

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
        if prompt.add_special_tokens:
            return tuple(self.tokenizer.encode(bare(rendered), add_special=True, control=True))
        return tuple(self.tokenizer.encode_chat(rendered))

    def _render(self, prompt: Messages) -> str:
        try:
            return self.template.render(
                prompt.messages,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                kwargs=prompt.kwargs,
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
    return Model(settings.served_model_name or located.name, tokenizer, template, defaults)


class Texter:
    """Runs what takes long for long texts in threads, so that streams go on meanwhile."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, "text")

    async def __call__(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
