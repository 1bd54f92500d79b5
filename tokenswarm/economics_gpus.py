"""Peaks of GPUs that serve language models, as their makers state them.

Dense arithmetic: where a data sheet gives the figure with sparsity, half of it. A GPU that is
missing can be described in a workload (`hardware.peak_tflops`, `memory_bandwidth_gb_per_s`).
The one subtle rule: GB/s are 1e9 bytes a second, as on the data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenswarm.spec import expected

NO_PEAKS = (
    "of no use without hardware.gpu, or hardware.peak_tflops and hardware.memory_bandwidth_gb_per_s"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: memory in GB, bandwidth in GB/s, dense TFLOPS at 16 and TFLOPS/TOPS at 8 bits."""

    memory_gb: float
    bandwidth_gb_per_s: float
    tflops_16: float
    tflops_8: float | None
    source: str


GPUS: dict[str, Gpu] = {
    "H100-SXM": Gpu(80, 3350, 989.4, 1978.9, "NVIDIA H100 data sheet, SXM5 (1,979 with sparsity)"),
    "H100-PCIE": Gpu(80, 2000, 756, 1513, "NVIDIA H100 data sheet, PCIe (1,513 with sparsity)"),
    "H100-NVL": Gpu(94, 3900, 835, 1671, "NVIDIA H100 NVL data sheet, one GPU"),
    "H200-SXM": Gpu(141, 4800, 989.4, 1978.9, "NVIDIA H200 data sheet, SXM"),
    "B200": Gpu(192, 8000, 2250, 4500, "NVIDIA Blackwell architecture brief, HGX B200, one GPU"),
    "A100-SXM-80GB": Gpu(80, 2039, 312, 624, "NVIDIA A100 data sheet, 80 GB SXM"),
    "A100-PCIE-80GB": Gpu(80, 1935, 312, 624, "NVIDIA A100 data sheet, 80 GB PCIe"),
    "A100-SXM-40GB": Gpu(40, 1555, 312, 624, "NVIDIA A100 data sheet, 40 GB"),
    "L40S": Gpu(48, 864, 362, 733, "NVIDIA L40S data sheet (733 with sparsity)"),
    "L4": Gpu(24, 300, 121, 242, "NVIDIA L4 data sheet (242 with sparsity)"),
    "A10": Gpu(24, 600, 125, 250, "NVIDIA A10 data sheet"),
    "A40": Gpu(48, 696, 149.7, 299.3, "NVIDIA A40 data sheet"),
    "T4": Gpu(16, 320, 65, 130, "NVIDIA T4 data sheet"),
    "V100-SXM": Gpu(32, 900, 125, None, "NVIDIA V100 data sheet, SXM2"),
    "RTX-4090": Gpu(24, 1008, 165.2, 330.3, "NVIDIA Ada GPU architecture paper, FP32 accumulate"),
    "MI300X": Gpu(192, 5300, 1307.4, 2614.9, "AMD Instinct MI300X data sheet"),
}


def find(name: str) -> Gpu | None:
    """The GPU of that name, in whatever case; None for one that is not in the table."""
    known = (gpu for key, gpu in GPUS.items() if key.lower() == name.lower())
    return GPUS.get(name) or next(known, None)


def unknown(name: str) -> str:
    """What to say of a GPU that is not in the table."""
    return (
        f"unknown GPU '{name}'. {expected(name, GPUS)} "
        "Or give hardware.peak_tflops and hardware.memory_bandwidth_gb_per_s."
    )


def uneven(count: int, replica: int) -> str:
    """What to say of GPUs that are left over."""
    return f"{count} GPUs cannot hold copies of {replica} GPUs each"
