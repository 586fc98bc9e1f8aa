"""Renders chat templates, with the helpers and the values that templates in the field rely on."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from pillion.gateway.guard import Guard
from pillion.gateway.sandbox import Sandbox
from pillion.modelfiles import SpecialTokens

MAX_CHARACTERS = 16 << 20  # of one rendered chat
_END = "\udcfe"  # marks the end of the text to continue; a lone surrogate, which no valid text holds
_TOOLS = "tool_use"  # the name of the template that models with several have for tools


class TemplateError(ValueError):
    """The template refused the messages, or failed on them: the client's to correct."""


class ChatTemplate:
    """A model's chat template, compiled once. Raises TemplateError where it is no Jinja."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special: SpecialTokens,
        guard: Guard,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`sources` by name, `default` among them; `guard` is the tokenizer's.

        `tool_source` is the one that chats with tools are rendered with.
        """
        self._sandbox = Sandbox(now)
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = self._sandbox.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(
                    f"the chat template is no valid Jinja: line {error.lineno}: {error.message}"
                ) from None
            except RecursionError:
                raise TemplateError("the chat template is nested too deeply") from None
        self._guard = guard
        self.tool_source = sources.get(_TOOLS) or sources.get("default") or ""
        roles = ("bos", "eos", "pad", "unk")
        texts = {f"{role}_token": getattr(special, role) for role in roles}
        self._tokens = {name: text for name, text in texts.items() if text is not None}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as one text for `Tokenizer.encode_chat`, maybe with marks that `guard.bare` removes.

        `kwargs` are the request's chat_template_kwargs; `continue_final_message` leaves the last message
        open. Raises TemplateError.
        """
        template = self._templates.get(_TOOLS if tools else "default") or self._templates.get("default")
        if template is None:
            raise TemplateError(
                "the model has no chat template; start with --chat-template FILE, or use /v1/completions"
            )
        # Clients echo what servers returned, nulls included; templates test for presence.
        shielded = [
            {key: value for key, value in message.items() if value is not None}
            for message in self._shield([dict(message) for message in messages])
        ]
        last = ""
        if continue_final_message:
            if add_generation_prompt:
                raise TemplateError("add_generation_prompt and continue_final_message exclude each other")
            last = _open_end(shielded)
        values = {
            **self._tokens,
            **self._shield(dict(kwargs or {})),
            "messages": shielded,
            "tools": self._shield(list(tools)) if tools else None,
            "documents": self._shield(list(documents)) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._sandbox.account():
            rendered = _bounded(template, values)
        return _cut(rendered, last) if continue_final_message else rendered

    def _shield(self, value: Any) -> Any:
        try:
            return self._guard.shield(value)
        except RecursionError:
            raise TemplateError("messages and tools are nested too deeply") from None


def _bounded(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    parts: list[str] = []
    size = 0
    try:
        for part in template.generate(**values):
            size += len(part)
            if size > MAX_CHARACTERS:
                raise TemplateError(f"the rendered chat is longer than {MAX_CHARACTERS} characters")
            parts.append(part)
    except TemplateError:
        raise
    except jinja2.TemplateError as error:
        raise TemplateError(
            f"the chat template refused the messages: {error.message or type(error).__name__}"
        ) from None
    # A template is code that ran on a client's data: whatever it trips over is the data's fault.
    except (
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        raise TemplateError(f"the chat template failed on the messages: {error}") from None
    return "".join(parts)


def _open_end(messages: list[Any]) -> str:
    """Puts the mark behind the last message's text, and gives that text."""
    message = messages[-1] if messages else None
    content = message.get("content") if isinstance(message, dict) else None
    match content:
        case str():
            messages[-1]["content"] = content + _END + " "
            return content
        case [*parts]:
            for part in reversed(parts):
                if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                    part["text"] = text + _END + " "
                    return text
    raise TemplateError("continue_final_message needs a last message with text content")


def _cut(rendered: str, last: str) -> str:
    """The rendered chat up to the mark."""
    head, mark, tail = rendered.rpartition(_END)
    if not mark or last.strip() not in head:
        raise TemplateError(
            "continue_final_message: the chat template does not write the last message as it is"
        )
    # The blank behind the mark is gone where the template trims the message; then the message's own go too.
    return head.replace(_END, "") if tail.startswith(" ") else head.replace(_END, "").rstrip()
