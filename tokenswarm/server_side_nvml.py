"""The GPUs of this machine, read through NVIDIA's own library: what `--gpu nvml` asks for.

LocalGpus is a source for a server_side.Watch, under the same neutral names as the series of the
DCGM exporter. The library comes with NVIDIA's driver and is spoken to by ctypes, so that nothing
has to be installed; where it is missing, that is said once and the run goes on.

The one subtle rule: what a GPU does not offer (NVML says so) is absent, but what it no longer
tells makes the whole look fail: a sum over fewer GPUs than before would look like a change.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import gevent

from tokenswarm import server_side_names as names
from tokenswarm.offload import offload
from tokenswarm.server_side import Seen, grown
from tokenswarm.server_side_names import Reading

LIBRARY = "libnvidia-ml.so.1"
_PATIENCE_S = 10.0  # the driver wakes up for the first question when nobody else uses it
# NVML's return codes that mean: this GPU, driver or user cannot have that
_NOT_OFFERED = {3, 4, 13}  # NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND
_FUNCTION_NOT_FOUND = 13
_TEMPERATURE_OF_THE_GPU = 0
_TEXT_BYTES = 96


class NvmlError(Exception):
    """What NVML, or the loader, said went wrong."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class _Memory2(ctypes.Structure):
    """As _Memory, but what the driver keeps for itself is not `used`: so DCGM counts as well."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Nvml:
    """The library, opened. Raises NvmlError where there is none or no driver."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as e:
            raise NvmlError(f"{e}; the library comes with NVIDIA's driver") from None
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """Let go of the driver; errors at this point interest nobody."""
        self._library.nvmlShutdown()

    def devices(self) -> list[ctypes.c_void_p]:
        """A handle of every GPU, whatever CUDA_VISIBLE_DEVICES says."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = [ctypes.c_void_p() for _ in range(count.value)]
        for i, handle in enumerate(handles):
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(i), ctypes.byref(handle))
        return handles

    def text(self, function: str, device: ctypes.c_void_p) -> str | None:
        """A name of a GPU; None where it has none."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self._offered(function, device, buffer, ctypes.c_uint(_TEXT_BYTES)):
            return None
        return buffer.value.decode("utf-8", "replace")

    def values(self, device: ctypes.c_void_p) -> dict[str, float]:
        """What a GPU says of itself now, under neutral names."""
        found: dict[str, float] = {}
        use, milliwatts = _Utilization(), ctypes.c_uint()
        celsius, millijoules = ctypes.c_uint(), ctypes.c_ulonglong()
        if self._offered("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use)):
            found["gpu_use"] = use.gpu / 100
        memory = self.memory(device)
        if memory is not None:
            found["gpu_memory_bytes"] = float(memory.used)
        if self._offered("nvmlDeviceGetPowerUsage", device, ctypes.byref(milliwatts)):
            found["gpu_power_w"] = milliwatts.value / 1000
        sensor = ctypes.c_uint(_TEMPERATURE_OF_THE_GPU)
        if self._offered("nvmlDeviceGetTemperature", device, sensor, ctypes.byref(celsius)):
            found["gpu_temperature_c"] = float(celsius.value)
        energy = "nvmlDeviceGetTotalEnergyConsumption"  # since the driver was loaded
        if self._offered(energy, device, ctypes.byref(millijoules)):
            found["gpu_energy_j"] = millijoules.value / 1000
        return found

    def memory(self, device: ctypes.c_void_p) -> Any:
        """Its memory in bytes: total, free, used; None where that is not told."""
        newer = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << 24)
        if self._offered("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(newer)):
            return newer
        older = _Memory()
        known = self._offered("nvmlDeviceGetMemoryInfo", device, ctypes.byref(older))
        return older if known else None

    def _offered(self, function: str, *arguments: Any) -> bool:
        """Call a function; False when this GPU or driver does not offer it."""
        try:
            self._call(function, *arguments)
        except NvmlError as e:
            if e.code in _NOT_OFFERED:
                return False
            raise
        return True

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NvmlError(f"{function}: not in this driver", _FUNCTION_NOT_FOUND) from None
        if code:
            said = self._library.nvmlErrorString
            said.restype = ctypes.c_char_p
            text = (said(code) or b"?").decode("utf-8", "replace")
            raise NvmlError(f"{function}: {text} ({code})", code)


@dataclass(slots=True)
class Gpu:
    """One GPU and what it showed, look by look."""

    handle: ctypes.c_void_p
    name: str | None
    uuid: str | None
    memory_total_bytes: int | None
    offers: frozenset[str] = frozenset()
    seen: dict[str, Seen] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)  # before the load
    last: dict[str, float] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        """One look."""
        self.last = values
        if not self.first:
            self.first = values
            return
        for name, value in values.items():
            if name in names.GAUGES:
                self.seen.setdefault(name, Seen()).add(value)

    def account(self) -> dict[str, Any]:
        """What it is, and what it showed over the run."""
        shown = {
            name.removeprefix("gpu_"): {"mean": seen.sum / seen.n, "max": seen.max}
            for name, seen in self.seen.items()
        }
        joules = grown(Reading(None, self.first), Reading(None, self.last), "gpu_energy_j")
        return {
            "name": self.name,
            "uuid": self.uuid,
            "memory_total_bytes": self.memory_total_bytes,
            **shown,
            "energy_j": joules,
        }


