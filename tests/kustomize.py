"""As much of `kubectl kustomize` as ops/kubernetes uses: its manifests are tried where no kubectl is, too."""

from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "patches", "configMapGenerator"}

Document = dict[str, Any]


def build(folder: Path) -> list[Document]:
    """All documents. Raises AssertionError for what is not known here."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert told.keys() <= KNOWN, told.keys() - KNOWN
    documents: list[Document] = []
    for resource in told["resources"]:
        path = folder / resource
        documents += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for made in told.get("configMapGenerator", ()):
        data = dict(literal.split("=", 1) for literal in made["literals"])
        if made.get("behavior") == "merge":
            (base,) = [each for each in documents if named(each) == ("ConfigMap", made["name"])]
            base["data"] |= data
            continue
        name = {"name": made["name"]}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data})
    for document in documents:
        if document["kind"] != "Namespace":
            document["metadata"]["namespace"] = told["namespace"]
        for container in containers(document):
            for image in told.get("images", ()):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    for patch in told.get("patches", ()):
        target = patch["target"]
        (document,) = [each for each in documents if named(each) == (target["kind"], target["name"])]
        for change in yaml.safe_load(patch["patch"]):
            _apply(document, change)
    return documents


def named(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def pod(document: Document) -> Document | None:
    """The spec of the pods that it makes."""
    template = document.get("spec", {}).get("template") if document["kind"] != "Job" else None
    return template["spec"] if template else None


def containers(document: Document) -> list[Document]:
    """With those that come first."""
    spec = pod(document) or {}
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def _apply(document: Document, change: Document) -> None:
    """One operation of a JSON patch."""
    *way, last = (part.replace("~1", "/") for part in change["path"].split("/")[1:])
    place: Any = document
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if isinstance(place, list) and last == "-":
        assert change["op"] == "add"
        place.append(change["value"])
        return
    assert change["op"] == "add" or last in place, f"nothing stands at {change['path']}"
    assert change["op"] == "replace" or last not in place, f"something stands at {change['path']}"
    place[last] = change["value"]
