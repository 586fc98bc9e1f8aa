"""Who may import whom. The rules are on source and, for torch, on what a process really loads."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "admission", "scheduler", "executor")
SHARED = {path.stem for path in (ROOT / "shared/pillion").iterdir() if path.name != "__pycache__"}
ALLOWED = {
    **{service: SHARED | {service} for service in SERVICES},
    "executor": SHARED | {"executor", "kernels"},
    "kernels": {"kernels"},
    "shared": SHARED,
    "ops": SHARED | {"ops", "kernels", *SERVICES},
}
TORCH = {"executor", "kernels"}
"""Who may import torch. `ops` may look at it in the functions that need it, never when it is imported."""


def modules() -> Iterator[tuple[str, Path]]:
    """The part of the house that a module belongs to, and its file."""
    for root in ("services", "shared", "kernels", "ops"):
        for path in sorted((ROOT / root / "pillion").rglob("*.py")):
            part = path.relative_to(ROOT / root / "pillion").parts[0].removesuffix(".py")
            yield ("shared" if root == "shared" else part), path


def imported(path: Path) -> Iterator[str]:
    """Dotted names of what a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parts[1 : -node.level]
                base = ".".join((*package, *filter(None, (node.module,))))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_services_import_only_what_is_shared() -> None:
    looked_at, wrong = 0, []
    for part, path in modules():
        for name in imported(path):
            if name.startswith("pillion."):
                looked_at += 1
                if name.split(".")[1] not in ALLOWED[part]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert looked_at > 200
    assert not wrong


def test_torch_is_named_only_where_tensors_are() -> None:
    users, wrong = set(), []
    for part, path in modules():
        for name in imported(path):
            if name.split(".")[0] in ("torch", "triton"):
                users.add(part)
                if part not in TORCH:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert users == TORCH
    assert not wrong


@pytest.mark.parametrize("service", ["gateway", "admission", "scheduler"])
def test_a_service_without_a_model_loads_no_torch(service: str) -> None:
    code = f"import sys, pillion.{service}.service; print('torch' in sys.modules, len(sys.modules) > 100)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_help_loads_nothing_heavy() -> None:
    heavy = ("torch", "redis", "grpc", "aiohttp", "uvloop", "opentelemetry", "numpy")
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from pillion.ops.cli import main\n"
        "result = CliRunner().invoke(main, ['up', '--help'])\n"
        "assert result.exit_code == 0 and '--max-num-batched-tokens' in result.output\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_each_service_has_an_extra_and_only_the_executor_brings_torch() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with_torch = [name for name, needs in extras.items() if any(need.startswith("torch") for need in needs)]
    assert set(SERVICES) <= set(extras)
    # Other people's clients, in an environment of their own, would bring a build for CUDA else.
    assert set(with_torch) == {"executor", "clients"}
