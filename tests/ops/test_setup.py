"""`ops/up` and `ops/test` set themselves up: once, when pyproject.toml changes, and after an interruption.

A real install takes minutes, so the environment's interpreter is a script here that records what it is asked;
the environment itself is made for real.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
if [ "$1 $2" = "-c import pip" ]; then exit 0; fi
echo "$@" >>"$LOG"
cat <<END
Collecting torch==2.13.0
  Downloading torch-2.13.0.metadata (30 kB)
  Downloading https://a/b-c/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (190.3 MB)
  Using cached numpy-2.5.1-cp311.whl (16.9 MB)
Downloading small-1.0-py3-none-any.whl (9.9 MB)
Downloading hf_xet-1.4.2-cp37-abi3.whl (10 MB)
Installing collected packages: torch, numpy, hf-xet
END
echo "WARNING: of pip" >&2
sleep "${PIP_TAKES:-0}"
exit "${PIP_ENDS:-0}"
"""
MAKER = f"""#!/bin/sh
case "$*" in
  *"venv --clear"*)
    echo "$@" >>"$LOG"
    for last; do :; done
    rm -rf "$last"; mkdir -p "$last/bin"
    cat >"$last/bin/python" <<'PYTHON'
{PYTHON}PYTHON
    printf '#!/bin/sh\\necho "pillion $*"\\n' >"$last/bin/pillion"
    chmod +x "$last/bin/python" "$last/bin/pillion" ;;
esac
"""
PILLION = """#!/bin/sh
echo "pillion $*, in $PWD"
"""


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root.parent / "log"
        self.log.touch()
        (root / "ops").mkdir(parents=True)
        for name in ("setup", "up", "test"):
            shutil.copy2(ROOT / "ops" / name, root / "ops" / name)
        shutil.copy2(ROOT / "pyproject.toml", root)

    def with_environment(self) -> "Checkout":
        """As after `python -m venv`, before any install."""
        binaries = self.root / ".venv/bin"
        binaries.mkdir(parents=True)
        for name, text in (("python", PYTHON), ("pillion", PILLION)):
            (binaries / name).write_text(text)
            (binaries / name).chmod(0o755)
        return self

    def start(self, name: str, *arguments: str, cwd: Path, **environ: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / "ops" / name, *arguments],
            cwd=cwd, env=os.environ | environ | {"LOG": str(self.log)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, name: str, *arguments: str, cwd: Path, **environ: str) -> tuple[int, str, str]:
        process = self.start(name, *arguments, cwd=cwd, **environ)
        out, err = process.communicate(timeout=150)
        return process.returncode, out, err

    def installs(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "pip install" in line]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")  # a blank in the path must not matter


def test_it_installs_once_and_again_when_the_project_changes(checkout: Checkout, tmp_path: Path) -> None:
    checkout.with_environment()
    code, out, err = checkout.run("up", "--port", "1", cwd=tmp_path)
    assert (code, out) == (0, f"pillion up --port 1, in {tmp_path}\n"), err
    assert "torch==2.13.0 -e .[all]" in checkout.installs()[0]
    log = checkout.root / ".venv/install.log"
    assert err.splitlines() == [
        f"installing Pillion and what it needs into {log.parent} (some minutes, once; details in {log})",
        "  fetching torch (190 MB)",
        "  fetching numpy (16 MB)",
        "  fetching hf_xet (10 MB)",
        "  installing 3 packages",
    ]
    assert "WARNING: of pip" in log.read_text()
    assert checkout.run("up", cwd=tmp_path)[::2] == (0, "")
    assert len(checkout.installs()) == 1
    with (checkout.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert checkout.run("up", cwd=tmp_path)[0] == 0
    assert len(checkout.installs()) == 2


def test_an_install_that_was_cut_off_is_done_again(checkout: Checkout, tmp_path: Path) -> None:
    checkout.with_environment()
    code, out, err = checkout.run("up", cwd=tmp_path, PIP_ENDS="1")
    assert (code, out) == (1, "")
    *_, shown, last = err.splitlines()
    assert shown == "WARNING: of pip"
    assert last.startswith(
        f"up: the install failed; all that pip said is in {checkout.root}/.venv/install.log"
    )
    assert checkout.run("up", cwd=tmp_path)[0] == 0
    assert len(checkout.installs()) == 2


def test_the_tests_environment_serves_up_too(checkout: Checkout, tmp_path: Path) -> None:
    checkout.with_environment()
    assert checkout.run("test", "-k", "x", cwd=tmp_path)[0] == 0
    assert "torch==2.13.0 -e .[dev]" in checkout.installs()[0]
    assert checkout.log.read_text().splitlines()[-1].startswith("-m pytest")
    assert checkout.log.read_text().splitlines()[-1].endswith("-k x")
    assert checkout.run("up", cwd=tmp_path)[0] == 0
    assert len(checkout.installs()) == 1


def test_two_at_once_install_once(checkout: Checkout, tmp_path: Path) -> None:
    checkout.with_environment()
    both = [checkout.start("up", cwd=tmp_path, PIP_TAKES="0.5") for _ in range(2)]
    assert [process.communicate(timeout=60)[0][:10] for process in both] == ["pillion up", "pillion up"]
    assert len(checkout.installs()) == 1


def test_two_at_once_make_one_environment(checkout: Checkout, tmp_path: Path) -> None:
    """Making it clears what is in it; the lock must not be."""
    python = tmp_path / "python3"
    python.write_text(MAKER)
    python.chmod(0o755)
    environ = {"PYTHON": str(python), "PIP_TAKES": "0.5"}
    first = checkout.start("up", cwd=tmp_path, **environ)
    deadline = time.monotonic() + 30
    while not checkout.installs():  # the environment is made, and the install runs
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = checkout.start("up", cwd=tmp_path, **environ)
    assert [one.communicate(timeout=60)[0][:10] for one in (first, second)] == ["pillion up", "pillion up"]
    assert len(checkout.installs()) == 1
    assert checkout.log.read_text().count("venv --clear") == 1


def test_a_real_environment_is_made(checkout: Checkout, tmp_path: Path) -> None:
    code, _, err = checkout.run("up", cwd=tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert code == 1
    assert "making" in err
    assert "the install failed" in err
    assert (checkout.root / ".venv/bin/python").exists()
    _, _, again = checkout.run("up", cwd=tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert "making" not in again


@pytest.mark.parametrize(
    ("interpreter", "said"),
    [
        ("exit 1", "up: no Python 3.11 to 3.14 found"),
        (
            'case "$2" in *ensurepip*) exit 1;; esac',
            "has no venv module; install it (Debian, Ubuntu: apt install",
        ),
    ],
)
def test_what_python_lacks_is_one_line(
    checkout: Checkout, tmp_path: Path, interpreter: str, said: str
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{interpreter}\n")
    python.chmod(0o755)
    code, out, err = checkout.run("up", cwd=tmp_path, PYTHON=str(python))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err
