"""Where the time of an update goes, on the CPU and on a GPU."""

import time

import torch


class CpuWatch:
    """Where an update's time goes, where every call returns when its work is done."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._phase, self._part = "", ""
        self._began = self._split = 0.0

    def begin(self, phase: str) -> None:
        """A phase begins; the first one of an update forgets the last update."""
        if phase == "collect":
            self._seconds = {}
        self._phase, self._part = phase, ""
        self._began = time.perf_counter()

    def split(self, part: str) -> None:
        """A part of the phase begins, and ends the one before."""
        now = time.perf_counter()
        if self._part:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._split
        self._part, self._split = part, now

    def end(self) -> None:
        """The phase is over."""
        self.split("")
        self._seconds[self._phase] = time.perf_counter() - self._began

    def read(self) -> dict[str, float]:
        """Seconds by phase and part."""
        return dict(self._seconds)


class CudaWatch:
    """The same for a GPU, which works behind the host's back: by marks in its own queue."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        self._phase = ""

    def begin(self, phase: str) -> None:
        """A phase begins."""
        if phase not in self._marks:
            marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._marks[phase] = marks
        self._phase = phase
        self._marks[phase][0].record()

    def split(self, part: str) -> None:
        """Parts of a phase cannot be told apart without waiting for each."""

    def end(self) -> None:
        """The phase is over."""
        self._marks[self._phase][1].record()

    def read(self) -> dict[str, float]:
        """Seconds by phase; asked once statistics are on the host, it waits for next to nothing."""
        for _, end in self._marks.values():
            end.synchronize()
        return {name: a.elapsed_time(b) / 1000 for name, (a, b) in self._marks.items()}
