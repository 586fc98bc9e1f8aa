"""The manifests are of Kubernetes' schemas, fit together, and keep what docs/kubernetes.md says of them."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pillion.config import leaves
from pillion.telemetry import names
from pillion.version import VERSION
from tests.kustomize import build, containers, named, pod

FOLDER = Path(__file__).parents[2] / "ops/kubernetes"
PROMETHEUS = FOLDER.parent / "observability/prometheus"
BUILT = {overlay: build(FOLDER / "overlays" / overlay) for overlay in ("cpu", "gpu")}
ALL = [
    pytest.param(document, id=f"{overlay}-{'-'.join(named(document))}")
    for overlay, documents in BUILT.items()
    for document in documents
]
PODS = [param for param in ALL if pod(param.values[0])]
VERSIONS = ("1.30", "1.34")
VARIABLES = {f"PILLION_{leaf.name.upper()}" for leaf in leaves()}

Document = dict[str, Any]


def one(kind: str, name: str, overlay: str = "cpu") -> Document:
    (found,) = [each for each in BUILT[overlay] if named(each) == (kind, name)]
    return found


def selected(selector: Document, labels: Document) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", ()))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", ALL)
def test_it_is_of_the_schema(document: Document, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_is_looked_at() -> None:
    broken = one("Deployment", "gateway") | {"spec": one("Deployment", "gateway")["spec"] | {"replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_every_service_is_there() -> None:
    kinds = {named(document) for document in BUILT["cpu"] if pod(document)}
    assert kinds == {
        ("StatefulSet", "redis"),
        ("Deployment", "gateway"),
        ("Deployment", "admission"),
        ("StatefulSet", "replica"),
    }
    assert [named(each) for each in BUILT["gpu"]] == [named(each) for each in BUILT["cpu"]]


@pytest.mark.parametrize("document", PODS)
def test_nothing_is_root_or_writes_or_may_more_than_it_needs(document: Document) -> None:
    spec = pod(document)
    assert spec and spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(document):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("document", PODS)
def test_what_runs_has_all_three_probes(document: Document) -> None:
    spec = pod(document)
    assert spec
    ports = {port["name"] for each in containers(document) for port in each.get("ports", ())}
    for container in containers(document):
        if container in spec.get("initContainers", ()) and container.get("restartPolicy") != "Always":
            continue  # it ends by itself
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        for probe in probes:
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] in ports
            else:
                command = probe["exec"]["command"]
                assert command[0] == "sh" or command == ["pillion", "health", container["name"]]
        start, _, live = probes
        # A scheduler is healthy when its executor has the model; an executor listens at once.
        least = 1800 if container["name"] == "scheduler" else 300
        assert start["periodSeconds"] * start["failureThreshold"] >= least
        assert live["periodSeconds"] * live["failureThreshold"] >= 60, "a stall is no death"


@pytest.mark.parametrize("document", PODS)
def test_the_grace_period_is_above_the_drain(document: Document) -> None:
    spec = pod(document)
    assert spec
    drain = float(one("ConfigMap", "settings")["data"]["PILLION_DRAIN_TIMEOUT"])
    pause = max(
        each.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        for each in containers(document)
    )
    # What ends one after the other: sidecars behind what they serve.
    turns = 1 + sum(each.get("restartPolicy") == "Always" for each in containers(document))
    assert spec["terminationGracePeriodSeconds"] >= turns * drain + pause + 10


@pytest.mark.parametrize("document", PODS)
def test_volumes_settings_and_names_fit(document: Document) -> None:
    spec = pod(document)
    assert spec
    volumes = {each["name"] for each in spec.get("volumes", ())}
    volumes |= {each["metadata"]["name"] for each in document["spec"].get("volumeClaimTemplates", ())}
    mounted: set[str] = set()
    for container in containers(document):
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts <= volumes
        mounted |= mounts
        variables = {each["name"] for each in container.get("env", ())}
        assert {name for name in variables if name.startswith("PILLION_")} <= VARIABLES
        assert all(each["configMapRef"]["name"] == "settings" for each in container.get("envFrom", ()))
        image, _, tag = container["image"].partition(":")
        if image != "redis":
            assert image.rpartition("/")[2] in {f"pillion-{s}" for s in SERVICES} and tag == VERSION
        known = list(variables)
        for number, each in enumerate(container.get("env", ())):
            for used in re.findall(r"\$\((\w+)\)", each.get("value", "")):
                assert used in known[:number] or used in [e["name"] for e in container["env"][:number]]
    assert mounted == volumes
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert selected(document["spec"]["selector"], labels)


SERVICES = ("gateway", "admission", "scheduler", "executor", "executor-gpu")


def test_the_settings_are_there() -> None:
    assert one("ConfigMap", "settings")["data"].keys() <= VARIABLES


def test_services_budgets_policies_and_scales_find_their_pods() -> None:
    makers = [document for document in BUILT["cpu"] if pod(document)]
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in makers}
    found: dict[str, set[str]] = {}
    for document in BUILT["cpu"]:
        spec, kind = document.get("spec", {}), document["kind"]
        selector = spec.get("podSelector" if kind == "NetworkPolicy" else "selector")
        if kind == "Service":
            selector = {"matchLabels": selector}
        if kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            pods = {name for name, own in labels.items() if selected(selector, own)}
            assert pods, document
            found.setdefault(kind, set()).update(pods)
        if kind == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            assert one(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
            assert spec["minReplicas"] >= one(target["kind"], target["name"])["spec"]["replicas"]
    assert found["PodDisruptionBudget"] == {"gateway", "admission", "replica"}
    assert found["NetworkPolicy"] == set(labels)


def test_all_is_closed_that_is_not_opened() -> None:
    closed = one("NetworkPolicy", "closed")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened = [each["spec"] for each in BUILT["cpu"] if each["kind"] == "NetworkPolicy"]
    anyone = [spec["podSelector"] for spec in opened if any("from" not in e for e in spec.get("ingress", ()))]
    assert anyone == [{"matchLabels": {"app.kubernetes.io/name": "gateway"}}], "clients reach gateways only"


def test_the_autoscaler_asks_for_what_the_adapter_serves_of_what_there_is() -> None:
    rules = yaml.safe_load((FOLDER / "adapter.yaml").read_text())["rules"]["external"]
    asked = {
        metric["external"]["metric"]["name"]
        for document in BUILT["cpu"]
        if document["kind"] == "HorizontalPodAutoscaler"
        for metric in document["spec"]["metrics"]
        if metric["type"] == "External"
    }
    assert asked == {rule["name"]["as"] for rule in rules} != set()
    series = {metric.name for metric in names.METRICS}
    for rule in rules:
        used = set(re.findall(r"pillion_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        assert used and used <= series


def test_prometheus_finds_every_process_under_the_name_that_the_rules_know() -> None:
    (scrape,) = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())["scrape_configs"]
    belongs, port, job, *_ = scrape["relabel_configs"]
    assert (belongs["action"], port["action"], job["target_label"]) == ("keep", "keep", "job")
    policy = one("NetworkPolicy", "metrics")["spec"]["ingress"][0]["ports"]
    jobs = {}
    for document in BUILT["cpu"]:
        labels = document["spec"]["template"]["metadata"]["labels"] if pod(document) else {}
        if not re.fullmatch(belongs["regex"], labels.get("app.kubernetes.io/part-of", "")):
            continue
        for container in containers(document):
            for each in container.get("ports", ()):
                if re.fullmatch(port["regex"], each["name"]):
                    jobs[job["replacement"].replace("$1", container["name"])] = each
    assert jobs.keys() == {f"pillion-{name}" for name in ("gateway", "admission", "scheduler", "executor")}
    open_to_it = {rule["port"] for rule in policy} | {"http"}  # which is open to everyone
    assert all({each["name"], each["containerPort"]} & open_to_it for each in jobs.values())


def test_a_gpu_replica_asks_for_one_and_goes_where_they_are() -> None:
    spec = pod(one("StatefulSet", "replica", "gpu"))
    assert spec
    (executor,) = [each for each in spec["initContainers"] if each["name"] == "executor"]
    assert executor["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "PILLION_DEVICE", "value": "cuda"} in executor["env"]
    assert spec["nodeSelector"] and spec["tolerations"]
    assert executor["image"].partition(":")[0].endswith("pillion-executor-gpu")
