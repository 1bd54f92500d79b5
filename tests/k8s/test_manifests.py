"""What must hold in every rendered overlay and no schema says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import (
    COMPONENT,
    OVERLAYS,
    PART_OF,
    ROOT,
    WORKLOAD_KINDS,
    component,
    containers,
    labels,
    of_kind,
    one,
    pod_template,
    ports,
    quantity,
    render,
    render_text,
    selects,
    walk,
    workloads,
)

from tokenswarm import workload as workload_file

HEADLESS = ("smoke-cpu", "headless", "headless-gpu-pool", "soak")
GPU = "nvidia.com/gpu"
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(request.param)


def run_numbers(objects: list[dict[str, Any]]) -> dict[str, str]:
    return one(objects, "ConfigMap", "tokenswarm-run")["data"]


def arguments(container: dict[str, Any]) -> list[str]:
    return [*container["command"], *container["args"]]


def resolved(objects: list[dict[str, Any]]) -> workload_file.Workload:
    """The workload file of the overlay's run, read with the --set of its master."""
    numbers = run_numbers(objects)
    args = arguments(containers(workloads(objects)["master"])[0])
    sets = [args[i + 1] for i, argument in enumerate(args) if argument == "--set"]
    for name, value in numbers.items():
        sets = [item.replace(f"$({name})", value) for item in sets]
    text = one(objects, "ConfigMap", "tokenswarm-workloads")["data"][numbers["WORKLOAD"]]
    return workload_file.parse(text, numbers["WORKLOAD"], sets)


def after(args: list[str], option: str) -> str:
    return args[args.index(option) + 1]


# ---- one number, one place ------------------------------------------------------------------


@pytest.mark.parametrize("overlay", HEADLESS)
def test_workers_are_counted_in_one_place(overlay: str) -> None:
    objects = render(overlay)
    number = run_numbers(objects)["WORKERS"]
    found = workloads(objects)
    assert found["worker"]["spec"]["parallelism"] == int(number)
    assert found["worker"]["spec"]["completions"] == int(number)
    assert found["worker"]["spec"]["completionMode"] == "Indexed"
    master = containers(found["master"])[0]
    assert after(arguments(master), "--expect-workers") == "$(WORKERS)"
    assert {"configMapRef": {"name": "tokenswarm-run"}} in master["envFrom"]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        if budget["metadata"]["name"] == "workers":
            assert budget["spec"]["minAvailable"] == int(number)


def test_web_ui_workers_are_counted_in_the_same_place() -> None:
    objects = render("webui")
    assert workloads(objects)["worker"]["spec"]["replicas"] == int(run_numbers(objects)["WORKERS"])


