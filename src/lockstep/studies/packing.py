"""Trials of one shape side by side in one run; imports no torch."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise

from lockstep.errors import BadInput
from lockstep.run.config import TrainConfig, pack as packed, pack_key
from lockstep.studies.study import Trial

MAX_MEMBERS = 48
"""Members of a pack on a GPU unless asked for otherwise; beyond it a GPU gains little from more."""
MAX_MEMBERS_CPU = 3
"""The same on one CPU thread: a member of three takes 25 % less time than alone in the small scene
`demo` of uav-mec and 9 % more in its scene `paper`, and one of six 33 % less and 36 % more."""
MAX_REPLAYS = 5
"""Members of a pack of learners that keep a replay: each takes about a gigabyte, in memory and in
every checkpoint."""
DRAWN = 1.2
"""What a row that is drawn from a replay costs beside one that an epoch goes through, both in the
UAV paper's scene: so measured on a CPU, with a Q for every agent; .8 with one for the team."""
LENGTHS = {"n_slots", "n_steps"}
"""Settings of worlds that say how long an episode is, and not how much there is in a step."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Trials that are trained in one run."""

    name: str
    """Name of the run: equal for equal trials, so that an interrupted one is found again."""
    trials: tuple[Trial, ...]
    """Its members in order."""
    config: TrainConfig
    """Settings of the run."""
    cost: float
    """What training it takes, for comparing packs; see `cost`."""

    @property
    def steps(self) -> int:
        """Environment steps of all members."""
        return sum(trial.config.total_steps for trial in self.trials)

    @property
    def size(self) -> int:
        """How much it is at a time: the sizes of its members' worlds together."""
        return len(self.trials) * _size(self.config.world)


def packs(trials: Iterable[Trial], *, max_members: int = MAX_MEMBERS) -> list[Pack]:
    """Every distinct trial in one pack, the costliest pack first.

    Trials that may be members of one run are divided into parts of nearly equal size, in the order
    in which they come; so equal trials give equal packs.
    """
    if max_members < 1:
        raise BadInput(f"max_members must be at least 1, got {max_members}")
    alike: dict[str, dict[str, Trial]] = {}
    for trial in trials:
        alike.setdefault(pack_key(trial.config), {}).setdefault(trial.hash, trial)
    made = [
        make_pack(part)
        for group in alike.values()
        for part in _parts(list(group.values()), _limit(group.values(), max_members))
    ]
    return sorted(made, key=lambda pack: pack.cost, reverse=True)


def make_pack(trials: Sequence[Trial]) -> Pack:
    """One pack of these trials; BadInput names a setting in which they cannot differ."""
    first = trials[0].config
    digest = hashlib.sha256("\n".join(trial.hash for trial in trials).encode()).hexdigest()
    return Pack(
        name=f"{first.world.name}-{first.algorithm or first.learner.kind}-{digest[:12]}",
        trials=tuple(trials),
        config=packed([trial.config for trial in trials]),
        cost=sum(cost(trial.config) for trial in trials),
    )


def halves(pack: Pack) -> list[Pack]:
    """The same trials in two packs, for a machine whose memory the one does not fit into."""
    if len(pack.trials) < 2:
        raise BadInput(f"pack {pack.name} has one member and cannot be divided")
    middle = (len(pack.trials) + 1) // 2
    return [make_pack(pack.trials[:middle]), make_pack(pack.trials[middle:])]


def keeps_replay(config: TrainConfig) -> bool:
    """Whether the learner keeps what it has seen, which makes its members large."""
    return bool(getattr(config.learner, "replay", 0))


def cost(config: TrainConfig) -> float:
    """How often a run's networks look at something, and at how much: a rough measure of time.

    That is steps times the size of the world, once to make the step and then as often as it is
    learned from.
    """
    passes = 1.0 + _learned(config.learner)
    return config.members * config.total_steps * _size(config.world) * passes


def _learned(learner: object) -> float:
    """What learning costs for each environment step, in rows that an epoch goes through."""
    draws = getattr(learner, "batch", 0) * getattr(learner, "updates_per_step", 0.0)
    return float(getattr(learner, "epochs", 0) + DRAWN * draws)


def _size(world: object) -> int:
    """How much a step of the world has to do, as far as its settings say: how many of what."""
    if not is_dataclass(world):
        return 1
    names = {field.name for field in fields(world) if field.name.startswith("n_")} - LENGTHS
    counts = [getattr(world, name) for name in names]
    return max(1, sum(count for count in counts if isinstance(count, int)))


def _limit(group: Iterable[Trial], most: int) -> int:
    """Most members of a pack of these trials, which have the same learner."""
    return min(most, MAX_REPLAYS) if keeps_replay(next(iter(group)).config) else most


def _parts(trials: list[Trial], limit: int) -> list[list[Trial]]:
    """As few parts as possible, their sizes at most one apart."""
    count = -(-len(trials) // limit)
    bounds = [round(i * len(trials) / count) for i in range(count + 1)]
    return [trials[a:b] for a, b in pairwise(bounds)]
