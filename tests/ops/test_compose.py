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
from pillion.telemetry import names

ROOT = Path(__file__).parents[2]
SERVICES = ("executor", "scheduler", "admission", "gateway")
FOREIGN = ("prometheus", "grafana", "collector", "tempo")  # of the profile observability
OBSERVABILITY = ROOT / "ops/observability"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def stages() -> dict[str, str]:
    """Name to text of the Dockerfile's stages."""
    text = (ROOT / "ops/docker/Dockerfile").read_text()
    return dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))


def test_what_is_published_is_on_loopback(compose: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert ports == {
        "gateway": ["127.0.0.1:${GATEWAY_PORT:-8000}:8000"],
        "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"],
        "prometheus": ["127.0.0.1:${PROMETHEUS_PORT:-9090}:9090"],
    }


def test_only_who_has_to_gets_out(compose: dict[str, Any]) -> None:
    networks = {
        name: bool(network and network.get("internal")) for name, network in compose["networks"].items()
    }
    assert networks == {"bus": True, "plans": True, "watching": True, "outside": False}
    out = {name for name, service in compose["services"].items() if "outside" in service["networks"]}
    assert out == {"gateway", "fetch", "prometheus", "grafana"}  # its model, and what has a port here
    assert compose["services"]["redis"]["networks"] == ["bus"]


def test_no_container_is_root_or_may_write_but_to_its_volumes(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        user, group = service["user"].split(":")
        assert int(user) > 0, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert int(group) >= 0
    models = [
        volume for s in compose["services"].values() for volume in s.get("volumes", []) if "MODELS" in volume
    ]
    assert len(models) == 5
    assert [volume for volume in models if not volume.endswith(":ro")] == [
        compose["services"]["fetch"]["volumes"][0]
    ]


def test_images_of_others_have_a_version(compose: dict[str, Any], stages: dict[str, str]) -> None:
    images = [service["image"] for service in compose["services"].values() if "build" not in service]
    images += re.findall(
        r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "ops/docker/Dockerfile").read_text(), re.MULTILINE
    )
    assert len(images) == len(FOREIGN) + 2
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+(-\w+)*$", image)] == []
    assert set(stages) >= {*SERVICES}


def test_profiles(compose: dict[str, Any]) -> None:
    profiles: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        for profile in service.get("profiles", ["always"]):
            profiles.setdefault(profile, set()).add(name)
    assert profiles == {
        "always": {"redis", "fetch", "scheduler", "admission", "gateway"},
        "cpu": {"executor"},
        "gpu": {"executor-gpu"},
        "pair": {"second-executor", "second-scheduler"},
        "observability": set(FOREIGN),
    }
    assert "COMPOSE_PROFILES=cpu\n" in (ROOT / ".env.example").read_text()
    services = compose["services"]
    assert services["executor-gpu"]["networks"] == {"plans": {"aliases": ["executor"]}}
    assert services["executor-gpu"]["image"] != services["executor"]["image"]
    assert services["second-scheduler"]["environment"]["PILLION_EXECUTOR"] == "second-executor:50051"
    assert services["second-scheduler"]["environment"]["PILLION_REPLICA"] == "1"


def test_the_example_names_every_variable_that_compose_takes(compose: dict[str, Any]) -> None:
    taken = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    named = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert len(taken) >= 12
    assert taken <= named
    assert "COMPOSE_PROFILES" in named


def test_what_is_mounted_and_scraped_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name in FOREIGN:
        for volume in services[name].get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).is_dir(), volume
    config = yaml.safe_load((OBSERVABILITY / "prometheus/prometheus.yml").read_text())
    for job in config["scrape_configs"][:4]:
        for found in job["dns_sd_configs"]:
            assert set(found["names"]) <= set(services)
            for name in found["names"]:
                assert set(services[name]["networks"]) & set(services["prometheus"]["networks"])
                assert found["port"] == int(services[name]["environment"].get("PILLION_METRICS_PORT", 8000))
    sources = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/datasources/sources.yml").read_text())[
        "datasources"
    ]
    assert {re.sub(r"^http://|:\d+$", "", source["url"]) for source in sources} <= set(services)
    provider = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/dashboards/pillion.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert f"./ops/observability/grafana/dashboards:{folder}:ro" in services["grafana"]["volumes"]


def test_spans_go_from_every_service_to_the_store(compose: dict[str, Any]) -> None:
    services = compose["services"]
    config = yaml.safe_load((OBSERVABILITY / "collector/collector.yml").read_text())
    pipeline = config["service"]["pipelines"]["traces"]
    assert set(pipeline["processors"]) == set(config["processors"])
    assert set(pipeline["receivers"]) == set(config["receivers"])
    assert set(pipeline["exporters"]) == set(config["exporters"])
    assert pipeline["processors"].index("tail_sampling") < pipeline["processors"].index("batch")
    for name in (*SERVICES, "executor-gpu", "second-executor", "second-scheduler"):
        assert set(services[name]["networks"]) & set(services["collector"]["networks"]), name
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317" in (ROOT / ".env.example").read_text()
    host, port = config["exporters"]["otlp"]["endpoint"].split(":")
    tempo = yaml.safe_load((OBSERVABILITY / "tempo/tempo.yml").read_text())
    receiver = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert (host, port) == ("tempo", receiver.split(":")[1])
    assert set(services["tempo"]["networks"]) & set(services["collector"]["networks"])


