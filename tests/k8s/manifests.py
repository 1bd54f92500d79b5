"""Rendered overlays as Python objects, and the questions that tests ask of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("smoke-cpu", "headless", "headless-gpu-pool", "webui", "soak")
WORKLOAD_KINDS = ("Job", "Deployment", "Pod")
PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)(m|Ki|Mi|Gi|k|M|G)?$")
_SCALE = {
    None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30,
}  # fmt: skip

Object = dict[str, Any]


@cache
def render_text(folder: Path) -> str:
    """What `kubectl apply -k` would send, offline."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: manifests cannot be rendered")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(overlay: str) -> list[Object]:
    """The objects of one of the overlays."""
    return list(yaml.safe_load_all(render_text(ROOT / "k8s" / "overlays" / overlay)))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of the given kinds."""
    return [o for o in objects if o["kind"] in kinds]


def one(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name; generated ConfigMaps carry a hash after the name."""
    found = [
        o
        for o in of_kind(objects, kind)
        if o["metadata"]["name"] == name
        or (kind == "ConfigMap" and re.fullmatch(rf"{name}-[a-z0-9]{{10}}", o["metadata"]["name"]))
    ]
    assert len(found) == 1, f"{kind} {name}: {len(found)} found"
    return found[0]


def pod_template(workload: Object) -> Object:
    """The pod that a Job or Deployment makes: its metadata and spec."""
    return workload if workload["kind"] == "Pod" else workload["spec"]["template"]


def labels(workload: Object) -> dict[str, str]:
    """The labels of the pods that a workload makes."""
    return pod_template(workload)["metadata"]["labels"]


def component(workload: Object) -> str:
    """engine, master or worker."""
    return labels(workload)[COMPONENT]


def containers(workload: Object) -> list[Object]:
    """All containers of the pods that a workload makes."""
    spec = pod_template(workload)["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def workloads(objects: list[Object]) -> dict[str, Object]:
    """By what they are: engine, master, worker."""
    found = {component(o): o for o in of_kind(objects, *WORKLOAD_KINDS)}
    assert len(found) == len(of_kind(objects, *WORKLOAD_KINDS)), "two workloads of one component"
    return found


def selects(selector: Object, of: dict[str, str]) -> bool:
    """Whether a label selector (or a Service's plain mapping) takes an object with those labels."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        selector = {"matchLabels": selector}
    for key, value in selector.get("matchLabels", {}).items():
        if of.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In", rule
        if of.get(rule["key"]) not in rule["values"]:
            return False
    return True


def quantity(text: Any) -> float:
    """A Kubernetes quantity as a number; an error for anything that is none."""
    match = _QUANTITY.match(str(text))
    assert match, f"{text!r} is no quantity"
    return float(match[1]) * _SCALE[match[2]]


def ports(workload: Object) -> dict[str, int]:
    """Named container ports."""
    return {
        port["name"]: port["containerPort"]
        for c in containers(workload)
        for port in c.get("ports", ())
    }


def walk(node: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of every mapping inside."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key, value
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)
