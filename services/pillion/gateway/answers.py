"""The output stage's second half: from deltas to the JSON of each form. Pure.

Shapes are OpenAI's; `stop_reason`, `token_ids` and `prompt_token_ids` are what other servers add to them.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pillion.contracts.entries import TokenLogprob, Tokens
from pillion.contracts.packed import unpack
from pillion.gateway import position
from pillion.gateway.calls import identity
from pillion.gateway.logprobs import Json, Teller
from pillion.gateway.output import Choice, Delta, Detokenizer, Shown, singly
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Output
from pillion.gateway.reading import marks
from pillion.gateway.source import Arguments, Called, Part, Text


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    data: Json
    id: str  # its place in the stream, see pillion.gateway.position


class Pieces(Protocol):
    """What is needed of `pillion.gateway.tokenizer.Tokenizer`."""

    def piece(self, token: int, /) -> bytes: ...

    def detokenizer(
        self, *, skip_special: bool, continues: bool = False, shown: Collection[str] = ()
    ) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class Head:
    """What is the same in all parts of an answer."""

    id: str  # the request's
    created: int  # seconds since the epoch
    model: str
    fingerprint: str | None
    prompts: tuple[tuple[int, ...], ...]
    echoed: tuple[str, ...] = ()  # the prompts' texts, where they are echoed


class Answer:
    """One request's answer, streamed or whole. `feed` it items of any size, until it is `done` or `failed`.

    What the first k tokens of a choice bring depends on them alone, so a stream can be gone on with anywhere:
    a new answer to the same request takes all that is known by `replay`, then is fed as ever.
    """

    def __init__(self, spec: Output, head: Head, pieces: Pieces) -> None:
        self.spec = spec
        self.head = head
        shown = marks(spec)
        self.choices = tuple(
            Choice(
                index,
                spec,
                pieces.detokenizer(skip_special=spec.skip_special, continues=spec.continues, shown=shown),
                len(head.prompts[index // spec.n]),
            )
            for index in range(len(head.prompts) * spec.n)
        )
        form = _Chat if spec.form == "chat" else _Completion
        self._form: _Chat | _Completion = form(spec, head, pieces)
        self._collected = [_Collected() for _ in self.choices]
        self.failed: ApiError | None = None  # what ended a choice before its time
        self._sent = [0] * (len(self.choices) + 1)  # events of each choice, and of those behind them
        self._delivered: tuple[int, ...] = (0,) * (len(self.choices) + 1)  # in an earlier connection

    @property
    def id(self) -> str:
        """As the client sees it."""
        return self._form.prefix + self.head.id

    @property
    def done(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        return tuple(choice.finish for choice in self.choices if choice.finish)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.head.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(choice.count for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Of each prompt's first choice: those after it mostly share what the first one computed."""
        return sum(choice.cached for choice in self.choices[:: self.spec.n])

    def usage(self) -> Json:
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.spec.thinks:
            thought = sum(choice.thought for choice in self.choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        return usage

    def feed(self, item: Tokens) -> list[Event]:
        """The events that an item brings to a stream; none where the answer is whole.

        Raises pillion.gateway.output.Gap.
        """
        events = []
        for single in singly(item):
            events += self._counted(single.choice, self._parts(single))
        return events

    def replay(self, items: Sequence[Tokens], delivered: tuple[int, ...]) -> list[Event]:
        """Takes all that is known of the request; gives what comes behind the events that were delivered.

        `items`: at most one a choice, from position 0.
        """
        self._delivered = delivered
        split: list[tuple[int, list[Json]]] = []  # what a token brought that was delivered in part
        rest = [deque(singly(item)) for item in items]
        # All choices first come to where they were: usage counts them all.
        for singles in rest:
            while singles and (behind := delivered[singles[0].choice] - self._sent[singles[0].choice]) > 0:
                choice = singles[0].choice
                parts = self._parts(singles.popleft())
                self._sent[choice] += min(behind, len(parts))
                split.append((choice, parts[behind:]))
        events = [event for choice, parts in split for event in self._counted(choice, parts)]
        for singles in rest:
            for single in singles:
                events += self._counted(single.choice, self._parts(single))
        return events

    def closing(self) -> list[Event]:
        """What comes behind the last choice's end."""
        if not self.spec.include_usage or self._delivered[-1]:
            return []
        self._sent[-1] = 1
        return [
            Event(self._form.frame([]) | {"usage": self.usage()}, position.encode(self.head.id, self._sent))
        ]

    def whole(self) -> Json:
        """The answer of a request that is not streamed, once it is done."""
        choices = [
            self._form.choice(choice.index, collected)
            for choice, collected in zip(self.choices, self._collected, strict=True)
        ]
        body: Json = self._form.whole(choices)
        body["usage"] = self.usage()
        return body

    def _parts(self, single: Tokens) -> list[Json]:
        """What one token, or an end, brings to a stream: the choices of its events."""
        try:
            delta = self.choices[single.choice].feed(single)
        except ApiError as error:
            self.failed = self.failed or error
            return []
        if delta is None:
            return []
        if not self.spec.stream:
            self._collected[delta.choice].add(delta)
            return []
        return self._form.parts(delta)

    def _counted(self, choice: int, parts: list[Json]) -> list[Event]:
        events = []
        for part in parts:
            self._sent[choice] += 1
            if self._sent[choice] > self._delivered[choice]:
                events.append(self._event(part))
        return events

    def _event(self, parts: Json) -> Event:
        extra = parts.pop("_top", {})
        data: Json = self._form.frame([parts]) | extra
        if self.spec.continuous_usage:
            data["usage"] = self.usage()
        elif self.spec.include_usage:
            data["usage"] = None
        return Event(data, position.encode(self.head.id, self._sent[:-1]))


@dataclass(slots=True)
class _Collected:
    """A choice's deltas, joined."""

    parts: list[Part] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    prompt: bytes | None = None
    finish: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.parts.extend(delta.parts)
        self.shown.extend(delta.shown)
        self.prompt = delta.prompt if self.prompt is None else self.prompt
        self.finish, self.stop_reason = delta.finish, delta.stop_reason

    def text(self, kind: str = "content") -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text) and part.kind == kind)