def test_the_collector_keeps_what_missed_a_target_and_what_failed() -> None:
    config = yaml.safe_load((OBSERVABILITY / "collector/collector.yml").read_text())
    policies = {policy["type"]: policy for policy in config["processors"]["tail_sampling"]["policies"]}
    missed = policies["string_attribute"]["string_attribute"]
    assert missed["key"] == names.SLO_MISSED
    assert set(missed["values"]) == {"ttft", "tbt", "ttft,tbt"}
    assert policies["status_code"]["status_code"]["status_codes"] == ["ERROR"]
    assert policies["probabilistic"]["probabilistic"]["sampling_percentage"] < 100


def test_the_password_is_needed_and_on_no_command_line(compose: dict[str, Any]) -> None:
    redis = compose["services"]["redis"]
    assert redis["environment"]["REDIS_PASSWORD"].startswith("${REDIS_PASSWORD:?")
    commands = [service.get("command", "") for service in compose["services"].values()]
    commands += [service.get("healthcheck", {}).get("test", "") for service in compose["services"].values()]
    # `$$` leaves the variable to the container's shell, which writes it to a file.
    assert not [
        command for command in map(str, commands) if re.search(r"(?<!\$)\$\{?REDIS_PASSWORD", command)
    ]
    assert "REDIS_PASSWORD=\n" in (ROOT / ".env.example").read_text()


def test_scheduler_and_executor_share_a_secret_that_is_needed(compose: dict[str, Any]) -> None:
    shown = {
        name: service.get("environment", {}).get("PILLION_EXECUTOR_SECRET")
        for name, service in compose["services"].items()
    }
    secret = "${EXECUTOR_SECRET:?set EXECUTOR_SECRET in .env}"
    having = {name for name, value in shown.items() if value == secret}
    assert having == {"scheduler", "executor", "second-scheduler", "second-executor", "executor-gpu"}
    assert {value for value in shown.values() if value} == {secret}
    assert "EXECUTOR_SECRET=\n" in (ROOT / ".env.example").read_text()


def test_a_secret_of_the_file_reaches_who_needs_it_only(compose: dict[str, Any]) -> None:
    secrets = ("REDIS_PASSWORD", "EXECUTOR_SECRET", "HF_TOKEN")
    services = {name: service for name, service in compose["services"].items() if "env_file" in service}
    assert len(services) == 8
    for name, service in services.items():
        seen = {secret: service["environment"][secret] for secret in secrets}
        assert seen == dict.fromkeys(secrets, "") | ({"HF_TOKEN": "${HF_TOKEN:-}"} if name == "fetch" else {})
        keys = {key: service["environment"].get(key) for key in ("PILLION_API_KEY", "PILLION_ADMIN_KEY")}
        assert set(keys.values()) == {None if name == "gateway" else ""}, name  # None: as .env has it


def test_the_published_gateway_answers_to_local_names_only(compose: dict[str, Any]) -> None:
    environment = compose["services"]["gateway"]["environment"]
    assert environment["PILLION_ALLOWED_HOSTS"] == "${ALLOWED_HOSTS:-gateway}"


def test_services_start_when_what_they_need_is_healthy(compose: dict[str, Any]) -> None:
    waits = {name: service.get("depends_on", {}) for name, service in compose["services"].items()}
    assert {name: sorted(needed) for name, needed in waits.items()} == {
        "redis": [],
        "fetch": [],
        "executor": ["fetch"],
        "executor-gpu": ["fetch"],
        "scheduler": ["executor", "executor-gpu", "redis"],
        "second-executor": ["fetch"],
        "second-scheduler": ["redis", "second-executor"],
        "admission": ["redis"],
        "gateway": ["admission", "fetch", "redis"],
        **{name: [] for name in FOREIGN},
    }
    for needed in waits.values():
        for name, wait in needed.items():
            done = "service_completed_successfully" if name == "fetch" else "service_healthy"
            assert wait["condition"] == done
    # Only one of the two is there.
    assert {name for name, wait in waits["scheduler"].items() if not wait.get("required", True)} == {
        "executor",
        "executor-gpu",
    }
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
    unchecked = {name for name, service in compose["services"].items() if "healthcheck" not in service}
    assert unchecked == {"fetch", "collector", "tempo"}  # it ends; their images have no program for it
    checks = [s["healthcheck"] for name, s in compose["services"].items() if name not in unchecked]
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


def test_torch_is_for_cpus_unless_it_is_asked_for(compose: dict[str, Any], stages: dict[str, str]) -> None:
    index = "https://download.pytorch.org/whl/cpu"
    assert f"ARG TORCH_INDEX_URL={index}" in stages["build-executor"]
    args = {
        name: service["build"]["args"] for name, service in compose["services"].items() if "build" in service
    }
    assert args["executor"]["TORCH_INDEX_URL"] == f"${{TORCH_INDEX_URL-{index}}}"
    assert args["executor-gpu"]["TORCH_INDEX_URL"] == "${TORCH_GPU_INDEX_URL:-}"
    assert not any("TORCH" in key for name in ("gateway", "scheduler") for key in args[name])


def test_every_setting_in_the_files_exists(compose: dict[str, Any]) -> None:
    known = {leaf.env for leaf in leaves()}
    texts = [
        (ROOT / name).read_text() for name in ("docker-compose.yml", ".env.example", "ops/docker/Dockerfile")
    ]
    named = set(re.findall(r"PILLION_[A-Z_]+[A-Z]", "\n".join(texts)))
    assert len(named) >= 8
    assert named <= known
