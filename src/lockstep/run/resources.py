"""What a run takes of its machine: processor, memory and GPU."""

import logging
import statistics
from collections import deque
from typing import Any, Protocol, runtime_checkable

import psutil

from lockstep.errors import needs_extra

log = logging.getLogger(__name__)

SAMPLES = 100
"""Samples over which the mean use of the GPU is taken."""

_MB = 1e6


@runtime_checkable
class Gauge(Protocol):
    """Reads a GPU."""

    def read(self) -> tuple[float, float]:
        """Use in percent of the time and memory taken in bytes, by all processes."""


class Resources:
    """Samples this process and, if `gauge` is given, the GPU that it computes on."""

    def __init__(self, gauge: Gauge | None = None) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # what follows is measured from here on
        self._gauge = gauge
        self._used: deque[float] = deque(maxlen=SAMPLES)

    def sample(self) -> dict[str, float]:
        """The numbers now, under the keys of perf.jsonl; processor use is since the last sample."""
        found = {
            "res/cpu_percent": float(self._process.cpu_percent()),
            "res/rss_mb": self._process.memory_info().rss / _MB,
            "res/system_memory_percent": float(psutil.virtual_memory().percent),
        }
        if self._gauge is not None:
            percent, memory = self._gauge.read()
            self._used.append(percent)
            found |= {
                "res/gpu_percent": percent,
                "res/gpu_memory_mb": memory / _MB,
                "res/gpu_percent_mean": statistics.fmean(self._used),
            }
        return found


class Nvml:
    """Reads one GPU through NVIDIA's library."""

    def __init__(self, device: str) -> None:
        """The GPU that CUDA calls `device`; MissingExtra without nvidia-ml-py."""
        with needs_extra("gpu"):
            import pynvml
        import torch

        # By its own number: NVML also counts the GPUs that CUDA_VISIBLE_DEVICES hides.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> tuple[float, float]:
        """Use in percent and memory in bytes."""
        use = self._nvml.nvmlDeviceGetUtilizationRates(self._device)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._device)
        return float(use.gpu), float(memory.used)


def gauge_for(device: str) -> Gauge | None:
    """A gauge for a CUDA device; None elsewhere, and None with a warning where NVML is not there.

    A run must not end because nobody can measure its GPU.
    """
    if not device.startswith("cuda"):
        return None
    try:
        return Nvml(device)
    except Exception as error:  # NVML's own errors have no name before it is imported
        log.warning("the use of %s is not measured: %s", device, error)
        return None