@pytest.mark.parametrize("overlay", HEADLESS)
def test_another_number_reaches_every_copy(overlay: str, tmp_path: Path) -> None:
    """A copy of the overlay with another number in run.yaml and nothing else changed."""
    for name in ("k8s", "locustfiles", "workloads", "exporters"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path)], check=True)
    source = "headless" if overlay == "headless-gpu-pool" else overlay
    run = tmp_path / "k8s" / "overlays" / source / "run.yaml"
    text = run.read_text()
    before = yaml.safe_load(text)["data"]["WORKERS"]
    run.write_text(text.replace(f'WORKERS: "{before}"', 'WORKERS: "7"'))
    folder = tmp_path / "k8s" / "overlays" / overlay
    objects = list(yaml.safe_load_all(render_text(folder)))
    spec = workloads(objects)["worker"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (7, 7)
    assert run_numbers(objects)["WORKERS"] == "7"
    budgets = {b["metadata"]["name"]: b["spec"] for b in of_kind(objects, "PodDisruptionBudget")}
    assert budgets.get("workers", {"minAvailable": 7})["minAvailable"] == 7


@pytest.mark.parametrize("overlay", HEADLESS)
def test_deadline_leaves_time_for_everything(overlay: str) -> None:
    """Workers to come, the engine to load, the stages, the drain, the scrapes: all fit in."""
    objects = render(overlay)
    numbers = run_numbers(objects)
    deadline = int(numbers["DEADLINE_SECONDS"])
    for job in of_kind(objects, "Job"):
        assert job["spec"]["activeDeadlineSeconds"] == deadline
    load = resolved(objects).load
    stages = sum(stage.duration or 0.0 for stage in load.resolved_stages())
    waiting = 2 * int(numbers["WAIT_READY"]) + int(numbers["LINGER"])
    assert deadline > waiting + stages + load.drain
    grace = pod_template(workloads(objects)["master"])["spec"]["terminationGracePeriodSeconds"]
    assert grace > load.drain


def test_the_workload_is_valid_with_what_the_overlay_sets(objects: list[dict[str, Any]]) -> None:
    numbers = run_numbers(objects)
    found = resolved(objects)
    assert found.backend.model == numbers["MODEL"]
    assert found.tokenizer is not None
    assert (found.tokenizer.source, found.tokenizer.path) == (
        numbers["TOKENIZER_SOURCE"],
        numbers["TOKENIZER"],
    )
    if "MAX_MODEL_LEN" in numbers:
        longest = (found.prompts.max_input_tokens or 0) + (found.prompts.max_output_tokens or 0)
        assert 0 < longest <= int(numbers["MAX_MODEL_LEN"])


# ---- addresses ------------------------------------------------------------------------------


def test_every_reference_in_arguments_is_defined(objects: list[dict[str, Any]]) -> None:
    maps = {o["metadata"]["name"]: o for o in of_kind(objects, "ConfigMap")}
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        for container in containers(workload):
            defined = {variable["name"] for variable in container.get("env", ())}
            for source in container.get("envFrom", ()):
                defined |= set(maps[source["configMapRef"]["name"]]["data"])
            for argument in arguments(container):
                for name in argument.split("$(")[1:]:
                    assert name.split(")")[0] in defined, argument
            for variable in container.get("env", ()):
                reference = variable.get("valueFrom", {}).get("configMapKeyRef")
                if reference:
                    assert reference["key"] in maps[reference["name"]]["data"]


def test_mounted_files_exist(objects: list[dict[str, Any]]) -> None:
    """Every file named in the arguments is a key of the ConfigMap mounted above it."""
    numbers = run_numbers(objects)
    maps = {o["metadata"]["name"]: o for o in of_kind(objects, "ConfigMap")}
    seen = 0
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        spec = pod_template(workload)["spec"]
        volumes = {v["name"]: v for v in spec["volumes"]}
        for container in containers(workload):
            mounts = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}
            assert len(mounts) == len(container["volumeMounts"])
            for argument in arguments(container):
                argument = argument.replace("$(WORKLOAD)", numbers.get("WORKLOAD", ""))
                if argument.startswith("/etc/"):
                    folder, _, name = argument.rpartition("/")
                    assert name in maps[mounts[folder]["configMap"]["name"]]["data"]
                    seen += 1
    assert seen == 3  # the locustfile of master and worker, the workload of the master


def test_all_locustfiles_and_workloads_are_in_the_config_maps() -> None:
    objects = render("headless")
    for name, folder, pattern in (
        ("tokenswarm-locustfiles", "locustfiles", "*.py"),
        ("tokenswarm-workloads", "workloads", "*.yaml"),
    ):
        files = {p.name for p in (ROOT / folder).glob(pattern)} - {"kustomization.yaml"}
        files.discard("__init__.py")
        assert set(one(objects, "ConfigMap", name)["data"]) == files


def test_config_maps_fit(objects: list[dict[str, Any]]) -> None:
    """The API server takes 1 MiB; `kubectl apply` keeps a copy in an annotation of 256 KiB."""
    for item in of_kind(objects, "ConfigMap"):
        size = sum(len(k) + len(v.encode()) for k, v in item["data"].items())
        assert size < 256 * 1024, f"{item['metadata']['name']}: {size} bytes"


def test_services_reach_their_pods(objects: list[dict[str, Any]]) -> None:
    for service in of_kind(objects, "Service"):
        assert service["spec"]["type"] == "ClusterIP"
        chosen = [
            w
            for w in of_kind(objects, *WORKLOAD_KINDS)
            if selects(service["spec"]["selector"], labels(w))
        ]
        assert [component(w) for w in chosen] == [service["metadata"]["name"]]
        for port in service["spec"]["ports"]:
            assert ports(chosen[0])[port["targetPort"]] == port["port"]


def test_arguments_agree_with_ports_and_names(objects: list[dict[str, Any]]) -> None:
    found = workloads(objects)
    services = {s["metadata"]["name"]: s for s in of_kind(objects, "Service")}
    master = arguments(containers(found["master"])[0])
    worker = arguments(containers(found["worker"])[0])
    engine = arguments(containers(found["engine"])[0])
    assert run_numbers(objects)["HOST"] == "http://engine:8000"
    assert int(after(engine, "--port")) == services["engine"]["spec"]["ports"][0]["port"]
    assert after(worker, "--master-host") in services
    assert after(worker, "--master-port") == after(master, "--master-bind-port")
    assert int(after(worker, "--master-port")) == ports(found["master"])["rpc"]
    assert after(master, "--export") == f"prometheus=0.0.0.0:{ports(found['master'])['metrics']}"
    if "--web-port" in master:
        assert int(after(master, "--web-port")) == ports(found["master"])["web"]


