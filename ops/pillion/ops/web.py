"""The little HTTP that the command line speaks to a gateway."""

import http.client
import json
import ssl
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

READ_SECONDS = 120.0  # between two pieces of an answer; a stream says something at least that often


class Unreachable(Exception):
    """Nobody answers, or not with HTTP."""


class Untrusted(Unreachable):
    """Its certificate is nobody's who is trusted here; the message says what to do."""


class Refused(Exception):
    """The server answered with an error; the message is the server's own."""


def get(
    url: str, api_key: str | None = None, timeout: float = 5.0, certificate: str | None = None
) -> tuple[int, Any]:
    """Status and decoded JSON (the plain text where it is none) of a GET. Raises Unreachable.

    `certificate` is the PEM file of a server on this machine: it must be that one, whatever its names are.
    """
    try:
        with closing(_connect(url, timeout, certificate)) as connection:
            connection.request("GET", urlsplit(url).path or "/", headers=_headers(api_key))
            answer = connection.getresponse()
            return answer.status, _decoded(answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from None


def stream(
    url: str, body: dict[str, Any], api_key: str | None = None, certificate: str | None = None
) -> Generator[Any, None, None]:
    """The decoded events of a streamed POST, without [DONE]. Raises Unreachable, Refused.

    Closing the iterator closes the connection, which cancels the request.
    """
    try:
        with closing(_connect(url, READ_SECONDS, certificate)) as connection:
            headers = _headers(api_key) | {"Content-Type": "application/json"}
            connection.request("POST", urlsplit(url).path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise refusal(answer.status, _decoded(answer.read()))
            for line in answer:
                data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    event = json.loads(data)
                    if "error" in event:
                        raise Refused(error_message(event))
                    yield event
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from None


def _connect(url: str, timeout: float, certificate: str | None) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=timeout)
    context = ssl.create_default_context() if certificate is None else trusting(certificate)
    return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)


def trusting(certificate: str) -> ssl.SSLContext:
    """For a server on this machine with this PEM file, whatever names are in it. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(Path(certificate).expanduser())
    return context


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _unreachable(url: str, error: Exception) -> Unreachable:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Untrusted(
            f"{urlsplit(url).netloc} shows a certificate that is not trusted here ({error.verify_message}); "
            "name the PEM file of its authority in SSL_CERT_FILE"
        )
    return Unreachable(_reason(error))


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def refusal(status: int, body: Any) -> Refused:
    """With what to do about it on the command line, where there is something."""
    message = error_message(body)
    return Refused(message + " Give it with --api-key KEY or PILLION_API_KEY." * (status == 401))


def error_message(body: Any) -> str:
    """The message of an error in OpenAI's shape, else the body as it is."""
    try:
        return str(body["error"]["message"])
    except (KeyError, TypeError):
        return str(body)[:500]


def _decoded(body: bytes) -> Any:
    text = body.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
