"""What a client is told when its request cannot be served, in OpenAI's error shape."""

import math
from collections.abc import Sequence
from typing import Any

from pillion.contracts.entries import Rate, Refusal

# Codes that more than one place knows.
CANCELLED = "cancelled"
BUS_GONE = "bus_unavailable"
MOVED = "stream_moved"
CONTRADICTION = "contradiction"

MAX_MESSAGE = 600  # characters; a template or a library may have put the user's text into one
MAX_PARAM = 128


class ApiError(Exception):
    """Ends a request with an HTTP status. Messages name fields and limits, never the user's text."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        rates: tuple[Rate, ...] = (),
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _cut(message, MAX_MESSAGE)
        self.type = type
        self.param = None if param is None else _cut(param, MAX_PARAM)
        self.code = code
        self.retry_after = retry_after  # seconds
        self.rates = rates
        self.allow = allow  # the methods that there are instead

    def headers(self) -> dict[str, str]:
        """What goes beside the body: when to come back, and how the client stands with its limits."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allow:
            headers["Allow"] = ", ".join(self.allow)
        for rate in self.rates:
            headers[f"x-ratelimit-limit-{rate.kind}"] = str(rate.limit)
            headers[f"x-ratelimit-remaining-{rate.kind}"] = str(rate.left)
            headers[f"x-ratelimit-reset-{rate.kind}"] = f"{math.ceil(rate.reset)}s"
        return headers

    def body(self) -> dict[str, Any]:
        """The JSON body, and the data of an error frame in a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."


def bad(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the parameter."""
    return ApiError(400, message, param=param, code=code)


def contradiction(fields: Sequence[str]) -> ApiError:
    """A 400: the fields together leave no token that an answer could begin with."""
    return bad(
        fields[0],
        f"{' and '.join(fields)} leave no token that the answer could begin with. Ask for less of it.",
        CONTRADICTION,
    )


def unavailable(code: str, message: str, retry_after: float = 1.0) -> ApiError:
    """A 503: the request is in order, but nothing can run it now. `code` is for machines."""
    return ApiError(503, message, type="service_unavailable", code=code, retry_after=retry_after)


def refused(word: Refusal) -> ApiError:
    """What admission or a scheduler says of a request that does not run."""
    return ApiError(
        word.status, word.message, type=word.type, param=word.param,
        code=word.code, retry_after=word.retry_after, rates=word.rates,
    )  # fmt: skip


def too_long() -> ApiError:
    return ApiError(
        504, "The request took longer than the server allows.", type="server_error", code="request_timeout"
    )


def cancelled() -> ApiError:
    return ApiError(499, "The request was cancelled.", type="server_error", code=CANCELLED)


def moved() -> ApiError:
    return ApiError(409, "The stream goes on in another connection.", code=MOVED)


def bus_gone() -> ApiError:
    return unavailable(BUS_GONE, "The message bus cannot be reached.", 2.0)