def test_selectors_match_their_own_pods(objects: list[dict[str, Any]]) -> None:
    for deployment in of_kind(objects, "Deployment"):
        assert selects(deployment["spec"]["selector"], labels(deployment))
    for other in of_kind(objects, "PodDisruptionBudget", "PodMonitor"):
        chosen = [
            w
            for w in of_kind(objects, *WORKLOAD_KINDS)
            if selects(other["spec"]["selector"], labels(w))
        ]
        assert len(chosen) == 1, other["metadata"]["name"]
        for endpoint in other["spec"].get("podMetricsEndpoints", ()):
            assert endpoint["port"] in ports(chosen[0])
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        assert labels(workload)[PART_OF] == "tokenswarm"
        assert labels(workload)[COMPONENT] in ("engine", "master", "worker")
        assert labels(workload)["app.kubernetes.io/name"]


def test_probes_name_real_ports(objects: list[dict[str, Any]]) -> None:
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        for container in containers(workload):
            names = {port["name"] for port in container.get("ports", ())}
            for key, probe in container.items():
                if key.endswith("Probe"):
                    target = probe.get("httpGet") or probe["tcpSocket"]
                    assert target["port"] in names
                    # A scrape of /metrics would count as Prometheus's at the end of a run.
                    assert target.get("path") != "/metrics"
            if component(workload) != "worker":
                assert "readinessProbe" in container
                assert "startupProbe" in container
            if component(workload) == "engine":
                assert "livenessProbe" in container


# ---- security -------------------------------------------------------------------------------


def test_generators_meet_the_restricted_standard(objects: list[dict[str, Any]]) -> None:
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        pod = pod_template(workload)["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in containers(workload):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            if container["image"].startswith("tokenswarm:"):
                assert security["readOnlyRootFilesystem"] is True
                assert pod["securityContext"]["runAsNonRoot"] is True
                assert pod["securityContext"]["runAsUser"] == 10001
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} <= {"configMap", "emptyDir", "persistentVolumeClaim"}


def test_namespace_says_its_level(objects: list[dict[str, Any]]) -> None:
    level = one(objects, "Namespace", "tokenswarm")["metadata"]["labels"]
    own = all(
        c["image"].startswith("tokenswarm:")
        for w in of_kind(objects, *WORKLOAD_KINDS)
        for c in containers(w)
    )
    expected = "restricted" if own else "baseline"
    assert level["pod-security.kubernetes.io/enforce"] == expected
    for item in objects:
        if item["kind"] != "Namespace":
            assert item["metadata"]["namespace"] == "tokenswarm"


def test_writable_paths_are_volumes(objects: list[dict[str, Any]]) -> None:
    for name in ("master", "worker"):
        workload = workloads(objects)[name]
        container = containers(workload)[0]
        writable = {
            m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly", False)
        }
        assert writable == {"/tmp", "/results", "/cache"}
        assert container["workingDir"] == "/results"
        environment = {v["name"]: v.get("value", "") for v in container["env"]}
        assert environment["HOME"] == "/tmp"
        assert environment["TOKENSWARM_CACHE"] == "/cache"
        assert environment["HF_HOME"].startswith("/cache/")


def test_images_are_pinned(objects: list[dict[str, Any]]) -> None:
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        for container in containers(workload):
            name, _, tag = container["image"].partition(":")
            assert name in ("tokenswarm", "vllm/vllm-openai")
            assert tag.lstrip("v")[0].isdigit()


def test_no_secret_is_written_down(objects: list[dict[str, Any]]) -> None:
    assert not of_kind(objects, "Secret")
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        for container in containers(workload):
            for variable in container.get("env", ()):
                if "TOKEN" in variable["name"] and variable["name"] != "TOKENSWARM_CACHE":
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference == {"name": "hf-token", "key": "token", "optional": True}


# ---- resources and places -------------------------------------------------------------------


def test_resources(objects: list[dict[str, Any]]) -> None:
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        for container in containers(workload):
            requests, limits = (container["resources"][k] for k in ("requests", "limits"))
            for name, amount in limits.items():
                assert quantity(amount) >= quantity(requests[name]) > 0
            assert {"cpu", "memory"} <= set(requests)
            assert "memory" in limits
            if component(workload) == "worker":
                # Guaranteed, or (on a laptop) at least never throttled.
                assert limits == requests or limits == {"memory": requests["memory"]}


