"""The environment of `ops/clients`: pinned, apart from ours, and installed once."""

import re
import tomllib
from pathlib import Path

import pytest

from pillion.ops.clients.environment import NODE_PACKAGE, ROOT, Environment, InstallError
from pillion.ops.clients.main import CLIENTS, SCRIPTS, Target

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_all_of_it_is_pinned_and_none_of_it_comes_with_dev() -> None:
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", each) for each in EXTRAS["clients"])
    assert re.fullmatch(r"openai@[0-9.]+", NODE_PACKAGE)
    assert set(EXTRAS["clients"]) & set(EXTRAS["executor"]) == {"torch==2.13.0"}  # else a CUDA build comes
    assert not any("clients" in each for name, extra in EXTRAS.items() for each in extra)


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (tmp_path / ".has").write_text("\n".join([*EXTRAS["clients"], NODE_PACKAGE]))
    environment.prepare(node=True)
    assert [path.name for path in tmp_path.iterdir()] == [".has"]


def test_what_cannot_be_installed_is_told(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to("/bin/false")
    with pytest.raises(InstallError, match="pip install"):
        environment.prepare(node=False)
    assert not (tmp_path / ".has").exists()


def test_every_client_has_its_command_and_every_script_its_client(tmp_path: Path) -> None:
    at = Target("http://h:1", "m", Environment(tmp_path), tmp_path / "tokenizer")
    words = [word for command in CLIENTS.values() for word in command(at)]
    used = {Path(word).name for word in words if Path(word).suffix in (".py", ".mjs")}
    assert used == {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    assert sum("http://h:1" in word for word in words) == len(CLIENTS)
