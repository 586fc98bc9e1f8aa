"""The gateway's certificate."""

import ssl
from pathlib import Path

from pillion.config import ConfigError


class Certificate:
    """A chain and its key, from PEM files. `context` serves new connections with what was read last."""

    def __init__(self, certfile: str, keyfile: str | None = None) -> None:
        """`keyfile` None: the key is in `certfile` too. Raises ConfigError."""
        self.files = tuple(Path(name).expanduser() for name in (certfile, keyfile or certfile))
        self.context = _context()
        self.read()

    def read(self) -> None:
        """Reads the files again. Raises ConfigError, and then leaves things as they were."""
        _load(_context(), *self.files)  # tried apart: half a pair must not get into the one that serves
        _load(self.context, *self.files)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, certfile: Path, keyfile: Path) -> None:
    try:
        # Without a password of ours OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certfile, keyfile, password=lambda: b"")
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise ConfigError(
            f"--ssl-certfile {certfile} and --ssl-keyfile {keyfile} cannot be used: {reason}; "
            "they must be a PEM chain and its key without a password"
        ) from None
    except OSError as error:
        missing = next((path for path in (certfile, keyfile) if not path.is_file()), certfile)
        raise ConfigError(f"cannot read {missing} of --ssl-certfile: {error.strerror}") from None
