"""HTTPS at a gateway's own process, with the certificates of an authority that the test makes."""

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from pillion.config import ConfigError, load
from pillion.gateway.tls import Certificate
from pillion.ops import health, web
from pillion.ops.web import Unreachable
from tests.servers import free_port


def write(folder: Path, authority: trustme.CA, name: str = "localhost") -> tuple[Path, Path]:
    made = authority.issue_cert(name)
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    return chain, key


def shake(serving: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """A handshake in memory. Raises ssl.SSLError where it fails."""
    pipes = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    sides = [
        trusting.wrap_bio(*pipes[0], server_hostname="localhost"),
        serving.wrap_bio(*pipes[1], server_side=True),
    ]
    for _ in range(4):
        for side, (_, out), (into, _) in zip(sides, pipes, reversed(pipes), strict=True):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            into.write(out.read())
    assert sides[0].version() == "TLSv1.3"


def serial(port: int, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection is shown; raises ssl.SSLError where it is not trusted."""
    with (
        socket.create_connection(("127.0.0.1", port), 5) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secured,
    ):
        found = secured.getpeercert()
        assert found is not None and secured.version() in ("TLSv1.2", "TLSv1.3")
        return str(found["serialNumber"])


async def test_https_and_a_new_certificate_while_it_runs(processes: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    chain, key = write(tmp_path, authority)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    port = free_port()
    running = processes(port=port, ssl_certfile=chain, ssl_keyfile=key)
    process = running.start("gateway")
    url, deadline = f"https://127.0.0.1:{port}", time.monotonic() + 90
    while True:
        try:
            # The command line knows the file, so it trusts this very certificate, on whatever address.
            assert web.get(f"{url}/health/live", certificate=str(chain)) == (200, {"status": "live"})
            break
        except Unreachable:
            assert process.poll() is None and time.monotonic() < deadline, running.log("gateway")
            await asyncio.sleep(0.05)
    assert "listens on https://" in running.log("gateway")
    first = serial(port, trusting)
    with pytest.raises(ssl.SSLError):
        serial(port, ssl.create_default_context())
    old = ssl.create_default_context()
    authority.configure_trust(old)
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError, ValueError)):
        serial(port, old)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(Unreachable):
        web.get(f"{url}/health/live", certificate=str(write(other, trustme.CA())[0]))
    with pytest.raises(Unreachable):
        web.get(f"http://127.0.0.1:{port}/health/live")
    config = load({"port": port, "ssl_certfile": str(chain)}, environ={}).config
    assert "does not answer" not in str(health.check("gateway", config))
    write(tmp_path, authority)
    while serial(port, trusting) == first:
        assert time.monotonic() < deadline, running.log("gateway")
        await asyncio.sleep(0.1)
    log = running.log("gateway")
    assert f"read {chain}, {key} again" in log and "Traceback" not in log


def test_what_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    authority = trustme.CA()
    chain, key = write(tmp_path, authority)
    other = tmp_path / "other"
    other.mkdir()
    foreign = write(other, authority)[1]
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    locked = tmp_path / "locked.pem"
    # As `openssl genrsa -aes256` marks it; the password would be asked for on the terminal.
    locked.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,"
        "00000000000000000000000000000000\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
    )
    for certfile, keyfile, words in (
        (chain, foreign, "mismatch"),
        (garbage, key, "cannot be used"),
        (chain, garbage, "cannot be used"),
        (chain, locked, "without a password"),
        (tmp_path / "none.pem", key, "cannot read .*none.pem"),
        (chain, tmp_path / "none.pem", "cannot read .*none.pem"),
        (chain, None, "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=words):
            Certificate(str(certfile), str(keyfile) if keyfile else None)
    # Half of a new pair leaves what serves as it is.
    served = Certificate(str(chain), str(key))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    chain.write_bytes((other / "chain.pem").read_bytes())
    with pytest.raises(ConfigError, match="mismatch"):
        served.read()
    shake(served.context, trusting)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl_certfile": "/none.pem"}, "cannot read /none.pem"),
        ({"ssl_keyfile": "/none.pem"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"api_keys_file": "/none.toml"}, "cannot read --api-keys-file /none.toml"),
    ],
)
async def test_a_process_with_wrong_files_ends_with_one_line(
    processes: Any, settings: Any, words: str
) -> None:
    running = processes(port=free_port())
    process = running.start("gateway", **settings)
    assert await asyncio.to_thread(process.wait, 60) == 2
    assert words in running.log("gateway") and "Traceback" not in running.log("gateway")