@pytest.mark.parametrize("overlay", ["headless", "headless-gpu-pool", "webui", "soak"])
def test_a_worker_is_one_whole_core(overlay: str) -> None:
    resources = containers(workloads(render(overlay))["worker"])[0]["resources"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["cpu"] == "1"


@pytest.mark.parametrize("overlay", ["headless", "headless-gpu-pool", "webui", "soak"])
def test_engine_asks_for_a_gpu_and_generators_do_not(overlay: str) -> None:
    found = workloads(render(overlay))
    engine = pod_template(found["engine"])["spec"]
    resources = containers(found["engine"])[0]["resources"]
    assert resources["limits"][GPU] == resources["requests"][GPU] == "1"
    toleration = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    assert toleration in engine["tolerations"]
    assert engine["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert found["engine"]["spec"]["strategy"] == {"type": "Recreate"}
    for name in ("master", "worker"):
        pod = pod_template(found[name])["spec"]
        assert GPU not in dict(walk(containers(found[name])))
        if overlay == "headless-gpu-pool":
            assert pod["nodeSelector"] == engine["nodeSelector"]
            assert pod["tolerations"] == engine["tolerations"]
        else:
            assert "nodeSelector" not in pod
            assert "tolerations" not in pod


@pytest.mark.parametrize("overlay", ["headless", "headless-gpu-pool", "webui", "soak"])
def test_generators_stand_near_the_engine_but_not_on_its_host(overlay: str) -> None:
    found = workloads(render(overlay))
    for name in ("master", "worker"):
        affinity = pod_template(found[name])["spec"]["affinity"]
        near = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
        apart = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
        assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
        assert apart["topologyKey"] == HOSTNAME
        for term in (near["podAffinityTerm"], apart):
            assert [n for n, w in found.items() if selects(term["labelSelector"], labels(w))] == [
                "engine"
            ]


def test_smoke_fits_one_node_without_a_gpu() -> None:
    objects = render("smoke-cpu")
    for workload in of_kind(objects, *WORKLOAD_KINDS):
        spec = pod_template(workload)["spec"]
        assert not {"affinity", "nodeSelector", "tolerations"} & set(spec)
        assert GPU not in dict(walk(spec))
    number = int(run_numbers(objects)["WORKERS"])
    cpu = sum(
        quantity(containers(w)[0]["resources"]["requests"]["cpu"])
        * (number if component(w) == "worker" else 1)
        for w in of_kind(objects, *WORKLOAD_KINDS)
    )
    assert cpu <= 2
    assert not of_kind(objects, "PersistentVolumeClaim", "PodMonitor", "PrometheusRule")


POOLS = {
    "pool-gke": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    "pool-eks": {"node.kubernetes.io/instance-type": "g6.2xlarge"},
    "pool-aks": {"kubernetes.azure.com/accelerator": "nvidia"},
}


@pytest.mark.parametrize("pool", POOLS)
def test_pools_of_the_clouds(pool: str, tmp_path: Path) -> None:
    """An overlay of the user's own, as k8s/README.md shows it."""
    for name in ("k8s", "locustfiles", "workloads", "exporters"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path)], check=True)
    folder = tmp_path / "k8s" / "overlays" / "mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(
        "resources: [../headless]\n"
        f"components: [../../components/{pool}, ../../components/placement-gpu-pool]\n"
        "images: [{name: tokenswarm, newName: registry.example.com/tokenswarm, newTag: 1.2.3}]\n"
    )
    found = workloads(list(yaml.safe_load_all(render_text(folder))))
    tolerations = pod_template(found["engine"])["spec"]["tolerations"]
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in tolerations
    assert len(tolerations) == (2 if pool == "pool-aks" else 1)
    for workload in found.values():
        assert pod_template(workload)["spec"]["nodeSelector"] == POOLS[pool]
        assert pod_template(workload)["spec"]["tolerations"] == tolerations
    assert containers(found["worker"])[0]["image"] == "registry.example.com/tokenswarm:1.2.3"


