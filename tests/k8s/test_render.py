"""`tokenswarm k8s render` with the real kubectl: every change arrives where it counts."""

import shutil

import pytest
import yaml
from manifests import OVERLAYS, component, containers, of_kind, one, render, workloads

from tokenswarm import cli

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: nothing can be rendered"
)


def rendered(capsys, *arguments):
    assert cli.main(["k8s", "render", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_without_changes_it_is_the_overlay(overlay, capsys):
    assert rendered(capsys, overlay) == render(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_change_arrives(overlay, capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "backend: {model: m}\nprompts: {input_tokens: 8, output_tokens: 4}\n"
        "load: {users: 1, requests: 9}\n"
    )
    objects = rendered(
        capsys, overlay, "--image", "r.example/t:9", "--workers", "6", "--namespace", "other",
        "--workload", str(file), "--set", "load.users=5", "--set", "HOST=http://mine:1",
    )  # fmt: skip
    assert {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]} == {
        "other"
    }
    assert [o["metadata"]["name"] for o in of_kind(objects, "Namespace")] == ["other"]
    numbers = one(objects, "ConfigMap", "tokenswarm-run")["data"]
    assert (numbers["WORKERS"], numbers["HOST"]) == ("6", "http://mine:1")
    assert numbers["WORKLOAD"] == "mine.yaml"
    assert one(objects, "ConfigMap", "tokenswarm-workloads")["data"]["mine.yaml"] == (
        file.read_text()
    )
    made = workloads(objects)
    worker = made["worker"]["spec"]
    if overlay == "webui":
        assert worker["replicas"] == 6
    else:
        assert (worker["completions"], worker["parallelism"]) == (6, 6)
    if overlay == "soak":
        assert one(objects, "PodDisruptionBudget", "workers")["spec"]["minAvailable"] == 6
    images = {component(o): containers(o)[-1]["image"] for o in made.values()}
    assert (images["master"], images["worker"]) == ("r.example/t:9", "r.example/t:9")
    assert images["engine"].startswith("r.example/t:9" if overlay == "smoke-cpu" else "vllm/")
    args = containers(made["master"])[0]["args"]
    assert args[-2:] == ["--set", "load.users=5"]
    assert "load.users=5" not in str(made["worker"])


def test_a_folder_of_files_can_be_applied_in_their_order(tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert cli.main(["k8s", "render", "smoke-cpu", "--out", str(out)]) == 0
    files = sorted(out.iterdir())
    assert capsys.readouterr().out == f"{len(files)} manifests in {out}\n"
    assert files[0].name == "01-namespace-tokenswarm.yaml"
    assert [yaml.safe_load(f.read_text()) for f in files] == render("smoke-cpu")
