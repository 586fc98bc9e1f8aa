"""From what a user writes to files: paths, and a hub that speaks the real hub's protocol on loopback."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pillion.modelfiles import Located, ModelFileError, locate

COMMIT = "1" * 40


def test_a_folder_and_a_gguf_file(tiny_model):
    folder, gguf = tiny_model("llama2"), tiny_model("llama2", "gguf")
    assert locate(str(folder)) == Located("folder", folder, str(folder))
    assert locate(str(gguf)) == Located("gguf", gguf, str(gguf))
    assert locate(str(gguf.parent)) == Located("gguf", gguf, str(gguf.parent))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no model at .*folder with config.json, a .gguf file, a hub id, or demo"),
        (lambda path: path.mkdir(), "neither config.json nor a .gguf file"),
        (lambda path: path.write_bytes(b"PK"), "is no GGUF file; for safetensors name the folder"),
        (
            lambda path: path.mkdir() or [(path / f"{n}.gguf").write_bytes(b"GGUF") for n in "ab"],
            r"holds 2 GGUF files; name one of them, e\.g\. .*a\.gguf",
        ),
    ],
)
def test_what_is_no_model_says_so(tmp_path, make, message):
    make(tmp_path / "it.gguf")
    with pytest.raises(ModelFileError, match=message):
        locate(str(tmp_path / "it.gguf"))


def test_the_demo_model_needs_a_folder_to_be_kept_in():
    with pytest.raises(ModelFileError, match="models folder"):
        locate("demo")


class Hub(http.server.BaseHTTPRequestHandler):
    """The three routes of the hub that a download uses."""

    files: dict[str, bytes] = {}
    seen: list[tuple[str, str, str | None]] = []

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.seen.append((self.command, self.path, self.headers.get("Authorization")))
        if self.path.startswith(("/api/models/who/gated", "/who/gated")):
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, body)
        if match := re.fullmatch(r"/api/models/who/tiny(?:/revision/([^?]+))?(?:\?.*)?", self.path):
            if match[1] not in (None, "main", "v1", COMMIT):
                return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            listing = {
                "id": "who/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.files],
            }
            return self.reply(200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        if match := re.fullmatch(r"/api/models/who/tiny/tree/([^?]+)(?:\?.*)?", self.path):
            tree = [
                {"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()
            ]
            return self.reply(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
        if match := re.fullmatch(r"/who/tiny/resolve/[^/]+/(.+)", self.path):
            content = self.files.get(match[1])
            if content is None:
                return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            etag = hashlib.sha256(content).hexdigest()
            return self.reply(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, body)
        return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def reply(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_) -> None:
        return None


@pytest.fixture
def hub(tiny_model):
    folder = tiny_model("llama2")
    Hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    Hub.files["pytorch_model.bin"] = b"never fetched"
    Hub.files["q/tiny.gguf"] = tiny_model("llama2", "gguf").read_bytes()
    Hub.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(home: Path, endpoint: str, *arguments: object, **environ: str) -> str:
    """`locate` in a process of its own: the hub's client reads its variables when it is imported."""
    script = (
        "import json, sys\n"
        "from pillion.modelfiles import ModelFileError, locate\n"
        "model, revision, weights = json.loads(sys.argv[1])\n"
        "try:\n"
        "    print(locate(model, revision, weights=weights).path)\n"
        "except ModelFileError as error:\n"
        "    print('error:', error)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **environ}
    return subprocess.check_output(
        [sys.executable, "-c", script, json.dumps(arguments)], env=environ, text=True, timeout=60
    ).strip()


def test_a_hub_id_is_fetched_with_token_and_revision_then_kept(hub, tmp_path, tiny_model):
    path = Path(run(tmp_path, hub, "who/tiny", "v1", True, HF_TOKEN="hf_secret"))
    assert path.is_relative_to(tmp_path)
    names = {entry.name for entry in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"pytorch_model.bin", "q"} & names
    assert (path / "model.safetensors").read_bytes() == (
        tiny_model("llama2") / "model.safetensors"
    ).read_bytes()
    assert {token for _, route, token in Hub.seen if "who/tiny" in route} == {"Bearer hf_secret"}
    assert any("v1" in route for _, route, _ in Hub.seen)
    seen = len(Hub.seen)
    assert seen > 3
    assert run(tmp_path, hub, "who/tiny", "v1", True, HF_HUB_OFFLINE="1") == str(path)
    assert len(Hub.seen) == seen


def test_the_gateway_leaves_the_weights_on_the_hub(hub, tmp_path):
    path = Path(run(tmp_path, hub, "who/tiny", None, False))
    assert (path / "config.json").is_file()
    assert not (path / "model.safetensors").exists()
    assert not [route for _, route, _ in Hub.seen if "safetensors" in route]


def test_one_gguf_file_of_a_repository(hub, tmp_path, tiny_model):
    path = Path(run(tmp_path, hub, "who/tiny/q/tiny.gguf", None, True))
    assert path.read_bytes() == tiny_model("llama2", "gguf").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (("who/none", None, True), {}, "is not on the hub, .*HF_TOKEN.*no such path"),
        (("who/gated", None, True), {}, "is gated: .*set HF_TOKEN"),
        (("who/tiny", "v9", True), {}, "who/tiny@v9 has no such revision"),
        (("who/tiny/none.gguf", None, True), {}, "does not have that file"),
        (("who/tiny", None, True), {"HF_HUB_OFFLINE": "1"}, "not in the hub's cache .*HF_HUB_OFFLINE"),
        (("who/tiny", None, True), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached|cannot fetch"),
    ],
)
def test_the_hubs_errors_say_what_to_do(hub, tmp_path, arguments, environ, message):
    said = run(tmp_path, hub, *arguments, HF_TOKEN="hf_secret", **environ)
    assert re.match(f"error: .*{message}", said), said
    assert "hf_secret" not in said
