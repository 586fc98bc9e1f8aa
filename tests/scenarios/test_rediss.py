"""rediss://: through TLS to a real Valkey, by way of an end of TLS that the test puts before it."""

import asyncio
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme

from pillion.bus import UNREACHABLE, Connection


async def test_tls_with_the_authority_that_is_named(valkey: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "other.pem").write_bytes(trustme.CA().cert_pem.bytes())
    secured = 0

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal secured
        assert writer.get_extra_info("ssl_object") is not None
        secured += 1
        back, forth = await asyncio.open_unix_connection(str(valkey.socket))
        await asyncio.gather(_copy(reader, forth), _copy(back, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    def url(authority: str) -> str:
        return f"rediss://localhost:{port}/0?ssl_ca_certs={quote(str(tmp_path / authority))}"

    trusting, doubting = Connection(url("ca.pem"), "a"), Connection(url("other.pem"), "b")
    try:
        assert await trusting.call("SET", "key", "value") == b"OK"
        assert await trusting.pipeline(("GET", "key"), ("DEL", "key")) == [b"value", 1]
        with pytest.raises(UNREACHABLE):
            await doubting.call("PING")
        assert secured == 1
    finally:
        await trusting.close()
        await doubting.close()
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
