"""What clients do, drawn at random: requests of every kind, and ways to treat their answers. Pure."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pillion.ops.soak.wire import request

Manner = Literal["read", "slow", "leave", "half", "delete", "idle"]
"""read: the whole answer. slow: likewise, with pauses. leave: go away in the middle of it. half: go away in
the middle of the request. delete: cancel it by its id, then read on. idle: connect and say nothing."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a client does."""

    kind: str  # for the tally
    data: bytes  # the request as it goes over the wire
    manner: Manner = "read"
    moment: float = 0.0  # 0..1: where in the request or the answer something happens
    fresh: bool = True  # on a new connection, else on the client's kept one
    statuses: range | tuple[int, ...] = (200,)  # what is right; 429 and 503 are right in any case
    streams: bool = False


_SENTENCE = (
    "the quick brown fox jumps over a lazy dog while seven bright stars fall into grüne Wälder 東京 🙂 and "
    "nobody asks why numbers like 1729 or code such as def f(x): return x appear between them"
)
WORDS = tuple(_SENTENCE.split(" "))


class Traffic:
    """Draws acts. The same seed draws the same acts; `longest` is a prompt's most words."""

    def __init__(self, seed: int, longest: int, output: int = 48) -> None:
        self._random = random.Random(seed)
        self._longest = longest
        self._output = output

    def act(self) -> Act:
        makers, weights = zip(*_MIX, strict=True)
        (make,) = self._random.choices(makers, weights)
        act: Act = make(self)
        return act

    # --- the kinds ---------------------------------------------------------------------------------

    def plain(self) -> Act:
        return self._generation("whole", {})

    def stream(self) -> Act:
        return self._generation("stream", {"stream": True})

    def choices(self) -> Act:
        wish = {"n": self._random.randint(2, 4), "stream": self._random.random() < 0.5}
        return self._generation("n", wish | {"temperature": 1.0})

    def stops(self) -> Act:
        stop = self._random.sample(["e", "the", " a", "\n", ".", "zzz"], self._random.randint(1, 3))
        return self._generation("stop", {"stop": stop, "stream": self._random.random() < 0.7})

    def sampled(self) -> Act:
        wish: dict[str, Any] = {
            "seed": self._random.randint(0, 1 << 40), "temperature": self._random.random() * 2,
            "top_p": self._random.uniform(0.1, 1.0), "top_k": self._random.choice([-1, 1, 40]),
            "frequency_penalty": self._random.uniform(-1, 2), "logit_bias": {"11": -100},
        }  # fmt: skip
        return self._generation("sampled", wish | {"stream": self._random.random() < 0.5})

    def structured(self) -> Act:
        wish: dict[str, Any] = self._random.choice(
            [
                {"response_format": {"type": "json_object"}},
                {"guided_regex": f"[a-z]{{{self._random.randint(1, 40)}}}"},
                {"guided_choice": self._random.sample(WORDS, 3)},
            ]
        )
        return self._generation("structured", wish | {"stream": self._random.random() < 0.5})

    def long(self) -> Act:
        return self._generation("long prompt", {"stream": True, "max_tokens": 8}, self._longest)

    def same(self) -> Act:
        """A prompt that many share: it is found in the prefix index."""
        messages = [{"role": "user", "content": " ".join(WORDS * 4)}]
        return self._post("prefix", "/v1/chat/completions", {"messages": messages, "max_tokens": 4})

    def leave(self) -> Act:
        return self._as("leaves", "leave", self._random.choice([self.stream, self.choices, self.long])())

    def half(self) -> Act:
        return self._as("half sent", "half", self._random.choice([self.plain, self.long])())

    def slow(self) -> Act:
        return self._as("slow", "slow", self.stream())

    def delete(self) -> Act:
        act = self._generation("deleted", {"stream": True, "ignore_eos": True})
        return self._as("deleted", "delete", act)

    def delete_unknown(self) -> Act:
        path = f"/v1/streams/{self._random.getrandbits(128):032x}"
        return Act("delete unknown", request("DELETE", path), fresh=self._fresh(), statuses=range(200, 500))

    def idle(self) -> Act:
        return Act("idle", b"", "idle", self._random.random())

    def look(self) -> Act:
        path = self._random.choice(["/v1/models", "/health/live", "/version", "/metrics", "/openapi.json"])
        return Act("look", request("GET", path), fresh=self._fresh())

    def tokenize(self) -> Act:
        return self._post("tokenize", "/tokenize", {"prompt": self._text(self._random.randint(1, 200))})

    def invalid(self) -> Act:
        path, body = self._random.choice(_INVALID)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        data = request("POST", path, raw)
        return Act("invalid", data, fresh=self._fresh(), statuses=range(400, 500))

    # --- parts -------------------------------------------------------------------------------------

    def _generation(self, kind: str, wish: dict[str, Any], words: int = 40) -> Act:
        text = self._text(self._random.randint(max(1, words // 8), words))
        body = {"max_tokens": self._random.randint(1, self._output)} | wish
        if self._random.random() < 0.6:
            messages = [{"role": "user", "content": text}]
            return self._post(kind, "/v1/chat/completions", {"messages": messages} | body)
        return self._post(kind, "/v1/completions", {"prompt": text} | body)

    def _post(self, kind: str, path: str, body: dict[str, Any]) -> Act:
        streams = bool(body.get("stream"))
        data = request("POST", path, json.dumps(body).encode())
        return Act(kind, data, fresh=self._fresh(), streams=streams)

    def _as(self, kind: str, manner: Manner, act: Act) -> Act:
        statuses = range(200, 500) if manner == "delete" else act.statuses
        return Act(kind, act.data, manner, self._random.random(), True, statuses, act.streams)

    def _fresh(self) -> bool:
        return self._random.random() < 0.3

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))


_MIX: tuple[tuple[Callable[[Traffic], Act], int], ...] = (
    (Traffic.plain, 14), (Traffic.stream, 18), (Traffic.choices, 8), (Traffic.stops, 8), (Traffic.sampled, 6),
    (Traffic.long, 4), (Traffic.same, 4), (Traffic.leave, 12), (Traffic.half, 4), (Traffic.slow, 3),
    (Traffic.delete, 6), (Traffic.delete_unknown, 2), (Traffic.idle, 2), (Traffic.look, 6),
    (Traffic.tokenize, 4), (Traffic.invalid, 12), (Traffic.structured, 6),
)  # fmt: skip

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_INVALID: tuple[tuple[str, Any], ...] = (
    (_CHAT, b""), (_CHAT, b"{"), (_CHAT, b"[]"), (_CHAT, b"\xff\xfe"), (_CHAT, b'{"messages": NaN}'),
    (_CHAT, {"messages": []}), (_CHAT, {"messages": [{"role": "user"}]}),
    (_CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}),
    (_CHAT, {"messages": [{"role": "user", "content": "x"}], "temprature": 1}),
    (_COMPLETION, {}), (_COMPLETION, {"prompt": ""}), (_COMPLETION, {"prompt": "x", "max_tokens": 0}),
    (_COMPLETION, {"prompt": "x", "max_tokens": 1 << 30}), (_COMPLETION, {"prompt": [1 << 30]}),
    (_COMPLETION, {"prompt": "x", "n": 1000}), (_COMPLETION, {"prompt": "x", "temperature": "hot"}),
    (_COMPLETION, {"prompt": "x", "top_p": 0}), (_COMPLETION, {"prompt": "x", "model": "no such model"}),
    (_COMPLETION, {"prompt": "x", "stop_token_ids": [1 << 30]}), (_COMPLETION, {"prompt": [5] * 20_000}),
    (_COMPLETION, b'{"prompt": "x", "temperature": 1e999}'), ("/v1/embeddings", {"input": "x"}),
    (_COMPLETION, {"prompt": "x", "guided_regex": "("}), (_COMPLETION, {"prompt": "x", "guided_json": "{"}),
    (_COMPLETION, {"prompt": "x", "guided_grammar": "start: " + "(" * 5000}),
    (_COMPLETION, {"prompt": "x", "guided_json": {"type": "integer", "multipleOf": 1000003}}),
    ("/tokenize", {}), ("/detokenize", {"tokens": [1 << 30]}),
)  # fmt: skip
