"""`tokenswarm k8s render`: what is laid out for kustomize, without running it."""

import pytest
import yaml

from tokenswarm import cli, k8s_render
from tokenswarm.k8s_render import Changes, image_parts, kustomization, lay_out, split
from tokenswarm.records import BadInput

MINE = """
backend: {model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 4}
"""


def test_nothing_but_the_overlay():
    assert kustomization("headless", None, None, []) == {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../headless"],
    }


def test_all_that_stands_on_top_of_an_overlay():
    made = kustomization("soak", "r.example:5000/a/b:1.2", "two", ["load.users=8", "name=$(X)"])
    assert made["namespace"] == "two"
    assert made["images"] == [
        {"name": "tokenswarm", "newName": "r.example:5000/a/b", "newTag": "1.2"}
    ]
    (patch,) = made["patches"]
    assert patch["target"] == {
        "kind": "Job|Deployment", "labelSelector": "app.kubernetes.io/component=master",
    }  # fmt: skip
    path = "/spec/template/spec/containers/0/args/-"
    assert yaml.safe_load(patch["patch"]) == [
        {"op": "add", "path": path, "value": value}
        for value in ("--set", "load.users=8", "--set", "name=$$(X)")
    ]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("tokenswarm:2", {"newName": "tokenswarm", "newTag": "2"}),
        ("r.example:5000/tokenswarm", {"newName": "r.example:5000/tokenswarm"}),
        ("a/b@sha256:00ff", {"newName": "a/b", "digest": "sha256:00ff"}),
        ("a/b:3@sha256:00ff", {"newName": "a/b", "digest": "sha256:00ff"}),
    ],
)
def test_the_parts_of_an_image(image, parts):
    assert image_parts(image) == parts


@pytest.mark.parametrize("image", ["", "a/", ":1", "a:", "a@", "a b"])
def test_what_is_no_image(image):
    with pytest.raises(BadInput, match="--image: expected NAME"):
        image_parts(image)


@pytest.mark.parametrize("namespace", ["", "A", "-a", "a_b", "a" * 64])
def test_what_is_no_namespace(namespace):
    with pytest.raises(BadInput, match="--namespace: must be"):
        kustomization("soak", None, namespace, [])


def numbers(root, overlay):
    return yaml.safe_load((root / "k8s" / "overlays" / overlay / "run.yaml").read_text())["data"]


def test_the_numbers_of_a_run_are_changed_where_they_stand(tmp_path):
    top = lay_out(tmp_path, "smoke-cpu", Changes(workers=7, sets=("MODEL=x=y", "load.users=3")))
    assert numbers(tmp_path, "smoke-cpu") == {
        "WORKERS": "7", "WORKLOAD": "smoke.yaml", "HOST": "http://engine:8000", "MODEL": "x=y",
        "TOKENIZER_SOURCE": "tiktoken", "TOKENIZER": "cl100k_base", "WAIT_READY": "300",
        "LINGER": "30", "DEADLINE_SECONDS": "900",
    }  # fmt: skip
    made = yaml.safe_load((top / "kustomization.yaml").read_text())
    assert made["resources"] == ["../smoke-cpu"]
    assert "load.users=3" in made["patches"][0]["patch"]
    assert "MODEL" not in made["patches"][0]["patch"]


@pytest.mark.parametrize(
    ("overlay", "sets", "tokenizer"),
    [
        ("headless", ("MODEL=my/model",), "my/model"),
        ("headless", ("MODEL=my/model", "TOKENIZER=/tok"), "/tok"),
        ("headless", (), "Qwen/Qwen2.5-7B-Instruct"),
        ("smoke-cpu", ("MODEL=my/model",), "cl100k_base"),
        ("smoke-cpu", ("MODEL=my/model", "TOKENIZER_SOURCE=hf"), "my/model"),
    ],
)
def test_the_tokenizer_is_that_of_the_model_unless_told_otherwise(
    tmp_path, overlay, sets, tokenizer
):
    lay_out(tmp_path, overlay, Changes(sets=sets))
    assert numbers(tmp_path, overlay)["TOKENIZER"] == tokenizer


def test_an_overlay_on_an_overlay_has_the_numbers_of_that_one(tmp_path):
    lay_out(tmp_path, "headless-gpu-pool", Changes(workers=9))
    assert numbers(tmp_path, "headless")["WORKERS"] == "9"


