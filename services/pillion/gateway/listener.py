"""aiohttp's server, but whatever it answers before or instead of the app is in OpenAI's shape too."""

import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from pillion import ids
from pillion.gateway.app import error_response
from pillion.gateway.protocol.errors import ApiError

log = logging.getLogger(__name__)


class Runner(web.AppRunner):
    """Serves an application whose own 404s, 405s and 417s, and whose parser's errors, are JSON."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        answer = made.request_handler

        async def handler(http: web.BaseRequest) -> web.StreamResponse:
            try:
                return await answer(http)
            except web.HTTPException as error:
                return error_response(ApiError(error.status, f"{error.reason}.", code="invalid_http"))

        return _Server(
            handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """The parser tells the connection, but not the handler that waits for the body; it would for ever."""
        super().data_received(data)
        broken = bool(self._messages) and isinstance(self._messages[-1][0], _ErrInfo)
        if broken and self._current_request is not None and not self._current_request.content.is_eof():
            self._current_request.content.set_exception(RequestPayloadError("it is no valid HTTP"))

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
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        reason = exc.message.partition("\n")[0].partition(":")[0].strip(" .")
        response = error_response(
            ApiError(status, f"The request is no valid HTTP: {reason}.", code="invalid_http")
        )
        response.headers["x-request-id"] = ids.request_id()
        response.force_close()
        return response
