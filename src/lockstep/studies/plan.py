"""What a study asks for before anything is trained: runs, packs, time; imports no torch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.run.jsonable import Json
from lockstep.studies.packing import MAX_MEMBERS, Pack, cost, packs
from lockstep.studies.store import Summary, results
from lockstep.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How fast trials are trained, and who says so."""

    source: str
    """Where the numbers come from."""
    steps_per_s: float | None = None
    """Environment steps of all members per second, the same for every pack; None if measured."""
    cost_per_s: Mapping[str, float] | None = None
    """Measured cost per second for each learner; under the empty name that of all together."""
    update_s: float = 0.0
    """What an update takes beyond that, however small the pack is."""

    def seconds(self, pack: Pack) -> float:
        """Time to train a pack."""
        if self.cost_per_s is None:
            assert self.steps_per_s is not None
            return pack.steps / self.steps_per_s
        known = self.cost_per_s
        launched = pack.config.updates * self.update_s
        return launched + pack.cost / known.get(pack.config.algorithm, known[""])


GPU = Rate(source="one H200", cost_per_s={"": 34e6}, update_s=0.079)
"""As benchmarks have it for AB-MAPPO in the UAV paper's scene: graphs, nothing compiled."""
GPU_COMPILED = Rate(source="one H200 with --compile on", cost_per_s={"": 62e6}, update_s=0.026)
"""The same with everything compiled, less the time for compiling."""
CPU = Rate(source="one CPU thread", cost_per_s={"": 36e3})
"""The same for a member alone, with nothing compiled."""
TYPICAL = (GPU, GPU_COMPILED, CPU)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work that a study is."""

    study: Study
    asked: dict[str, int]
    """Runs asked for by each sweep, in order."""
    done: int
    """Distinct trials that have a result already."""
    packs: tuple[Pack, ...]
    """What is to be trained, the costliest first; those that are done are left out."""
    rate: Rate | None
    """How fast that will go; None if nobody has said or measured it."""

    @property
    def runs(self) -> int:
        """Runs asked for."""
        return sum(self.asked.values())

    @property
    def distinct(self) -> int:
        """Trials that differ from each other."""
        return len(self.study.distinct())

    @property
    def steps(self) -> int:
        """Environment steps still to be made."""
        return sum(pack.steps for pack in self.packs)

    @property
    def seconds(self) -> float | None:
        """Time to train all packs one after another."""
        return None if self.rate is None else self.seconds_at(self.rate)

    def seconds_at(self, rate: Rate) -> float:
        """Time to train all packs one after another, if they are trained so fast."""
        return sum(map(rate.seconds, self.packs))

    def to_json(self) -> Json:
        """Everything, for programs."""
        return {
            "study": self.study.name,
            "grid": self.study.grid,
            "smoke": self.study.smoke,
            "precision": self.study.precision,
            "hash": self.study.hash,
            "runs": self.runs,
            "asked": self.asked,
            "distinct": self.distinct,
            "done": self.done,
            "steps": self.steps,
            "seconds": self.seconds,
            "rate": self.rate.source if self.rate else None,
            "typical_seconds": {rate.source: self.seconds_at(rate) for rate in TYPICAL},
            "packs": [
                {
                    "name": pack.name,
                    "world": pack.config.world.name,
                    "learner": pack.config.algorithm,
                    "members": len(pack.trials),
                    "steps": pack.steps,
                    "cost": pack.cost,
                    "seconds": self.rate.seconds(pack) if self.rate else None,
                    "trials": [trial.hash for trial in pack.trials],
                }
                for pack in self.packs
            ],
        }


def plan(
    study: Study,
    *,
    root: Path | None = None,
    rate: float | None = None,
    max_members: int = MAX_MEMBERS,
) -> Plan:
    """What `study` asks for, less what `root` has results of.

    `rate` is in environment steps of all members per second; without one it is measured from the
    results in `root`, if there are any.
    """
    if rate is not None and not rate > 0:
        raise BadInput(f"rate must be positive, got {rate}")
    found = results(root) if root is not None else []
    distinct = study.distinct()
    done = {summary.id for summary in found} & set(distinct)
    return Plan(
        study=study,
        asked=dict(Counter(point.figure for point in study.points() for _ in point.trials)),
        done=len(done),
        packs=tuple(
            packs((t for id, t in distinct.items() if id not in done), max_members=max_members)
        ),
        rate=Rate(source="as given", steps_per_s=rate) if rate is not None else measured(found),
    )


def measured(results: Iterable[Summary]) -> Rate | None:
    """The rate at which finished packs were trained; None if none of them says."""
    packed: dict[str, list[Summary]] = {}
    for summary in results:
        packed.setdefault(summary.pack, []).append(summary)
    work: defaultdict[str, float] = defaultdict(float)
    time: defaultdict[str, float] = defaultdict(float)
    told = 0
    for members in packed.values():
        first = members[0]
        if not first.seconds:
            continue
        told += 1
        whole = first.members * cost(first.config)  # members have equal shapes, so equal costs
        for name in ("", first.config.algorithm):
            work[name] += whole
            time[name] += first.seconds
    if not told:
        return None
    return Rate(
        source=f"measured from {told} finished pack{'s' if told > 1 else ''}",
        cost_per_s={name: work[name] / time[name] for name in work},
    )
