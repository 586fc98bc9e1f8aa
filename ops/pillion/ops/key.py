"""`pillion key TENANT`: a new API key, and the line that lets it in."""

import hashlib
import secrets

PREFIX = "pillion-"  # so that scanners for leaked keys can know one


def new() -> tuple[str, str]:
    """A key of 256 random bits, and the SHA-256 in hex that the server keeps of it."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()