def test_a_workload_of_ones_own_travels_in_the_config_map(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    root = tmp_path / "root"
    lay_out(root, "smoke-cpu", Changes(workload=str(file)))
    assert (root / "workloads" / "mine.yaml").read_text() == MINE
    listed = yaml.safe_load((root / "workloads" / "kustomization.yaml").read_text())
    files = listed["configMapGenerator"][0]["files"]
    assert files[-1] == "mine.yaml"
    assert "smoke.yaml" in files
    assert numbers(root, "smoke-cpu")["WORKLOAD"] == "mine.yaml"


def refused(tmp_path, **changes):
    with pytest.raises(BadInput) as e:
        lay_out(tmp_path / "root", "smoke-cpu", Changes(**changes))
    return "\n".join(e.value.problems)


def test_mistakes_are_found_before_anything_is_rendered(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MINE.replace("input_tokens", "input_tokkens"))
    assert "mine.yaml:4: prompts.input_tokkens" in refused(tmp_path, workload=str(file))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sets": ("load.userz=3",)}, "load.userz"),
        ({"sets": ("MODELL=x",)}, "--set MODELL: not in the overlay's run.yaml. Expected one of: "),
        ({"sets": ("MODELL=x",)}, "Did you mean 'MODEL'?"),
        ({"sets": ("WORKLOAD=no.yaml",)}, "--set WORKLOAD: no 'no.yaml' in "),
        ({"workload": "/nowhere/x.yaml"}, "--workload: cannot read '/nowhere/x.yaml'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, changes, said):
    assert said in refused(tmp_path, **changes)


def test_one_file_an_object_in_the_order_to_apply_them():
    one = "kind: Namespace\nmetadata:\n  name: n\n"
    two = "kind: ConfigMap\nmetadata:\n  name: c\ndata:\n  x: |\n    a: 1\n    ---\n    b: 2\n"
    assert split(f"{one}---\n{two}") == {
        "01-namespace-n.yaml": one, "02-configmap-c.yaml": two,
    }  # fmt: skip


def shown(capsys, *arguments):
    code = cli.main(["k8s", "render", *arguments])
    return code, capsys.readouterr().err


def test_without_a_renderer_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    code, said = shown(capsys, "smoke-cpu")
    assert code == 2
    assert "neither kubectl nor kustomize is installed" in said
    assert "https://kubernetes.io/docs/tasks/tools/" in said


def test_kustomize_alone_is_enough(monkeypatch, tmp_path, capsys):
    kustomize = tmp_path / "kustomize"
    kustomize.write_text('#!/bin/sh\necho "$1: $(/bin/cat $2/kustomization.yaml)"\n')
    kustomize.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["k8s", "render", "soak", "--namespace", "n2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("build: apiVersion: kustomize.config.k8s.io/v1beta1")
    assert said.endswith("resources:\n- ../soak\nnamespace: n2\n")


def test_what_kustomize_complains_of_is_shown(monkeypatch, tmp_path, capsys):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shown(capsys, "soak") == (2, "tokenswarm: k8s render: kubectl: broken\n")


def test_an_overlay_that_is_not_there(monkeypatch, tmp_path, capsys):
    code, said = shown(capsys, "smoke-cpy")
    assert code == 2
    assert "unknown overlay 'smoke-cpy'. Expected one of: headless, headless-gpu-pool, " in said
    assert "Did you mean 'smoke-cpu'?" in said
    monkeypatch.setattr(k8s_render, "data_folder", lambda name: tmp_path / name)
    code, said = shown(capsys, "smoke-cpu")
    assert code == 2
    assert "the overlays are not part of this installation" in said


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "x").write_text("")
    code, said = shown(capsys, "smoke-cpu", "--out", str(tmp_path))
    assert (code, said) == (2, f"tokenswarm: --out {tmp_path}: is not empty; name a new folder\n")


@pytest.mark.parametrize("workers", ["0", "-1", "two"])
def test_a_cluster_needs_a_worker(workers):
    with pytest.raises(SystemExit) as e:
        cli.main(["k8s", "render", "smoke-cpu", "--workers", workers])
    assert e.value.code == 2
