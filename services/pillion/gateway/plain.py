"""Answers that are no generation: JSON, errors; and the ids in the paths that ask for them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from pillion.gateway.protocol.errors import ApiError

TYPE = "application/json"
_ID = re.compile(r"[0-9a-f]{32}")


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), status=status, content_type=TYPE, headers=headers)


def error_response(error: ApiError) -> web.Response:
    """The error as an answer, in OpenAI's shape."""
    response = answer(error.body(), error.status, error.headers())
    if error.status == 408:
        response.force_close()
    return response


def identity(path: str) -> str:
    """The request that the path names, as the system knows it. Raises ApiError (404)."""
    name = path.rstrip("/").rpartition("/")[2].removeprefix("chatcmpl-").removeprefix("cmpl-")
    if not _ID.fullmatch(name):
        raise ApiError(404, "This is no request id.", code="not_found")
    return name