class _Form:
    prefix: str
    object: str
    chunk: str

    def __init__(self, spec: Output, head: Head, pieces: Pieces) -> None:
        self.spec = spec
        self.head = head
        self.teller = Teller(pieces, spec.tokens_as_ids, spec.logprobs)

    def frame(self, choices: Sequence[Json]) -> Json:
        return self._frame(self.chunk, choices)

    def whole(self, choices: Sequence[Json]) -> Json:
        return self._frame(self.object, choices)

    def _frame(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.prefix + self.head.id,
            "object": kind,
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        }

    def _prompt(self, choice: int, prompt: bytes | None) -> Json:
        alternatives = self.spec.prompt_logprobs
        if alternatives is None or prompt is None:
            return {}
        tokens = self.head.prompts[choice // self.spec.n]
        return {"prompt_logprobs": self.teller.prompt(tokens, self._unpacked(prompt), alternatives)}

    def _unpacked(self, prompt: bytes) -> list[TokenLogprob]:
        return unpack(prompt, self.spec.scored or 0)

    def _ids(self, shown: Iterable[Shown]) -> Json:
        return {"token_ids": [entry.token for entry in shown]} if self.spec.token_ids else {}


class _Chat(_Form):
    prefix, object, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def parts(self, delta: Delta) -> list[Json]:
        result = []
        if delta.first:
            result.append(self._part(delta, {"role": "assistant", "content": ""}))
            if self.spec.token_ids and delta.choice == 0:
                result[0]["_top"] = {"prompt_token_ids": self.head.prompts[0]}
        shown = delta.shown
        parts = [self._told(delta.choice, part) for part in self._wanted(delta.parts)]
        if not parts and shown and delta.finish is None:
            parts = [{"content": ""}]
        for part in parts:
            result.append(self._part(delta, part, shown))
            shown = ()
        if delta.finish is not None:
            end = self._part(delta, {}, shown)
            end["finish_reason"] = delta.finish
            end["stop_reason"] = delta.stop_reason
            result.append(end)
        return result

    def choice(self, index: int, collected: _Collected) -> Json:
        message: Json = {"role": "assistant", "content": collected.text(), "refusal": None}
        for part in self._wanted(collected.parts):
            self._add(message, index, part)
        if len(message) > 3:
            message["content"] = message["content"] or None
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(collected.shown, always=True),
            "finish_reason": collected.finish,
            "stop_reason": collected.stop_reason,
            "_top": self._prompt(index, collected.prompt),
            **self._ids(collected.shown),
        }

    def whole(self, choices: Sequence[Json]) -> Json:
        """There is one prompt, of which all choices tell the same."""
        told: list[Json] = [choice.pop("_top") for choice in choices]
        ids = {"prompt_token_ids": self.head.prompts[0]} if self.spec.token_ids else {}
        return super().whole(choices) | told[0] | ids

    def _wanted(self, parts: Sequence[Part]) -> Sequence[Part]:
        if self.spec.show_thinking:
            return parts
        return [part for part in parts if not (isinstance(part, Text) and part.kind == "reasoning")]

    def _told(self, choice: int, part: Part) -> Json:
        """What is new, as a delta has it."""
        match part:
            case Text("reasoning", text):
                # Clients read one or the other name.
                return {"reasoning_content": text, "reasoning": text}
            case Text(_, text):
                return {"content": text}
            case Called(index, _):
                return {"tool_calls": [{"index": index, **self._called(choice, part)}]}
            case Arguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _add(self, message: Json, choice: int, part: Part) -> None:
        """The same, as a message has it."""
        match part:
            case Text("reasoning", text):
                for name in ("reasoning_content", "reasoning"):
                    message[name] = message.get(name, "") + text
            case Called():
                message.setdefault("tool_calls", []).append(self._called(choice, part))
            case Arguments(index, text):
                message["tool_calls"][index]["function"]["arguments"] += text

    def _called(self, choice: int, part: Called) -> Json:
        assert self.spec.calls is not None
        name = identity(self.spec.calls.form, f"{self.head.id} {choice} {part.index}")
        return {"id": name, "type": "function", "function": {"name": part.name, "arguments": ""}}

    def _part(self, delta: Delta, content: Json, shown: Sequence[Shown] = ()) -> Json:
        return {
            "index": delta.choice,
            "delta": content,
            "logprobs": self._logprobs(shown),
            "finish_reason": None,
            **self._ids(shown),
        }

    def _logprobs(self, shown: Sequence[Shown], always: bool = False) -> Json | None:
        if self.spec.logprobs is None or not (shown or always):
            return None
        return self.teller.content(shown)


