"""`--gpu nvml` on a whole run: with a small libnvidia-ml of ours, and on a machine without one."""

import json
import shutil
import subprocess

import pytest
from product import ROOT, locust_command, run, start, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
GIB = 1 << 30
LOAD = {"users": 2, "duration": "2s"}
SERVER = {"interval": "200ms"}


@pytest.fixture(scope="module")
def engine():
    with EngineProcess("--engine", "fast", "--set", "check_model=false") as running:
        yield running.url


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """An environment in which the fake library is what the loader finds."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the fake libnvidia-ml cannot be built")
    folder = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "unit" / "fake_nvml.c"
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def timeline(folder):
    rows = [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    return [row["server"] for row in rows if row.get("server")]


def test_gpus_stand_beside_the_engines_figures(tmp_path, engine, driver):
    done = run(tmp_path, engine, "--gpu", "nvml", env=driver, load=LOAD, server=SERVER)
    assert done.code == 0, done.said
    server = done.summary["server"]
    assert server["engine"] == "vllm"
    assert server["urls"][-1] == "nvml:localhost"
    assert server["gauges"]["gpu_use"] == pytest.approx({"mean": 0.65, "max": 0.65})
    assert server["gauges"]["gpu_memory_bytes"]["max"] == 64 * GIB
    # 3 J a question; one may have been asked for a look that the end of the run cut off
    assert server["counts"]["gpu_energy_j"] / 3 - server["looks"] in (-1, 0)
    assert server["gpus"]["1"]["name"] == "NVIDIA L4"
    assert server["tokens"]["output_tokens"]["difference"] == 0
    rows = timeline(done.folder)
    assert {row["gpu_power_w"] for row in rows} == {460.75}
    assert {row["gpu_temperature_c"] for row in rows} == {81}
    assert "running" in rows[-1]


def test_gpus_without_the_engines_metrics(tmp_path, engine, driver):
    done = run(
        tmp_path, engine, "--gpu", "nvml", "--workers", "0", env=driver, load=LOAD,
        server={**SERVER, "off": True},
    )  # fmt: skip
    assert done.code == 0, done.said
    assert done.summary["server"]["engine"] == "nvml"
    assert timeline(done.folder)[-1]["gpu_use"] == pytest.approx(0.65)


def test_plain_locust_without_a_gpu_warns_once_and_goes_on(tmp_path, engine):
    out = tmp_path / "out"
    file = written(tmp_path, workload(load={"users": 2, "requests": 10}))
    done = start(
        locust_command("--headless", "--workload", str(file), "--host", engine, "--gpu", "nvml",
                       "--export", "prometheus=off", "--out", str(out)),
        out, {"LD_LIBRARY_PATH": ""},
    ).finish()  # fmt: skip
    assert done.code == 0, done.said
    about = [w for w in done.summary["warnings"] if "GPU" in w]
    assert len(about) == 1
    assert about[0].startswith("no GPU metrics: --gpu nvml: libnvidia-ml.so.1: cannot open")
    assert done.summary["requests"]["ok"] == 10


@pytest.mark.parametrize(
    ("options", "sections", "said"),
    [
        (("--gpu", "rocm"), {}, "invalid choice: 'rocm'"),
        (("--gpu", "nvml"), {"server": {"gpu_url": "http://127.0.0.1:1"}},
         "--gpu: the workload's server.gpu_url already reads GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_bad_usage(tmp_path, engine, options, sections, said):
    done = run(tmp_path, engine, *options, load={"users": 1, "requests": 1}, **sections)
    assert done.code == 2
    assert said in done.said