# ---- jobs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", HEADLESS)
def test_a_run_happens_once_and_says_why_it_failed(overlay: str) -> None:
    for job in of_kind(render(overlay), "Job"):
        spec = job["spec"]
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["ttlSecondsAfterFinished"] >= 3600
        if overlay == "soak" and component(job) == "worker":
            # The others go on when one dies; the master says what is missing.
            assert spec["backoffLimitPerIndex"] == 0
            assert "backoffLimit" not in spec
            actions = {"FailIndex"}
        else:
            assert spec["backoffLimit"] == 0
            actions = {"FailJob"}
        rules = spec["podFailurePolicy"]["rules"]
        assert {rule["action"] for rule in rules} == actions
        disrupted = [rule["onPodConditions"] for rule in rules if "onPodConditions" in rule]
        assert disrupted == [[{"type": "DisruptionTarget", "status": "True"}]]
        if component(job) == "master":
            codes = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
            assert codes == [{"containerName": "locust", "operator": "In", "values": [1, 2, 3, 4]}]
        assert containers(job)[0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_budgets_hold_a_soak(objects: list[dict[str, Any]]) -> None:
    """maxUnavailable and percentages are refused for pods of a Job."""
    found = workloads(objects)
    for budget in of_kind(objects, "PodDisruptionBudget"):
        kinds = [
            w["kind"] for w in found.values() if selects(budget["spec"]["selector"], labels(w))
        ]
        if kinds == ["Job"]:
            assert isinstance(budget["spec"]["minAvailable"], int)
            assert budget["spec"]["minAvailable"] >= 1
        else:
            assert budget["spec"]["maxUnavailable"] == 0


# ---- network --------------------------------------------------------------------------------


def allowed(objects: list[dict[str, Any]], source: str, target: str, port: str) -> bool:
    """Whether the policies let pods of one component reach a port of another: both ways in."""
    found = workloads(objects)
    policies = [p["spec"] for p in of_kind(objects, "NetworkPolicy")]

    def side(kind: str, end: str, other: str, key: str) -> bool:
        mine = [
            p
            for p in policies
            if selects(p["podSelector"], labels(found[end])) and kind in p["policyTypes"]
        ]
        return not mine or any(
            any(selects(peer["podSelector"], labels(found[other])) for peer in rule.get(key, ())
                if "podSelector" in peer)
            and any(p["port"] == port for p in rule["ports"])
            for p in mine
            for rule in p.get(kind.lower(), ())
        )  # fmt: skip

    return side("Egress", source, target, "to") and side("Ingress", target, source, "from")


def test_network_policies_allow_just_what_a_run_needs(objects: list[dict[str, Any]]) -> None:
    wanted = {
        ("master", "engine", "http"),
        ("worker", "engine", "http"),
        ("worker", "master", "rpc"),
    }
    names = ("engine", "master", "worker")
    ways = {
        (a, b, port)
        for a in names
        for b in names
        for port in ("http", "rpc", "metrics", "web")
        if a != b and allowed(objects, a, b, port)
    }
    assert ways == wanted
    policies = {p["metadata"]["name"]: p["spec"] for p in of_kind(objects, "NetworkPolicy")}
    dns = policies["default-deny"]["egress"][0]["ports"]
    assert {(p["protocol"], p["port"]) for p in dns} == {("UDP", 53), ("TCP", 53)}
    assert set(policies["default-deny"]["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in policies["default-deny"]
    for name, port in (("master", "metrics"), ("engine", "http")):
        scrapers = [
            rule
            for rule in policies[name]["ingress"]
            if {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
            in rule["from"]
        ]
        assert [p["port"] for rule in scrapers for p in rule["ports"]] == [port]


# ---- monitoring -----------------------------------------------------------------------------


def test_scrape_annotations_name_the_metrics_ports() -> None:
    for overlay in ("smoke-cpu", "headless", "headless-gpu-pool", "webui"):
        found = workloads(render(overlay))
        for name, port in (("engine", "http"), ("master", "metrics")):
            notes = pod_template(found[name])["metadata"]["annotations"]
            assert notes["prometheus.io/scrape"] == "true"
            assert int(notes["prometheus.io/port"]) == ports(found[name])[port]
            assert notes["prometheus.io/path"] == "/metrics"
        notes = pod_template(found["worker"])["metadata"]["annotations"]
        assert "prometheus.io/scrape" not in notes  # the master exports their figures, merged


def test_soak_brings_monitors_rules_and_dashboard() -> None:
    objects = render("soak")
    for item in of_kind(objects, "PodMonitor", "PrometheusRule"):
        assert item["apiVersion"] == "monitoring.coreos.com/v1"
        assert item["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert len(of_kind(objects, "PodMonitor")) == 2
    rules = yaml.safe_load((ROOT / "exporters" / "rules" / "tokenswarm.yaml").read_text())
    assert one(objects, "PrometheusRule", "tokenswarm")["spec"] == rules
    dashboard = one(objects, "ConfigMap", "tokenswarm-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = ROOT / "exporters" / "grafana" / "dashboards" / "tokenswarm-soak.json"
    assert dashboard["data"] == {file.name: file.read_text()}
