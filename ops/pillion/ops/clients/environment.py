"""Where the clients are installed: an environment of their own, since they bring hundreds of packages."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[4]
NODE_PACKAGE = "openai@6.49.0"
INSTALL_SECONDS = 1800.0


class InstallError(RuntimeError):
    """The clients cannot be installed; the message says what the installer said."""


def pinned() -> list[str]:
    """The packages: `name==version`, and `name@version` for Node."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["optional-dependencies"]["clients"], NODE_PACKAGE]


class Environment:
    """The extra `clients` of pyproject.toml, and the client for Node; installed once for each list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._stamp = folder / ".has"

    def prepare(self, node: bool) -> None:
        """Raises InstallError."""
        wanted = pinned()[:-1]
        have = self._stamp.read_text().split("\n") if self._stamp.exists() else []
        if not set(wanted) <= set(have):
            if not self.python.exists():
                _run([sys.executable, "-m", "venv", str(self.folder)])
            _run([str(self.python), "-m", "pip", "install", "--quiet", *wanted])
        if node and NODE_PACKAGE not in have:
            _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.folder), NODE_PACKAGE])
            wanted.append(NODE_PACKAGE)
        self._stamp.write_text("\n".join(dict.fromkeys((*have, *wanted))))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except OSError as error:
        raise InstallError(f"{command[0]} cannot be run: {error.strerror}; install it") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(command[:4])} took longer than {INSTALL_SECONDS:g} s") from None
    if done.returncode:
        raise InstallError(f"{' '.join(command[:4])} failed:\n{(done.stdout + done.stderr)[-2000:]}")
