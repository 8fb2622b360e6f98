"""Times work on a device: stretches that are waited for at their ends and nowhere else."""

import resource
import sys
import time
from collections.abc import Callable
from types import TracebackType

import torch

from lockstep.run.ledger import Repeat
from lockstep.run.resources import gauge_for

REPEATS = 5


class Clock:
    """Adds up what passes inside of it; the device is waited for as it starts and stops."""

    def __init__(self, device: torch.device) -> None:
        self.wall_s, self.cpu_s = 0.0, 0.0
        self._device = device

    def __enter__(self) -> None:
        wait_for(self._device)
        self._began = time.perf_counter(), time.process_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wait_for(self._device)
        self.wall_s += time.perf_counter() - self._began[0]
        self.cpu_s += time.process_time() - self._began[1]


Region = Callable[[int, Clock], None]
"""Does a row's work so many times, with the clock running where it counts."""


class Timer:
    """Repeats work for about `seconds` in all, and keeps the time of each repeat."""

    def __init__(self, device: torch.device, *, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        self._gauge = gauge_for(str(device))

    def once(self, region: Region) -> float:
        """Wall seconds of one call."""
        clock = Clock(self.device)
        region(1, clock)
        return clock.wall_s

    def repeats(self, region: Region) -> tuple[Repeat, ...]:
        """Some repeats of equally many calls, at least one in each, however long that takes."""
        calls = max(1, round(self.seconds / REPEATS / max(self.once(region), 1e-9)))
        return tuple(self._repeat(region, calls) for _ in range(REPEATS))

    def _repeat(self, region: Region, calls: int) -> Repeat:
        clock = Clock(self.device)
        region(calls, clock)
        percent = self._gauge.read()[0] if self._gauge else None
        return Repeat(calls=calls, wall_s=clock.wall_s, cpu_s=clock.cpu_s, gpu_percent=percent)


def wait_for(device: torch.device) -> None:
    """Returns once the device has done all it was asked; a CPU has always done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    """Counts the most memory held from here on, where that can be counted anew: on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Most memory that tensors held on the GPU, or that the process ever held on the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # elsewhere it is told in KiB
