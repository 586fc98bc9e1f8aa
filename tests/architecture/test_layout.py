"""Four source roots hold one namespace package, and nothing else is installed."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ("services", "shared", "kernels", "ops")


def test_each_root_holds_a_part_of_the_namespace() -> None:
    for root in ROOTS:
        assert not (ROOT / root / "__init__.py").exists()
        assert not (ROOT / root / "pillion/__init__.py").exists(), "a namespace package has no __init__.py"
        assert any((ROOT / root / "pillion").iterdir())


def test_the_build_takes_the_four_roots() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["dev-mode-dirs"] == list(ROOTS)
    assert build["targets"]["wheel"]["packages"] == [f"{root}/pillion" for root in ROOTS]


def test_only_pillion_is_importable(tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "import pillion.config, pillion.executor, pillion.kernels, pillion.ops\n"
        f"print([name for name in {('services', 'shared', 'kernels', 'ops')} if find_spec(name)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_command_is_installed() -> None:
    scripts = {script.name: script.value for script in metadata.entry_points(group="console_scripts")}
    assert scripts["pillion"] == "pillion.ops.cli:main"


def test_executables_in_ops_are_shims() -> None:
    executables = [
        path for path in (ROOT / "ops").iterdir() if path.is_file() and path.stat().st_mode & 0o111
    ]
    assert {"up", "test"} <= {path.name for path in executables}
    for path in executables:
        assert len(path.read_text().splitlines()) < 10, f"{path.name} does more than a shim"


def test_tests_mirror_the_source_without_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
