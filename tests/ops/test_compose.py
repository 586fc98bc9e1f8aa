"""What the compose file promises, held without an engine; that it runs is tried with one."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pillion.config import leaves
from pillion.ops.cli import main

ROOT = Path(__file__).parents[2]
SERVICES = ("executor", "scheduler", "admission", "gateway")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def stages() -> dict[str, str]:
    """Name to text of the Dockerfile's stages."""
    text = (ROOT / "ops/docker/Dockerfile").read_text()
    return dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))


def test_only_the_gateway_is_published_and_on_loopback(compose: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert ports == {"gateway": ["127.0.0.1:${GATEWAY_PORT:-8000}:8000"]}
    assert compose["networks"]["bus"]["internal"]
    assert compose["services"]["redis"]["networks"] == ["bus"]


def test_the_password_is_needed_and_on_no_command_line(compose: dict[str, Any]) -> None:
    redis = compose["services"]["redis"]
    assert redis["environment"]["REDIS_PASSWORD"].startswith("${REDIS_PASSWORD:?")
    commands = [service.get("command", "") for service in compose["services"].values()]
    commands += [service["healthcheck"]["test"] for service in compose["services"].values()]
    # `$$` leaves the variable to the container's shell, which writes it to a file.
    assert not [
        command for command in map(str, commands) if re.search(r"(?<!\$)\$\{?REDIS_PASSWORD", command)
    ]
    assert "REDIS_PASSWORD=\n" in (ROOT / ".env.example").read_text()


def test_scheduler_and_executor_share_a_secret_that_is_needed(compose: dict[str, Any]) -> None:
    shown = {
        name: service["environment"].get("PILLION_EXECUTOR_SECRET")
        for name, service in compose["services"].items()
    }
    secret = "${EXECUTOR_SECRET:?set EXECUTOR_SECRET in .env}"
    assert shown == {name: secret if name in ("scheduler", "executor") else None for name in shown}
    assert "EXECUTOR_SECRET=\n" in (ROOT / ".env.example").read_text()


def test_the_published_gateway_answers_to_local_names_only(compose: dict[str, Any]) -> None:
    environment = compose["services"]["gateway"]["environment"]
    assert environment["PILLION_ALLOWED_HOSTS"] == "${ALLOWED_HOSTS:-gateway}"


def test_services_start_when_what_they_need_is_healthy(compose: dict[str, Any]) -> None:
    waits = {name: service.get("depends_on", {}) for name, service in compose["services"].items()}
    assert {name: sorted(needed) for name, needed in waits.items()} == {
        "redis": [],
        "executor": [],
        "scheduler": ["executor", "redis"],
        "admission": ["redis"],
        "gateway": ["admission", "redis"],
    }
    conditions = {condition["condition"] for needed in waits.values() for condition in needed.values()}
    assert conditions == {"service_healthy"}
    assert set(compose["services"]["redis"]["volumes"]) == {"redis:/data"}


@pytest.mark.parametrize("service", SERVICES)
def test_a_health_check_is_what_the_image_has(service: str, compose: dict[str, Any]) -> None:
    kind, program, *arguments = compose["services"][service]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "pillion")
    environ = {"PILLION_REDIS": "redis://127.0.0.1:9", "PILLION_EXECUTOR": "127.0.0.1:9", "PILLION_PORT": "9"}
    result = CliRunner().invoke(main, arguments, env=environ)
    assert result.exit_code == 1
    assert result.output.startswith(f"pillion: {service} is not ready: ")


def test_checks_are_often_until_a_service_is_healthy_and_seldom_then(compose: dict[str, Any]) -> None:
    checks = [service["healthcheck"] for service in compose["services"].values()]
    assert len(checks) == len(SERVICES) + 1
    for check in checks:
        assert (check["interval"], check["start_interval"]) == ("30s", "2s")
        assert check["start_period"] in ("1m", "30m")


@pytest.mark.parametrize("service", ["gateway", "executor"])
def test_a_health_check_is_cheap(service: str) -> None:
    heavy = ("asyncio", "redis", "grpc", "aiohttp", "opentelemetry", "prometheus_client", "numpy", "torch")
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from pillion.ops.cli import main\n"
        f"arguments = ['health', {service!r}, '--port', '9', '--executor', '127.0.0.1:9']\n"
        "assert 'is not ready' in CliRunner().invoke(main, arguments).output\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_one_services_code_and_dependencies(
    service: str, compose: dict[str, Any], stages: dict[str, str]
) -> None:
    assert compose["services"][service]["build"]["target"] == service
    built, image = stages[f"build-{service}"], stages[service]
    assert re.findall(r"\.\[(\w+)\]", built) == [service]
    assert re.findall(r"COPY services/pillion/(\w+) ", built) == [service]
    assert ("COPY kernels" in built, "torch==2.13.0" in built) == (service == "executor",) * 2
    assert f"COPY --from=build-{service}" in image
    assert "USER pillion" in image
    assert f'CMD ["pillion", "{service}"]' in image


def test_every_setting_in_the_files_exists(compose: dict[str, Any]) -> None:
    known = {leaf.env for leaf in leaves()}
    texts = [
        (ROOT / name).read_text() for name in ("docker-compose.yml", ".env.example", "ops/docker/Dockerfile")
    ]
    named = set(re.findall(r"PILLION_[A-Z_]+[A-Z]", "\n".join(texts)))
    assert len(named) >= 8
    assert named <= known
