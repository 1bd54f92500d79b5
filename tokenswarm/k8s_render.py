"""`tokenswarm k8s render`: an overlay of k8s/ with another image, number of workers, workload.

kustomize does the rendering. It reads folders and takes no values, and the numbers of a run are
copied to where they belong before a patch from above could change them; so the overlays are
copied, their run.yaml is changed there, and a kustomization on top (see `kustomization`) names
the rest. Nothing is applied, no cluster is asked.

The one subtle rule: the workload is validated with all settings that the master will get, in
the same order, so that a mistake is seen here and not in a pod's log.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tokenswarm import spec, workload
from tokenswarm.launch import data_folder
from tokenswarm.records import BadInput

OUR_IMAGE = "tokenswarm"
_MASTER = "app.kubernetes.io/component=master"
_TOP = "rendered"  # the folder of the kustomization on top
_COPIED = {  # what overlays are made of, and what stays behind
    "k8s": ("README.md",),
    "locustfiles": ("__pycache__",),
    "workloads": ("*.json", "studies"),
    "exporters/rules": ("*.py", "__pycache__", "tests"),
    "exporters/grafana": ("*.py", "__pycache__", "provisioning"),
}
_NUMBER = re.compile(r"[A-Z][A-Z_]*")  # a key of run.yaml; those of workloads are lower case
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")  # of a ConfigMap
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INSTALL = (
    "k8s render: neither kubectl nor kustomize is installed, and one of them renders the "
    "manifests: install kubectl (https://kubernetes.io/docs/tasks/tools/)"
)


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be other than in the overlay; None or empty: as it is.

    sets: KEY=value for a number of run.yaml, key.path=value for one of the workload.
    """

    image: str | None = None
    workers: int | None = None
    namespace: str | None = None
    workload: str | None = None
    sets: tuple[str, ...] = ()


def render(overlay: str, changes: Changes) -> str:
    """The manifests as YAML documents. Raises BadInput."""
    folder = data_folder("k8s") / "overlays"
    if not folder.is_dir():
        raise BadInput(
            f"k8s render: the overlays are not part of this installation (looked for {folder}); "
            "use a checkout of the project"
        )
    known = sorted(path.parent.name for path in folder.glob("*/kustomization.yaml"))
    name = Path(overlay).name if Path(overlay).parent.resolve() == folder.resolve() else overlay
    if name not in known:
        raise BadInput(f"k8s render: unknown overlay '{overlay}'. {spec.expected(overlay, known)}")
    command = _renderer()
    with tempfile.TemporaryDirectory(prefix="tokenswarm-k8s-") as scratch:
        top = lay_out(Path(scratch), name, changes)
        done = subprocess.run([*command, str(top)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"k8s render: {command[0]}: {done.stderr.strip()}")
    return done.stdout


def split(text: str) -> dict[str, str]:
    """File names and contents, one object each; in the order of the names they can be applied."""
    documents = text.split("\n---\n")
    files = {}
    for i, document in enumerate(documents, 1):
        made = yaml.safe_load(document)
        name = f"{i:02d}-{made['kind'].lower()}-{made['metadata']['name']}.yaml"
        files[name] = document.rstrip("\n") + "\n"
    return files


def lay_out(root: Path, overlay: str, changes: Changes) -> Path:
    """Copy what overlays are made of, make the changes; returns the folder to render."""
    for name, left_out in _COPIED.items():
        shutil.copytree(data_folder(name), root / name, ignore=shutil.ignore_patterns(*left_out))
    numbers = {s.partition("=")[0]: s.partition("=")[2] for s in changes.sets if _is_number(s)}
    if changes.workers is not None:
        numbers["WORKERS"] = str(changes.workers)
    if changes.workload is not None:
        numbers["WORKLOAD"] = _add_workload(root / "workloads", changes.workload)
    overlays = root / "k8s" / "overlays"
    data = _change_numbers(overlays, overlay, numbers)
    sets = [s for s in changes.sets if not _is_number(s)]
    _validate(changes.workload, data, sets)
    top = overlays / _TOP
    top.mkdir()
    made = kustomization(overlay, changes.image, changes.namespace, sets)
    (top / "kustomization.yaml").write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")
    return top


def kustomization(
    overlay: str, image: str | None, namespace: str | None, sets: Sequence[str]
) -> dict[str, Any]:
    """The kustomization on top of an overlay. Raises BadInput for what Kubernetes cannot take."""
    made: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../{overlay}"],
    }
    if namespace is not None:
        if not _NAMESPACE.fullmatch(namespace):
            raise BadInput(
                f"--namespace: must be at most 63 of a-z, 0-9 and '-' inside, got '{namespace}'"
            )
        made["namespace"] = namespace
    if image is not None:
        made["images"] = [{"name": OUR_IMAGE, **image_parts(image)}]
    if sets:
        # Kubernetes would put variables in: $(NAME) in an argument, unless the $ is doubled
        values = [text for s in sets for text in ("--set", s.replace("$(", "$$("))]
        path = "/spec/template/spec/containers/0/args/-"
        patch = [{"op": "add", "path": path, "value": value} for value in values]
        made["patches"] = [
            {
                "target": {"kind": "Job|Deployment", "labelSelector": _MASTER},
                "patch": yaml.safe_dump(patch, sort_keys=False),
            }
        ]
    return made


