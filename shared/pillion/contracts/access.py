"""How a scheduler and its executor know each other on a network: a shared secret, certificates, or both.

The secret goes with each stream as its hash, which is as good as the secret to whoever can read the traffic:
it keeps strangers out, not listeners. Certificates do both. A unix socket needs neither.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

import grpc

from pillion.config import ConfigError, Executor

_KEY = "pillion-secret"  # in the stream's metadata


class Access:
    """What one side shows, and what it asks of the other."""

    def __init__(self, settings: Executor) -> None:
        """Reads the PEM files. Raises ConfigError where they are incomplete or cannot be read."""
        self._proof = _proof(settings.executor_secret) if settings.executor_secret else None
        files = {
            "--executor-certfile": settings.executor_certfile,
            "--executor-keyfile": settings.executor_keyfile,
            "--executor-cafile": settings.executor_cafile,
        }
        given = {flag: name for flag, name in files.items() if name}
        if given and len(given) < len(files):
            missing = ", ".join(flag for flag in files if flag not in given)
            raise ConfigError(f"certificates between scheduler and executor need {missing} too")
        self._pem = tuple(_read(flag, name) for flag, name in given.items())

    @property
    def guarded(self) -> bool:
        """Whether a stranger is kept out."""
        return self._proof is not None or bool(self._pem)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a scheduler sends with its stream."""
        return ((_KEY, self._proof),) if self._proof else ()

    def admits(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether an executor lets in whom a stream with this metadata comes from."""
        if self._proof is None:
            return True
        shown = next((value for key, value in metadata if key == _KEY), "")
        return isinstance(shown, str) and hmac.compare_digest(shown.encode(), self._proof.encode())

    def server(self) -> grpc.ServerCredentials | None:
        """The executor's side of mutual TLS; None without certificates."""
        if not self._pem:
            return None
        certificate, key, authority = self._pem
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)

    def channel(self) -> grpc.ChannelCredentials | None:
        """The scheduler's side; None without certificates."""
        if not self._pem:
            return None
        certificate, key, authority = self._pem
        return grpc.ssl_channel_credentials(authority, key, certificate)


def _proof(secret: str) -> str:
    return hashlib.sha256(b"pillion executor\0" + secret.encode()).hexdigest()


def _read(flag: str, name: str) -> bytes:
    path = Path(name).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {flag} {path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{flag} {path} is no PEM file")
    return content
