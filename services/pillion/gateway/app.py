"""The HTTP side: routes, who may use them, and errors in OpenAI's shape."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from prometheus_client import CONTENT_TYPE_LATEST

from pillion import clock, ids
from pillion.gateway import openapi, page
from pillion.gateway.absent import why
from pillion.gateway.admin import Admin
from pillion.gateway.cancelling import cancel
from pillion.gateway.explain import explain
from pillion.gateway.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Form
from pillion.gateway.generate import generate
from pillion.gateway.heads import Once, Standing
from pillion.gateway.plain import TYPE, answer, error_response, identity
from pillion.gateway.protocol import body, forms
from pillion.gateway.protocol.errors import ApiError
from pillion.gateway.protocol.request import Generation
from pillion.gateway.resume import find, idempotency_key, resume, sent_before
from pillion.gateway.state import Sender, State
from pillion.gateway.status import Board
from pillion.telemetry import names, tracing
from pillion.version import VERSION

log = logging.getLogger(__name__)

READ_ASIDE = 64 << 10  # bytes; longer bodies are read beside the event loop
_LABEL = re.compile(r"[\x21-\x7e]{1,128}")

IDENTITY = web.RequestKey("identity", str)  # the system's id for the request
PATH = web.RequestKey("path", str)  # as the routes have it
TENANT = web.RequestKey("tenant", str)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes = dict[str, Mapping[str, Handler]]
T = TypeVar("T")


class App:
    """Answers every path itself, so that doubled and trailing slashes do not matter."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._board = Board(state)
        self._routes: Routes = {
            "/v1/chat/completions": {"POST": self._generation(CHAT, forms.chat)},
            "/v1/completions": {"POST": self._generation(COMPLETION, forms.completion)},
            "/v1/models": {"GET": self._models},
            "/v1/status": {"GET": self._status},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._ready},
            "/health/ready": {"GET": self._ready},
            "/health/live": {"GET": self._live},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._document},
        }
        self._patterns: Routes = {
            "/v1/models/{id}": {"GET": self._model},
            "/v1/streams/{id}": {"GET": self._resume, "DELETE": self._cancel},
            "/v1/requests/{id}/explain": {"GET": self._explain},
        }
        if state.config.gateway.page:
            self._routes |= {path: {"GET": handler} for path, handler in page.routes()}
        if state.admins.needed:
            admin = Admin(state, self._raw, self._board)
            self._routes |= admin.routes
            self._patterns |= admin.patterns

    def application(self) -> web.Application:
        application = web.Application(client_max_size=self.state.config.gateway.max_body_bytes)
        application.router.add_route("*", "/{path:(?s:.*)}", self._answer)
        application.on_response_prepare.append(_mark)
        return application

    def _table(self) -> Mapping[str, Mapping[str, Handler]]:
        """Every path, with `{id}` for what varies, and its methods."""
        return {**self._routes, **self._patterns}

    # --- around every request ----------------------------------------------------------------------

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        http[IDENTITY] = ids.request_id()
        path = "/" + "/".join(part for part in http.path.split("/") if part)
        http[PATH] = path
        try:
            self.state.hosts.check(http.headers.get("Host"))
            handler = self._find(http.method, path)
            if path.startswith(("/v1/", "/tokenize", "/detokenize")):
                http[TENANT] = self.state.keys.tenant(http.headers.get("Authorization"))
            if path.startswith("/admin/"):
                self.state.admins.tenant(http.headers.get("Authorization"))
            return await handler(http)
        except ApiError as error:
            return error_response(error)
        except web.HTTPRequestEntityTooLarge:
            limit = self.state.config.gateway.max_body_bytes
            return error_response(
                ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
            )
        except web.HTTPException as error:
            return error_response(ApiError(error.status, error.reason))
        except ConnectionError:
            # Nobody is left to answer; raised, it would be logged as a failure of ours.
            gone = web.Response(status=499)
            gone.force_close()
            return gone
        except Exception:
            log.exception("request %s failed", http[IDENTITY])
            return error_response(
                ApiError(
                    500,
                    "The server failed on this request; its log says why.",
                    type="server_error",
                    code="internal",
                )
            )

    def _find(self, method: str, path: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            methods = next((found for pattern, found in self._patterns.items() if _fits(path, pattern)), None)
        if methods is None:
            reason = why(path)
            room = ("/admin/",) if path.startswith("/admin/") else ("/v1/", "/tokenize", "/detokenize")
            here = (
                ", ".join(known for known in self._table() if known.startswith(room)) or "no others like it"
            )
            raise ApiError(
                404,
                f"The endpoint {path[:128]} is not supported here{reason and ': ' + reason}; "
                f"there are {here}; /openapi.json has all.",
                code="not_found",
            )
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise _not_allowed(path, method, methods)
        return handler

    async def _raw(self, http: web.Request) -> bytes:
        # A web page may send other types anywhere without asking first; nobody else needs to.
        if http.content_type != TYPE:
            raise ApiError(
                415,
                f"The body must be JSON: send the header Content-Type: {TYPE}.",
                code="unsupported_media_type",
            )
        seconds = self.state.config.gateway.read_timeout
        try:
            async with asyncio.timeout(seconds):
                return await http.read()
        except TimeoutError:
            raise ApiError(
                408, f"The body did not come within {seconds:g} s.", code="request_timeout"
            ) from None
        except (RequestPayloadError, HttpProcessingError) as error:
            raise ApiError(400, f"The body cannot be read: {error}.", code="invalid_body") from None

    async def _read(self, raw: bytes, form: Form, read: Callable[[dict[str, Any]], T]) -> T:
        """What a body asks for. Raises ApiError."""
        if len(raw) < READ_ASIDE:
            return read(self.state.unknown.sift(body.parse(raw), form))
        texter = self.state.texter
        asked = self.state.unknown.sift(await texter(lambda: body.parse(raw)), form)
        return await texter(lambda: read(asked))

    # --- generation --------------------------------------------------------------------------------

    def _generation(self, form: Form, read: Callable[[dict[str, Any]], Generation]) -> Handler:
        async def handler(http: web.Request) -> web.StreamResponse:
            key = idempotency_key(http)
            with self._serving(http, http[PATH]) as sender:
                raw = await self._raw(http)
                once = None
                if key is not None:
                    once = Once.of(key, http[PATH], raw)
                    standing, once = await sent_before(self.state, sender.tenant, once)
                    if standing is not None:
                        return await self._go_on(http, sender, standing)
                return await generate(self.state, http, sender, await self._read(raw, form, read), once)

        return handler

    async def _resume(self, http: web.Request) -> web.StreamResponse:
        if http.method == "HEAD":  # it would take the stream from who reads it
            raise _not_allowed(http[PATH], "HEAD", ("GET", "DELETE"))
        name = identity(http[PATH])
        with self._serving(http, "/v1/streams/{id}") as sender:
            standing = await find(self.state, name, sender.tenant)
            return await self._go_on(http, sender, standing)

    async def _go_on(self, http: web.Request, sender: Sender, standing: Standing) -> web.StreamResponse:
        http[IDENTITY] = standing.head.request.id
        return await resume(self.state, http, sender, standing)

    async def _cancel(self, http: web.Request) -> web.Response:
        return await cancel(self.state, identity(http[PATH]), http[TENANT])

    async def _explain(self, http: web.Request) -> web.Response:
        return await explain(self.state, identity(http[PATH].removesuffix("/explain")), http[TENANT])

    @contextmanager
    def _serving(self, http: web.Request, route: str) -> Iterator[Sender]:
        """The server's span of a request that is answered with tokens."""
        attributes = {
            "http.request.method": http.method,
            "http.route": route,
            "url.path": http.path,
            "url.scheme": http.scheme,
        }
        parent = tracing.context(http.headers.get("traceparent", ""))
        span = self.state.accounts.tracer.start_span(
            f"{http.method} {route}", parent, SpanKind.SERVER, attributes
        )
        try:
            yield Sender(http[IDENTITY], http[TENANT], _label(http), span)
            span.set_attribute("http.response.status_code", 200)
        except ApiError as error:
            _fail(span, error.status, error.code or error.type)
            raise
        except (asyncio.CancelledError, ConnectionError):
            _fail(span, 499, "client_disconnected")
            raise
        finally:
            span.end()

    # --- the model ---------------------------------------------------------------------------------

    def _listed(self) -> list[dict[str, Any]]:
        """Every model that a heartbeat names, and the gateway's own also while no replica is there."""
        known = {name: facts.max_model_len for name, facts in self.state.replicas.models().items()}
        own = self.state.model
        lengths: dict[str, int | None] = {**({own.name: None} if own else {}), **known}
        return [
            {
                "id": name,
                "object": "model",
                "created": self.state.started,
                "owned_by": "pillion",
                "root": name,
                "parent": None,
                "max_model_len": length,
            }
            for name, length in lengths.items()
        ]

    async def _models(self, http: web.Request) -> web.Response:
        return answer({"object": "list", "data": self._listed()})

    async def _model(self, http: web.Request) -> web.Response:
        name = http[PATH].removeprefix("/v1/models/")
        for model in self._listed():
            if model["id"] == name:
                return answer(model)
        raise ApiError(404, "This model does not exist here.", param="model", code="model_not_found")

    async def _tokenize(self, http: web.Request) -> web.Response:
        asked = await self._read(await self._raw(http), TOKENIZE, forms.tokenize)
        model = self.state.served(asked.model)
        facts = self.state.facts(model)

        def told() -> web.Response:
            (tokens,) = model.encode(asked.prompt)
            return answer(
                {
                    "count": len(tokens),
                    "max_model_len": facts.max_model_len if facts else None,
                    "tokens": tokens,
                    "token_strs": list(map(model.tokenizer.token, tokens)) if asked.strings else None,
                }
            )

        return await self.state.texter(told)

    async def _detokenize(self, http: web.Request) -> web.Response:
        asked = await self._read(await self._raw(http), DETOKENIZE, forms.detokenize)
        model = self.state.served(asked.model)
        facts = self.state.facts(model)
        size = facts.vocab_size if facts else model.tokenizer.vocab_size
        if asked.tokens and max(asked.tokens) >= size:
            raise ApiError(
                400,
                f"tokens holds an id outside the vocabulary of {size} tokens.",
                param="tokens",
                code="out_of_range",
            )

        def told() -> web.Response:
            return answer({"prompt": model.tokenizer.decode(asked.tokens, skip_special=False)})

        return await self.state.texter(told)

    # --- the process -------------------------------------------------------------------------------

    async def _ready(self, http: web.Request) -> web.Response:
        verdict = self.state.verdict()
        told = {
            "status": "ready" if verdict.ready else "unready",
            "reason": verdict.reason or None,
            "message": verdict.message or None,
            "replicas": self.state.replicas.describe(clock.monotonic()),
        }
        headers = {} if verdict.ready else {"Retry-After": "2"}
        return answer(told, 200 if verdict.ready else 503, headers)

    async def _status(self, http: web.Request) -> web.Response:
        return answer(await self._board.status(http[TENANT]))

    async def _live(self, http: web.Request) -> web.Response:
        return answer({"status": "live"})

    async def _version(self, http: web.Request) -> web.Response:
        return answer({"version": VERSION})

    async def _document(self, http: web.Request) -> web.Response:
        models = self.state.replicas.models()
        name = self.state.model.name if self.state.model else ""
        more = self.state.config.gateway.unknown_fields == "warn"
        table, known = self._table().items(), {*models, name} - {""}
        return answer(openapi.document(table, known, models.get(name), more))

    async def _metrics(self, http: web.Request) -> web.Response:
        return web.Response(body=self.state.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _not_allowed(path: str, method: str, methods: Iterable[str]) -> ApiError:
    allow = tuple(methods)
    message = f"{path[:128]} takes {', '.join(allow)}, not {method}."
    return ApiError(405, message, code="method_not_allowed", allow=allow)


def _fits(path: str, pattern: str) -> bool:
    """Whether the path is the pattern's, with something for its `{id}`; that may have slashes."""
    before, _, behind = pattern.partition("{id}")
    return path.startswith(before) and path.endswith(behind)


def _label(http: web.Request) -> str | None:
    """The client's own id for the request, if it is fit for a header and a log line."""
    label = http.headers.get("X-Request-Id")
    return label if label and _LABEL.fullmatch(label) else None


async def _mark(http: web.Request, response: web.StreamResponse) -> None:
    """The system's id goes with every answer, and the client's own beside it."""
    # What aiohttp refuses by itself, as an unknown expectation, has no id yet.
    response.headers["x-request-id"] = http.get(IDENTITY) or ids.request_id()
    response.headers["Server"] = "pillion"  # and not what it is made with
    label = _label(http)
    if label is not None:
        response.headers["x-client-request-id"] = label


def _fail(span: Span, status: int, reason: str) -> None:
    span.set_attribute("http.response.status_code", status)
    span.set_attribute(names.ERROR_TYPE, reason)
    if status >= 499:
        span.set_status(Status(StatusCode.ERROR, reason))
