"""Names that nobody can guess or repeat."""

import secrets


def request_id() -> str:
    """128 random bits in hex. Knowing it is what lets a client resume a stream."""
    return secrets.token_hex(16)


def process_id() -> str:
    """Names one life of one process, e.g. a gateway's `out` stream or a consumer. 64 random bits in hex."""
    return secrets.token_hex(8)


def seed() -> int:
    """A sampling seed where the client gave none; 63 bits, so that any JSON reader keeps it whole."""
    return secrets.randbits(63)
