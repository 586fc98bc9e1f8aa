"""Who may ask: bearer keys, kept as hashes and compared in constant time; each belongs to a tenant."""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pillion.config import ConfigError
from pillion.gateway.protocol.errors import ApiError

TENANT_LENGTH = 16  # of a tenant that has no name
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Keys:
    """The keys that open the door; none at all means that it stands open."""

    def __init__(
        self, keys: Iterable[str], file: str | Path | None = None, kind: str = "one of this server's API keys"
    ) -> None:
        """`keys` as clients send them; `file` has tenants and hashes, see `_listed`; `kind`: what is wanted,
        for people. Raises ConfigError.
        """
        self._kind = kind
        hashes = [_hash(key) for key in keys]
        self._own = tuple((known, known.hex()[:TENANT_LENGTH]) for known in hashes)
        self.files = () if file is None else (Path(file).expanduser(),)
        self._known: tuple[tuple[bytes, str], ...] = ()
        self.read()

    def read(self) -> None:
        """Reads the file again. Raises ConfigError, and then leaves things as they were."""
        listed: list[tuple[bytes, str]] = []
        for file in self.files:
            listed += _listed(file)
            if not listed:
                raise ConfigError(f"{file} names no key; `pillion key TENANT` makes one")
        # A key of both is its named tenant's.
        self._known = (*listed, *self._own)

    @property
    def needed(self) -> bool:
        return bool(self._known)

    def tenant(self, header: str | None) -> str:
        """Whose key this Authorization header brings: a name, or the start of the key's hash; "" where no key
        is needed. Raises ApiError (401).
        """
        if not self._known:
            return ""
        scheme, _, key = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _refused(f"You must send {self._kind}: Authorization: Bearer YOUR_KEY.")
        given = _hash(key.strip())
        # All are compared, so that the time tells nothing.
        found = [tenant for known, tenant in self._known if hmac.compare_digest(given, known)]
        if not found:
            raise _refused(f"The key that you sent is not {self._kind}.")
        return found[0]


def _hash(key: str) -> bytes:
    # surrogateescape: a header may hold any bytes.
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _listed(file: Path) -> Iterator[tuple[bytes, str]]:
    """Hash and tenant of each key in a file of lines `tenant = "SHA-256 in hex"`, or a list of several."""
    try:
        tree = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read --api-keys-file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None
    tenants: dict[str, str] = {}
    for tenant, value in tree.items():
        if not _NAME.fullmatch(tenant):
            raise ConfigError(f"{file}: {tenant[:80]!r} is no tenant's name: 1 to 64 letters, digits, -, _")
        for known in value if isinstance(value, list) else [value]:
            if not isinstance(known, str) or not _HASH.fullmatch(known):
                # What stands there may be the key itself: it is not repeated.
                raise ConfigError(f"{file}: {tenant} needs a key's hash, as `pillion key {tenant}` prints it")
            if tenants.setdefault(known, tenant) != tenant:
                raise ConfigError(f"{file}: {tenants[known]} and {tenant} have the same key")
            yield bytes.fromhex(known), tenant


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")
