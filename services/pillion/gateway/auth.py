"""Who may ask: bearer keys, kept as hashes and compared in constant time."""

import hashlib
import hmac
from collections.abc import Iterable

from pillion.gateway.protocol.errors import ApiError

TENANT_LENGTH = 16


class Keys:
    """The keys that open the door; none at all means that it stands open."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = tuple(_hash(key) for key in keys)

    def tenant(self, header: str | None) -> str:
        """Who sends this Authorization header, as the start of its key's hash. Raises ApiError (401)."""
        if not self._hashes:
            return ""
        scheme, _, key = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _refused("You must send an API key: Authorization: Bearer YOUR_KEY.")
        given = _hash(key.strip())
        # All are compared, so that the time tells nothing.
        if not sum(hmac.compare_digest(given, known) for known in self._hashes):
            raise _refused("The API key is not one of this server's.")
        return given.hex()[:TENANT_LENGTH]


def _hash(key: str) -> bytes:
    # surrogateescape: a header may hold any bytes.
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")
