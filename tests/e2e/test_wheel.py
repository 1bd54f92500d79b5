"""The wheel works outside a checkout: what a user installs has everything that a run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(ROOT)], check=True, timeout=120)
    (found,) = folder.glob("tokenswarm-*.whl")
    return found


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment in another folder: the wheel, and this one's dependencies by path."""
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=120)
    site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    here = Path(sysconfig.get_paths()["purelib"])
    for entry in here.iterdir():  # everything but this checkout's own editable link
        if "tokenswarm" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder


def run(elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    python = elsewhere / "env" / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [str(python), "-m", "tokenswarm.cli", *arguments],
        cwd=elsewhere, env=environment, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_locustfiles_workloads_and_dashboards_travel_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "tokenswarm/_data/locustfiles/stream.py",
        "tokenswarm/_data/workloads/demo.yaml",
        "tokenswarm/_data/workloads/sample_sharegpt.json",
        "tokenswarm/_data/k8s/overlays/smoke-cpu/run.yaml",
        "tokenswarm/_data/k8s/base/kustomization.yaml",
        "tokenswarm/_data/workloads/kustomization.yaml",
        "exporters/rules/kustomization.yaml",
        "exporters/web_tab.js",
        "exporters/report.html.j2",
    ):
        assert wanted in names
    assert any(n.startswith("exporters/grafana/") and n.endswith(".json") for n in names)
    assert any(n.startswith("exporters/rules/") for n in names)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_wheel_renders_its_overlays(elsewhere: Path) -> None:
    for overlay in ("smoke-cpu", "soak"):
        shown = run(elsewhere, "k8s", "render", overlay, "--workers", "3")
        assert shown.returncode == 0, shown.stderr
        assert "completions: 3" in shown.stdout


@pytest.mark.e2e
def test_a_run_from_the_wheel_is_valid(elsewhere: Path) -> None:
    workload = elsewhere / "w.yaml"
    workload.write_text(
        "name: wheel\n"
        "backend: {kind: openai-completions, model: default}\n"
        "tokenizer: {source: tiktoken, path: cl100k_base}\n"
        "prompts: {input_tokens: 64, output_tokens: 8}\n"
        "load: {users: 2, requests: 12}\n"
    )
    shown = run(elsewhere, "check", str(workload))
    assert shown.returncode == 0, shown.stderr
    python = elsewhere / "env" / "bin" / "python"
    with subprocess.Popen(
        [str(python), "-m", "tokenswarm.cli", "simulate", "--port", "0"],
        cwd=elsewhere, stdout=subprocess.PIPE, text=True,
    ) as engine:  # fmt: skip
        try:
            assert engine.stdout is not None
            url = engine.stdout.readline().split()[4]
            done = run(elsewhere, "run", str(workload), "--host", url, "--workers", "1",
                       "--out", "out", "--export", "prometheus=off")  # fmt: skip
        finally:
            engine.terminate()
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: a very busy machine
    assert "12 ok" in done.stdout
    assert (elsewhere / "out" / "report.html").stat().st_size > 10_000