def image_parts(image: str) -> dict[str, str]:
    """An image as kustomize has it; without a tag or digest the overlay's tag stays."""
    rest, at, digest = image.partition("@")
    path, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    name = f"{path}{slash}{last}"
    if not last or (at and not digest) or (colon and not tag) or re.search(r"\s", image):
        raise BadInput(f"--image: expected NAME[:TAG] or NAME@sha256:..., got '{image}'")
    if digest:
        return {"newName": name, "digest": digest}
    return {"newName": name, **({"newTag": tag} if tag else {})}


def _renderer() -> list[str]:
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    raise BadInput(_INSTALL)


def _is_number(setting: str) -> bool:
    return _NUMBER.fullmatch(setting.partition("=")[0]) is not None


def _add_workload(folder: Path, file: str) -> str:
    """Put a workload into the ConfigMap of workloads; its name there."""
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"--workload: cannot read '{file}': no such file")
    if not _KEY.fullmatch(path.name):
        raise BadInput(
            f"--workload: '{path.name}' cannot be a file's name in a ConfigMap: use letters, "
            "digits, '-', '_' and '.'"
        )
    shutil.copyfile(path, folder / path.name)
    listed = folder / "kustomization.yaml"
    made = yaml.safe_load(listed.read_text("utf-8"))
    files: list[str] = made["configMapGenerator"][0]["files"]
    if path.name not in files:
        files.append(path.name)
    listed.write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")
    return path.name


def _change_numbers(overlays: Path, overlay: str, numbers: Mapping[str, str]) -> dict[str, str]:
    """Change run.yaml of an overlay, or of the one that it stands on; returns what it says."""
    folder = overlays / overlay
    while not (folder / "run.yaml").is_file():
        made = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
        folder = (folder / made["resources"][0]).resolve()
    path = folder / "run.yaml"
    made = yaml.safe_load(path.read_text("utf-8"))
    data: dict[str, str] = made["data"]
    unknown = [key for key in numbers if key not in data]
    if unknown:
        raise BadInput(
            *(f"--set {key}: not in the overlay's run.yaml. {spec.expected(key, data)}"
              for key in unknown)
        )  # fmt: skip
    data.update(numbers)
    if "MODEL" in numbers and "TOKENIZER" not in numbers and data["TOKENIZER_SOURCE"] == "hf":
        data["TOKENIZER"] = data["MODEL"]  # another model's would count other tokens
    path.write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")
    return data


def _validate(file: str | None, data: Mapping[str, str], sets: Sequence[str]) -> None:
    """Load the workload as the master will. file: one that the user named."""
    path = data_folder("workloads") / data["WORKLOAD"]
    if file is None and not path.is_file():
        raise BadInput(
            f"--set WORKLOAD: no '{path.name}' in {path.parent}; name a file of your own with "
            "--workload"
        )
    given = [
        f"backend.model={data['MODEL']}",
        f"tokenizer.source={data['TOKENIZER_SOURCE']}",
        f"tokenizer.path={data['TOKENIZER']}",
    ]
    workload.load(file or path, [*given, *sets])