class _Completion(_Form):
    prefix, object, chunk = "cmpl-", "text_completion", "text_completion"

    def parts(self, delta: Delta) -> list[Json]:
        result = []
        if delta.first and (self._echo(delta.choice) or delta.prompt is not None):
            result.append(self._part(delta, self._echo(delta.choice), prompt=delta.prompt))
        shown, text = delta.shown, "".join(part.text for part in delta.parts if isinstance(part, Text))
        if text or (shown and delta.finish is None):
            result.append(self._part(delta, text, shown))
            shown = ()
        if delta.finish is not None:
            end = self._part(delta, "", shown)
            end["finish_reason"] = delta.finish
            end["stop_reason"] = delta.stop_reason
            result.append(end)
        if delta.first and self.spec.token_ids and result:
            result[0]["prompt_token_ids"] = self.head.prompts[delta.choice // self.spec.n]
        return result

    def choice(self, index: int, collected: _Collected) -> Json:
        ids = self._ids(collected.shown)
        if self.spec.token_ids:
            ids["prompt_token_ids"] = self.head.prompts[index // self.spec.n]
        return {
            "index": index,
            "text": self._echo(index) + collected.text(),
            "logprobs": self._logprobs(index, collected.shown, collected.prompt, always=True),
            "finish_reason": collected.finish,
            "stop_reason": collected.stop_reason,
            **self._prompt(index, collected.prompt),
            **ids,
        }

    def _echo(self, choice: int) -> str:
        return self.head.echoed[choice // self.spec.n] if self.head.echoed else ""

    def _part(
        self,
        delta: Delta,
        text: str,
        shown: Sequence[Shown] = (),
        prompt: bytes | None = None,
    ) -> Json:
        return {
            "index": delta.choice,
            "text": text,
            "logprobs": self._logprobs(delta.choice, shown, prompt),
            "finish_reason": None,
            **self._ids(shown),
        }

    def _logprobs(
        self,
        choice: int,
        shown: Sequence[Shown],
        prompt: bytes | None = None,
        always: bool = False,
    ) -> Json | None:
        """Of the prompt's tokens, where it is echoed and they are known, then of the answer's."""
        if self.spec.logprobs is None or not (shown or prompt is not None or always):
            return None
        text, echoed = self._echo(choice), []
        if self.spec.echo and prompt is not None:
            tokens = self.head.prompts[choice // self.spec.n]
            echoed = self.teller.echoed(tokens, text, self._unpacked(prompt))
        return self.teller.columns(echoed, shown, len(text))
