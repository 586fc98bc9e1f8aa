"""What the command line says of a server that it cannot have."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme
from click.testing import CliRunner

from pillion.ops.cli import main


class Keyed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "A key is wanted."}}')

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Keyed)
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


COMMANDS = (["chat", "hi"], ["explain", "abc"])


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_key_it_says_how_to_give_one(command: list[str], server: ThreadingHTTPServer) -> None:
    done = CliRunner().invoke(main, [*command, "--url", f"http://127.0.0.1:{server.server_port}"])
    assert (done.exit_code, done.output) == (
        1,
        "pillion: A key is wanted. Give it with --api-key KEY or PILLION_API_KEY.\n",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strange_certificate_is_no_missing_server(command: list[str], server: ThreadingHTTPServer) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    done = CliRunner().invoke(main, [*command, "--url", f"https://127.0.0.1:{server.server_port}"])
    assert done.exit_code == 1
    assert "shows a certificate that is not trusted here" in done.output and "SSL_CERT_FILE" in done.output
    assert "start one" not in done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_who_does_not_answer_is_named(command: list[str]) -> None:
    done = CliRunner().invoke(main, [*command, "--url", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert done.output.startswith("pillion: no server at http://127.0.0.1:9: connection refused; ")
