"""This machine's GPUs through NVML: against a small library of our own, with known numbers."""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tokenswarm import server_side_nvml
from tokenswarm.server_side import Watch
from tokenswarm.server_side_names import Reading, read, together
from tokenswarm.server_side_nvml import LocalGpus

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1 << 30


def built(folder, *flags):
    """The fake library as a file of its own: each test has its own state."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the fake libnvidia-ml cannot be built")
    path = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(path), *flags, str(SOURCE)], check=True, timeout=60
    )
    return str(path)


@pytest.fixture
def library(tmp_path):
    return built(tmp_path)


def knob(library, name):
    return ctypes.c_int.in_dll(ctypes.CDLL(library), name)


def test_all_gpus_are_read_as_the_dcgm_exporters_would_be(library):
    gpus = LocalGpus(library)
    assert gpus.look()
    assert gpus.reading.engine == "nvml"
    assert gpus.reading.values == pytest.approx({
        "gpu_use": 0.65, "gpu_power_w": 460.75, "gpu_memory_bytes": 64 * GIB,
        "gpu_temperature_c": 81, "gpu_energy_j": 1001 + 5002,
    })  # fmt: skip
    same = read(b"""DCGM_FI_DEV_GPU_UTIL{gpu="0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1"} 40
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 400.5
DCGM_FI_DEV_POWER_USAGE{gpu="1"} 60.25
DCGM_FI_DEV_FB_USED{gpu="0"} 61440
DCGM_FI_DEV_FB_USED{gpu="1"} 4096
DCGM_FI_DEV_GPU_TEMP{gpu="0"} 66
DCGM_FI_DEV_GPU_TEMP{gpu="1"} 81
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 1001000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1"} 5002000
""")
    assert same.values == pytest.approx(gpus.reading.values)
    gpus.close()
    assert knob(library, "fake_open").value == 0


def test_a_watch_accounts_for_every_gpu(library):
    watch = Watch([LocalGpus(library)], interval_s=60.0)
    watch.start()
    watch._look()
    assert watch.found["now"] == pytest.approx({
        "gpu_use": 0.65, "gpu_power_w": 460.75, "gpu_memory_bytes": 64 * GIB,
        "gpu_temperature_c": 81,
    })  # fmt: skip
    watch.finish(0, 0, None)
    found = watch.found
    assert (found["urls"], found["looks"], watch.warnings) == (["nvml:localhost"], 3, [])
    assert found["counts"] == {"gpu_energy_j": 6}  # two looks after the first, 1 J and 2 J each
    assert found["gauges"]["gpu_power_w"] == {"mean": 460.75, "max": 460.75}
    assert found["gpus"]["0"] == {
        "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-aaaa", "memory_total_bytes": 80 * GIB,
        "use": {"mean": 0.9, "max": 0.9}, "power_w": {"mean": 400.5, "max": 400.5},
        "memory_bytes": {"mean": 60 * GIB, "max": 60 * GIB},
        "temperature_c": {"mean": 66, "max": 66}, "energy_j": 2,
    }  # fmt: skip
    assert found["gpus"]["1"]["energy_j"] == 4
    assert knob(library, "fake_open").value == 0


def test_an_old_driver_lacks_energy_and_counts_all_memory_in_use(tmp_path):
    gpus = LocalGpus(built(tmp_path, "-DOLD"))
    assert gpus.look()
    assert "gpu_energy_j" not in gpus.reading.values
    assert gpus.reading.values["gpu_memory_bytes"] == 80 * GIB
    assert gpus.account()["gpus"]["1"]["energy_j"] is None
    gpus.close()


def test_a_gpu_that_is_lost_fails_the_look(library):
    gpus = LocalGpus(library)
    assert gpus.look()
    knob(library, "fake_lost").value = 1
    assert not gpus.look()
    assert gpus.problem == ("--gpu nvml: GPU 1: nvmlDeviceGetUtilizationRates: GPU is lost (15)")
    assert gpus.reading.values["gpu_power_w"] == 460.75  # the last good look
    gpus.close()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("fake_gpus", 0, "--gpu nvml: no GPU on this machine"),
        ("fake_init", 9, "--gpu nvml: nvmlInit_v2: Driver Not Loaded (9)"),
    ],
)
def test_a_machine_without_a_gpu_is_said_once(library, name, value, problem):
    knob(library, name).value = value
    watch = Watch([LocalGpus(library)], 60.0)
    watch.start()
    watch.finish(0, 0, None)
    assert watch.warnings == [f"no GPU metrics: {problem}"]
    assert watch.found == {}
    assert knob(library, "fake_open").value == 0


def test_a_machine_without_the_library_is_said_once():
    watch = Watch([LocalGpus("libnvidia-ml-of-nobody.so.1")], 60.0)
    watch.start()
    watch.finish(0, 0, None)
    (warning,) = watch.warnings
    assert warning.startswith(
        "no GPU metrics: --gpu nvml: libnvidia-ml-of-nobody.so.1: cannot open shared object file"
    )
    assert warning.endswith("the library comes with NVIDIA's driver")


def test_a_driver_that_does_not_answer_is_given_up(library, monkeypatch):
    monkeypatch.setattr(server_side_nvml, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(server_side_nvml.LocalGpus, "_values", lambda self: time.sleep(0.5))
    gpus = LocalGpus(library)
    assert not gpus.look()
    assert gpus.problem == "--gpu nvml: no answer in 0.05 s"


def test_gpus_count_once_where_the_engine_tells_of_them_too():
    triton = Reading("triton", {"running": 3, "gpu_power_w": 300, "gpu_use": 0.1})
    nvml = Reading("nvml", {"gpu_power_w": 310, "gpu_temperature_c": 70})
    whole = together([nvml, triton])
    assert (whole.engine, whole.values) == (
        "triton", {"running": 3, "gpu_power_w": 310, "gpu_temperature_c": 70},
    )  # fmt: skip
    assert together([triton]).values == {"running": 3, "gpu_power_w": 300, "gpu_use": 0.1}
