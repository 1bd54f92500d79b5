"""Every rendered object against the API's own schema, and the enums that schemas leave open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from manifests import (
    OVERLAYS,
    ROOT,
    WORKLOAD_KINDS,
    Object,
    containers,
    of_kind,
    pod_template,
    quantity,
    render,
    walk,
)

# The oldest version whose fields are used (podFailurePolicy is stable from 1.31 on, per-index
# limits from 1.33) and a recent one.
VERSIONS = ("1.31", "1.36")
API_VERSIONS = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "PersistentVolumeClaim": "v1",
    "Pod": "v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
}
CUSTOM = ("PodMonitor", "PrometheusRule")
ENUMS = {
    "restartPolicy": {"Always", "Never", "OnFailure"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "terminationMessagePolicy": {"File", "FallbackToLogsOnError"},
    "completionMode": {"Indexed", "NonIndexed"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "action": {"FailJob", "FailIndex", "Ignore", "Count"},
    "protocol": {"TCP", "UDP"},
    "medium": {"Memory", ""},
    "accessModes": {"ReadWriteOnce"},
    "policyTypes": {"Ingress", "Egress"},
}
# kind -> keys of spec that are ours; the operator ignores what it does not know.
CUSTOM_KEYS = {
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "PrometheusRule": {"groups"},
}
ENDPOINT_KEYS = {"port", "path", "interval", "scrapeTimeout"}
RULE_KEYS = {"record", "alert", "expr", "for", "labels", "annotations"}


def everything() -> Iterator[tuple[str, Object]]:
    for overlay in OVERLAYS:
        for item in render(overlay):
            yield overlay, item
    yield from (
        (path.name, item)
        for path in (ROOT / "k8s" / "tools").glob("*.yaml")
        for item in yaml.safe_load_all(path.read_text())
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid(version: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate (extra `dev`) is not installed"
    )
    seen: set[str] = set()
    for overlay, item in everything():
        text = yaml.safe_dump(item)
        if item["kind"] not in CUSTOM and text not in seen:
            seen.add(text)
            try:
                validator.validate(item, version, strict=True)
            except validator.ValidationError as error:
                pytest.fail(f"{overlay}: {item['kind']} {item['metadata']['name']}: {error}")
    assert len(seen) > 30


def test_kinds_and_versions() -> None:
    for _, item in everything():
        assert item["apiVersion"] == API_VERSIONS[item["kind"]]
        assert item["metadata"]["name"]


def test_enums_and_quantities() -> None:
    def values(found: Any) -> list[Any]:
        return found if isinstance(found, list) else [found]

    for _, item in everything():
        for key, found in walk(item.get("spec", {})):
            if key in ENUMS and item["kind"] not in CUSTOM:
                assert set(values(found)) <= ENUMS[key], f"{key}: {found}"
            if key == "storage" or key == "sizeLimit":
                assert quantity(found) > 0
        for container in containers(item) if item["kind"] in WORKLOAD_KINDS else ():
            for amounts in container["resources"].values():
                assert all(quantity(amount) > 0 for amount in amounts.values())


def test_custom_resources_use_known_keys() -> None:
    for _, item in everything():
        if item["kind"] in CUSTOM:
            assert set(item["spec"]) == CUSTOM_KEYS[item["kind"]]
    objects = render("soak")
    for monitor in of_kind(objects, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert set(endpoint) == ENDPOINT_KEYS
            assert endpoint["interval"] == "5s"
            assert endpoint["scrapeTimeout"] == "4s"
    for group in of_kind(objects, "PrometheusRule")[0]["spec"]["groups"]:
        assert set(group) == {"name", "rules"}
        for rule in group["rules"]:
            assert set(rule) <= RULE_KEYS


def test_the_reader_of_results_sees_what_the_master_wrote() -> None:
    reader = yaml.safe_load((ROOT / "k8s" / "tools" / "results-reader.yaml").read_text())
    for overlay in ("headless", "headless-gpu-pool", "webui", "soak"):
        objects = render(overlay)
        claims = {c["metadata"]["name"] for c in of_kind(objects, "PersistentVolumeClaim")}
        master = next(
            w for w in of_kind(objects, "Job", "Deployment") if w["metadata"]["name"] == "master"
        )
        (written,) = [v for v in pod_template(master)["spec"]["volumes"] if v["name"] == "results"]
        assert written["persistentVolumeClaim"]["claimName"] == "results"
        assert reader["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] in claims
        assert reader["spec"]["securityContext"] == pod_template(master)["spec"]["securityContext"]
        assert containers(reader)[0]["image"] == containers(master)[0]["image"]