class LocalGpus:
    """A server_side.Source: every GPU of this machine, added up as the DCGM exporter's are."""

    kind = "GPU metrics"
    url = "nvml:localhost"
    is_asked_for = True

    def __init__(self, library: str = LIBRARY) -> None:
        self.problem: str | None = None
        self.reading = Reading()
        self._path = library
        self._library: Nvml | None = None
        self._gpus: list[Gpu] = []

    def look(self) -> bool:
        """Ask all of them, in a thread: a driver may take its time."""
        try:
            with gevent.Timeout(_PATIENCE_S, NvmlError(f"no answer in {_PATIENCE_S:g} s")):
                found = offload(self._values)
        except NvmlError as e:
            self.problem = f"--gpu nvml: {e}"
            return False
        for gpu, values in zip(self._gpus, found, strict=True):
            gpu.add(values)
        wholes = {name: [v[name] for v in found if name in v] for name in names.GPU_NAMES}
        values = {name: names.combined(name, all_) for name, all_ in wholes.items() if all_}
        self.reading, self.problem = Reading("nvml", values), None
        return True

    def _values(self) -> list[dict[str, float]]:
        if self._library is None:
            self._library = Nvml(self._path)
            self._gpus = [self._gpu(handle) for handle in self._library.devices()]
        if not self._gpus:
            raise NvmlError("no GPU on this machine")
        return [self._ask(self._library, i, gpu) for i, gpu in enumerate(self._gpus)]

    def _gpu(self, handle: ctypes.c_void_p) -> Gpu:
        assert self._library is not None
        memory = self._library.memory(handle)
        return Gpu(
            handle,
            self._library.text("nvmlDeviceGetName", handle),
            self._library.text("nvmlDeviceGetUUID", handle),
            None if memory is None else int(memory.total),
        )

    def _ask(self, library: Nvml, index: int, gpu: Gpu) -> dict[str, float]:
        try:
            values = library.values(gpu.handle)
        except NvmlError as e:
            raise NvmlError(f"GPU {index}: {e}") from None
        if not values:
            raise NvmlError(f"GPU {index}: tells nothing of itself")
        if gpu.offers - values.keys():
            raise NvmlError(f"GPU {index}: no longer tells {min(gpu.offers - values.keys())}")
        gpu.offers = frozenset(values)
        return values

    def account(self) -> dict[str, Any]:
        """Each GPU by its number, for the summary."""
        return {"gpus": {str(i): gpu.account() for i, gpu in enumerate(self._gpus)}}

    def close(self) -> None:
        """Let go of the driver."""
        if self._library is not None:
            self._library.close()
            self._library = None
