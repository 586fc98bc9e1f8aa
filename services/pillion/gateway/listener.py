"""aiohttp's server with deadlines for slow clients, and with errors in OpenAI's shape before the app too."""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from pillion import ids
from pillion.gateway.plain import error_response
from pillion.gateway.protocol.errors import ApiError

log = logging.getLogger(__name__)

LINGER = 5.0  # seconds in which the rest of a body that nobody wants is read off, so that the answer arrives
MAX_LINE = 8190  # bytes of the request line, and of one header
MAX_HEADERS = 128
TELL = 10.0  # seconds between two lines about refused connections
UNSENT = 64 << 10  # bytes that the system holds for a client beyond those on their way


@dataclass(frozen=True, slots=True)
class Patience:
    """What one server grants to its clients."""

    read_seconds: float  # for a request's head, from its first byte
    write_seconds: float  # for what waits to be sent
    idle_seconds: float  # without a request
    connections: int


class Runner(web.AppRunner):
    """Serves an application whose own 404s, 405s and 417s, and whose parser's errors, are JSON."""

    def __init__(self, app: web.Application, patience: Patience, **more: Any) -> None:
        super().__init__(
            app,
            keepalive_timeout=patience.idle_seconds,
            lingering_time=LINGER,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            **more,
        )
        self._patience = patience

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        answer = made.request_handler

        async def handler(http: web.BaseRequest) -> web.StreamResponse:
            cast(_Connection, http.protocol).begun()
            try:
                return await answer(http)
            except web.HTTPException as error:
                return error_response(ApiError(error.status, f"{error.reason}.", code="invalid_http"))

        return _Server(
            self._patience,
            handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )


class _Server(web.Server):
    def __init__(self, patience: Patience, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.patience = patience
        self._refused = 0
        self._told = float("-inf")

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    @property
    def full(self) -> bool:
        return len(self._connections) >= self.patience.connections

    def refuse(self) -> None:
        """Counts a connection that was one too many, and says so now and then."""
        self._refused += 1
        now = self._loop.time()
        if now - self._told > TELL:
            log.warning("refused %d connections: as many as --max-connections are open", self._refused)
            self._told, self._refused = now, 0


class _Late(HttpProcessingError):
    """A head that does not come to its end."""


class _Deadline:
    """A timer that can be stopped and started again."""

    __slots__ = ("_handle",)

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, loop: asyncio.AbstractEventLoop, seconds: float, passed: Callable[[], None]) -> None:
        """Anew, if it ran already."""
        self.stop()
        self._handle = loop.call_later(seconds, passed)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Connection(web.RequestHandler):
    """One client. It has `read_seconds` for a head, and `write_seconds` to take what waits for it."""

    __slots__ = ("_patience", "_raw", "_reading", "_writing")

    def __init__(self, manager: _Server, **more: Any) -> None:
        super().__init__(manager, **more)
        self._patience = manager.patience
        self._raw: asyncio.Transport | None = None  # until it is closed, which comes after what is sent
        self._reading = _Deadline()  # runs while a head is half here
        self._writing = _Deadline()  # runs while the client does not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT") and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        assert isinstance(self._manager, _Server)
        if self._manager.full:
            self._manager.refuse()
            self._manager = None  # it never was one of the server's
            self._force_close = True
            raw.write(_raw_answer(_busy()))
            transport.close()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._raw = None
        self._reading.stop()
        self._writing.stop()
        super().connection_lost(exc)

    async def start(self) -> None:
        try:
            await super().start()
        finally:
            # Closing waits until all is sent, and for a client that reads nothing that is never.
            if self._raw is not None:
                self._writing.start(self._loop, self._patience.write_seconds, self._cut_off)

    # --- a client that sends slowly

    def data_received(self, data: bytes) -> None:
        """The parser tells the connection, but not the handler that waits for the body; it would for ever."""
        super().data_received(data)
        broken = bool(self._messages) and isinstance(self._messages[-1][0], _ErrInfo)
        if broken and self._current_request is not None and not self._current_request.content.is_eof():
            self._current_request.content.set_exception(RequestPayloadError("it is no valid HTTP"))
        if self._messages:
            self._reading.stop()
        elif data and not self._request_in_progress and not self._reading.runs:
            self._reading.start(self._loop, self._patience.read_seconds, self._late)

    def begun(self) -> None:
        """A request is here: what came since its head was its body."""
        self._reading.stop()

    def _late(self) -> None:
        self._reading.stop()
        if self._waiter is not None and not self._waiter.done():
            self._messages.append((_ErrInfo(408, _Late(code=408), ""), EMPTY_PAYLOAD))
            self._waiter.set_result(None)

    def _process_keepalive(self) -> None:
        if not self._reading.runs:  # else that deadline holds
            super()._process_keepalive()

    # --- a client that reads slowly

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(self._loop, self._patience.write_seconds, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing.stop()

    def _cut_off(self) -> None:
        if self._raw is not None:
            log.info("cut off a client that took nothing for %g s", self._patience.write_seconds)
            self._raw.abort()

    # --- errors

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that cannot be decoded fails once more where its rest is read off, after the answer."""
        error = kw.get("exc_info")
        if isinstance(error, RequestPayloadError | HttpProcessingError):
            log.debug("a body ended in what is no valid HTTP: %s", type(error).__name__)
        else:
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no valid HTTP; the connection ends with it. Raises ConnectionError.

        The parser's words go no further than their first colon or line: then comes what the client sent.
        """
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.debug("refused what is no valid HTTP: %s", type(exc).__name__)
        if isinstance(exc, _Late):
            seconds = self._patience.read_seconds
            return _last(ApiError(408, f"No request came within {seconds:g} s.", code="request_timeout"))
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        reason = exc.message.partition("\n")[0].partition(":")[0].strip(" .")
        return _last(ApiError(status, f"The request is no valid HTTP: {reason}.", code="invalid_http"))


def _busy() -> ApiError:
    return ApiError(
        503,
        "The server has as many connections as it takes.",
        type="service_unavailable",
        code="too_many_connections",
        retry_after=1.0,
    )


def _last(error: ApiError) -> web.Response:
    """The answer after which the connection is closed."""
    response = error_response(error)
    response.headers["x-request-id"] = ids.request_id()
    response.force_close()
    return response


def _raw_answer(error: ApiError) -> bytes:
    """The same in bytes, for a connection that gets no more than this."""
    answer = _last(error)
    body = answer.body if isinstance(answer.body, bytes) else b""
    head = [f"HTTP/1.1 {error.status} {answer.reason}", "Connection: close", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + body
