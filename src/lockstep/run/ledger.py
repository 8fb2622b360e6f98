"""The speed ledger: what a measurement found, as numbers and as JSON; imports no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.run.jsonable import Json, encode

FORMAT = 1
WORLD, ACTING, LEARNING = "world only", "+ acting", "+ learning"


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One timed stretch, waited for at its ends only."""

    calls: int
    """How often the row's work was done in it."""
    wall_s: float
    """Seconds on the clock."""
    cpu_s: float
    """Seconds of processor time, of all threads of the process."""
    gpu_percent: float | None = None
    """Use of the GPU as NVML saw it at the end, where NVML can be asked."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(median=statistics.median(values), lowest=min(values), highest=max(values))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the ledger. Each line does what the line above does, and more."""

    name: str
    lanes: int
    """L: lanes that step together."""
    steps_per_call: int
    """Environment steps in one call, over all lanes; a step of one lane counts as one."""
    agents: float
    """Agents of all roles that decide in a lane's step, on average."""
    repeats: tuple[Repeat, ...]
    preparation_s: float
    """What the first calls took beyond later ones: compilation, capture, first allocations."""
    peak_memory_bytes: int
    """Most memory held: by tensors on the GPU in this row, or by the process so far."""

    @property
    def seconds_per_call(self) -> Spread:
        """Wall time of one call."""
        return Spread.of([repeat.wall_s / repeat.calls for repeat in self.repeats])

    @property
    def env_steps_per_s(self) -> Spread:
        """Environment steps of all lanes by wall time."""
        return Spread.of([self._steps(repeat) / repeat.wall_s for repeat in self.repeats])

    @property
    def env_steps_per_cpu_s(self) -> Spread:
        """Environment steps by processor time, which neighbours on the machine disturb least.

        A stretch too short for the processor's clock counts as its finest tick.
        """
        return Spread.of([self._steps(repeat) / max(repeat.cpu_s, 1e-9) for repeat in self.repeats])

    @property
    def agent_steps_per_s(self) -> Spread:
        """Decisions of single agents by wall time."""
        rate = self.env_steps_per_s
        return Spread(
            median=rate.median * self.agents,
            lowest=rate.lowest * self.agents,
            highest=rate.highest * self.agents,
        )

    def _steps(self, repeat: Repeat) -> int:
        return repeat.calls * self.steps_per_call

    def to_json(self) -> Json:
        """The raw repeats, and what follows from them."""
        rates = ("seconds_per_call", "env_steps_per_s", "agent_steps_per_s", "env_steps_per_cpu_s")
        return encode(self) | {name: encode(getattr(self, name)) for name in rates}


@dataclass(frozen=True, kw_only=True)
class Calls:
    """What one update asks of the device."""

    operators: int
    """Calls of operators by the host: those that no other makes; a compiled region is one."""
    launches: int | None = None
    """Launches of kernels and of whole graphs by the host; None without a GPU."""
    graph_launches: int | None = None
    """Those among them that launch a graph."""
    kernels: int | None = None
    """Kernels and copies that the GPU carried out, those inside graphs included."""
    busy_s: float | None = None
    """Seconds in which the GPU carried out at least one of them."""


@dataclass(frozen=True, kw_only=True)
class Equality:
    """Whether the path that is timed computes what the plain one computes."""

    tolerance: float
    gaps: tuple[float, ...]
    """Widest gap after one update from equal state, one for each try; the last one decides."""
    where: str
    """The part of the state that is widest apart in the last try."""
    precision: str = "fp32"
    """The arithmetic in which both were compared."""

    @property
    def holds(self) -> bool:
        """Whether the last try is within the tolerance."""
        return self.gaps[-1] <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Everything that one measurement found, and what it was made with."""

    path: str
    """How it was computed: plain, compiled, graphs, or both."""
    rows: tuple[Row, ...]
    calls: Calls
    """Of one update."""
    equality: Equality | None
    """None where the plain path itself was timed."""
    about: Json
    """Machine, versions, command and configuration."""

    def row(self, name: str) -> Row:
        """The row called `name`."""
        return next(row for row in self.rows if row.name == name)

    @property
    def busy_share(self) -> float | None:
        """Share of an update in which the GPU works.

        The time at work comes from one profiled update, the time of an update from those without
        the profiler, which slows the host and not the kernels.
        """
        busy = self.calls.busy_s
        return None if busy is None else busy / self.row(LEARNING).seconds_per_call.median

    @property
    def gpu_percent(self) -> float | None:
        """Mean use of the GPU while learning, as NVML saw it."""
        seen = [r.gpu_percent for r in self.row(LEARNING).repeats if r.gpu_percent is not None]
        return statistics.fmean(seen) if seen else None

    def to_json(self) -> Json:
        """The ledger with every raw repeat."""
        equality = self.equality and encode(self.equality) | {"holds": self.equality.holds}
        return {
            "format": FORMAT,
            **self.about,
            "path": self.path,
            "equality": equality,
            "rows": [row.to_json() for row in self.rows],
            "update": encode(self.calls)
            | {"busy_share": self.busy_share, "nvml_percent": self.gpu_percent},
        }
