"""Keys and whose they are."""

import asyncio
import hashlib
import hmac
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pillion.config import ConfigError, load
from pillion.gateway import auth, renewal
from pillion.gateway.auth import Keys
from pillion.gateway.protocol.errors import ApiError
from pillion.ops.cli import main


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_file_names_tenants_and_one_may_have_several_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'alice = "{sha("a")}"\nteam-b = ["{sha("b1")}", "{sha("b2")}"]\n')
    keys = Keys(("flag",), file)
    assert [keys.tenant(f"Bearer {key}") for key in ("a", "b1", "b2")] == ["alice", "team-b", "team-b"]
    assert keys.tenant("Bearer flag") == sha("flag")[:16]
    for header in (None, "", "Bearer", "Bearer c", "Basic a", f"Bearer {sha('a')}"):
        with pytest.raises(ApiError) as refused:
            keys.tenant(header)
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    held = repr(vars(keys))
    assert not [key for key in ("'flag'", "'a'", "'b1'") if key in held], "keys are kept as hashes only"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read --api-keys-file"),
        ("", "names no key"),
        ("alice", "is no TOML"),
        ("alice = 'my-own-key'", "alice needs a key's hash"),
        ("alice = 5", "alice needs a key's hash"),
        ("[alice]\nkey = 'x'", "alice needs a key's hash"),
        (f"'a b' = '{sha('x')}'", "is no tenant's name"),
        (f"a = '{sha('x')}'\nb = '{sha('x')}'", "a and b have the same key"),
    ],
)
def test_a_file_that_is_wrong_opens_no_door(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        Keys((), file)
    assert "my-own-key" not in str(error.value)


def test_every_key_is_compared_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(("one", "two", "three"))
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    keys.tenant("Bearer one")
    assert len(compared) == 3


def test_a_made_key_opens_the_door(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    lines = []
    for tenant in ("alice", "bob"):
        made = CliRunner().invoke(main, ["key", tenant])
        assert made.exit_code == 0
        key = made.stderr.split()[-1]
        assert key not in made.stdout and len(key) > 40
        with file.open("a") as opened:
            opened.write(made.stdout)
        lines.append((tenant, key))
    keys = Keys((), file)
    assert [keys.tenant(f"Bearer {key}") for _, key in lines] == ["alice", "bob"]
    assert CliRunner().invoke(main, ["key", "no such name"]).exit_code == 2


def test_the_configuration_shows_no_secret(tmp_path: Path) -> None:
    environ = {
        "PILLION_API_KEY": "sesame,open",
        "PILLION_EXECUTOR_SECRET": "sesame",
        "PILLION_REDIS": "redis://:sesame@x",
    }
    shown = CliRunner().invoke(main, ["config", "show"], env=environ)
    assert shown.exit_code == 0 and shown.output.count("(hidden)") == 3
    assert "sesame" not in shown.output
    assert load(environ=environ).config.gateway.api_key == ("sesame", "open")


async def test_requests_carry_their_tenant_and_keys_come_and_go(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, until: Any
) -> None:
    monkeypatch.setattr(renewal, "EVERY", 0.05)
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys.toml"
    file.write_text(f'alice = "{sha("old")}"\n')
    stack = await start(api_keys_file=str(file))

    async def status(key: str) -> int:
        got: int = (await stack.fetch("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}))[0]
        return got

    answer = stack.post("/v1/completions", {"prompt": "x"}, headers={"Authorization": "Bearer old"})
    request = await stack.driver.request()
    assert request.tenant == "alice"
    await stack.driver.play(request, [100])
    assert (await answer)[0] == 200
    assert [await status("old"), await status("new")] == [200, 401]
    file.write_text(f'alice = "{sha("new")}"\n')
    async with asyncio.timeout(10):
        while [await status("old"), await status("new")] != [401, 200]:
            await asyncio.sleep(0.02)
    # A file that is broken changes nothing, and is told once.
    file.write_text("alice = 'oops'\n")
    await until(lambda: "what was read before stays in use" in caplog.text)
    assert await status("new") == 200
    file.unlink()
    await until(lambda: "cannot read --api-keys-file" in caplog.text)
    assert await status("new") == 200
