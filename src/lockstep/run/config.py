"""What a run is asked to do: one frozen value that is written beside its results; no torch."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lockstep.errors import BadInput, known
from lockstep.learners.config import LEARNERS, LearnerConfig
from lockstep.run.documents import is_document, read_scenario
from lockstep.run.jsonable import Json, decode, encode
from lockstep.worlds import registry
from lockstep.worlds.registry import WorldConfig

DEFAULT_TOTAL_STEPS = 80_000


@dataclass(frozen=True, kw_only=True)
class Operations:
    """How a run is watched and recorded; nothing here changes its results."""

    board: bool = False
    """Write TensorBoard events, under the tags of SB3 and CleanRL."""
    parquet: bool = False
    """Keep the newest metrics in metrics/latest.parquet as well."""
    heartbeat_every: float = 5.0
    """Seconds between two heartbeats; 0 writes none."""
    heartbeat_history: bool = False
    """Append every heartbeat to heartbeat.jsonl as well."""
    resources_every: float = 10.0
    """Seconds between two samples of processor, memory and GPU; 0 takes none."""
    hang_after: float = 300.0
    """Seconds without progress after which the stacks of all threads are written; 0 never."""
    slow_step: float = 5.0
    """Seconds beyond which a step counts as slow; 0 watches none."""
    slow_count: int = 5
    """Slow steps among the last `slow_of` that make the run write its stacks."""
    slow_of: int = 100
    """How many of the last steps are looked at."""
    slow_every: float = 120.0
    """Seconds between two writings of stacks because of slow steps."""
    hints_every: int = 50
    """Updates between two looks of the doctor while training; 0 never."""

    def __post_init__(self) -> None:
        for name in ("heartbeat_every", "resources_every", "hang_after", "slow_step", "slow_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more seconds, got {getattr(self, name)}")
        if not 1 <= self.slow_count <= self.slow_of:
            raise ValueError(
                f"slow_count ({self.slow_count}) must be between 1 and slow_of ({self.slow_of})"
            )
        if self.hints_every < 0:
            raise ValueError(f"hints_every must be 0 or more, got {self.hints_every}")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how a run is carried out; it enters no hash."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes the GPU if there is one, and says what it took."""
    compile: Literal["auto", "on", "off"] = "off"
    """Compile the world's step and acting; auto does so where a compiler is found."""
    graphs: bool = True
    """On a GPU, replay collection and updates as CUDA graphs where the world allows it."""
    kernels: bool = True
    """Take over from torch where it is faster: on a GPU draws, Beta densities and, in bf16,
    self-attention and scores of entity rows by kernels of their own, on a CPU of AMD large products
    by oneDNN."""
    deterministic: bool = False
    """Allow only deterministic kernels, for exact resume on a GPU; costs speed there."""
    threads: int = 1
    """CPU threads of the arithmetic."""
    checkpoint_every: int = 25
    """Updates between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints to keep beside the best one."""
    best_by: str = ""
    """Metric whose tail mean names the best checkpoint; by default the world's objective."""
    accumulate: int = 1
    """Parts in which a minibatch is learned from, to save memory; the step is the same."""
    auto_memory: bool = False
    """When memory runs out, go down a ladder of smaller parts instead of failing."""
    ops: Operations = Operations()
    """How the run is watched and recorded."""

    def __post_init__(self) -> None:
        for name in ("threads", "checkpoint_every", "keep_checkpoints", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Execution):
    """Everything that decides a run's results, and then how it is carried out."""

    world: WorldConfig
    """Settings of the world."""
    learner: LearnerConfig
    """Settings of the learner."""
    seeds: tuple[int, ...] = (0,)
    """One member for each seed."""
    vary: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Settings in which members differ, as `world.<name>` or `learner.<name>`: a number for each
    member."""
    total_steps: int = DEFAULT_TOTAL_STEPS
    """Environment steps of each member, over all its lanes."""
    teacher: str = ""
    """Heuristic of the world that decides in the first updates, for the policies to imitate."""
    lessons: int = 0
    """How many updates it decides in; afterwards the policies decide, and learn from rewards."""
    scenario: str = ""
    """Name of the scenario the world settings started from."""
    algorithm: str = ""
    """Name of the configuration the learner settings started from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ValueError("seeds must name at least one seed")
        self._check_members()
        if any(not 0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError(f"seeds must be 0 or more and below 2^63, got {_listed(self.seeds)}")
        if self.total_steps < self.steps_per_update:
            raise ValueError(
                f"total_steps ({self.total_steps}) must be at least one update of lanes * steps = "
                f"{self.learner.lanes} * {self.learner.steps} = {self.steps_per_update}"
            )
        self._check_lessons()

    def _check_lessons(self) -> None:
        if self.lessons < 0:
            raise ValueError(f"lessons must be 0 or more updates, got {self.lessons}")
        if bool(self.teacher) != bool(self.lessons):
            raise ValueError(
                f"teacher ('{self.teacher}') and lessons ({self.lessons}) need each other: a "
                "heuristic of the world, and the number of updates in which it decides"
            )
        if self.lessons and not self.learner.imitates:
            raise ValueError(
                f"lessons must be 0 for a learner of kind {self.learner.kind}, which cannot "
                f"imitate, got {self.lessons}; use ppo"
            )

    def _check_members(self) -> None:
        """Every number varied may be, there is one for each member, and no two members are one."""
        for setting, values in self.vary.items():
            known("setting in which members may differ", setting, variable(self))
            if len(values) != self.members:
                raise ValueError(
                    f"vary must give {setting} one number for each of the {self.members} members, "
                    f"got {len(values)}"
                )
        told_apart = list(zip(self.seeds, *self.vary.values(), strict=True))
        if len(set(told_apart)) != len(told_apart):
            beside = " unless members differ in what they vary" if self.vary else ""
            raise ValueError(
                f"seeds must differ from each other{beside}, got {_listed(self.seeds)}"
            )
        if self.vary:
            for index in range(self.members):
                self.member(index)  # its settings refuse what they would refuse alone

    @property
    def members(self) -> int:
        """P: how many learners train side by side."""
        return len(self.seeds)

    @property
    def steps_per_update(self) -> int:
        """Environment steps that one member takes between two updates (N * T)."""
        return self.learner.lanes * self.learner.steps

    @property
    def updates(self) -> int:
        """Updates of the run; steps that do not fill one are left out."""
        return self.total_steps // self.steps_per_update

    @cached_property
    def hash(self) -> str:
        """Digest of what decides the results; where and how it runs is left out."""
        return _digest(_decisive(self) | {"seeds": list(self.seeds)})

    def member(self, index: int) -> "TrainConfig":
        """One member as it would be asked for alone."""
        if not 0 <= index < self.members:
            raise BadInput(f"member must be between 0 and {self.members - 1}, got {index}")
        return replace(
            self,
            world=replace(self.world, **self._own("world", index)),  # type: ignore[type-var]
            learner=replace(self.learner, **self._own("learner", index)),
            seeds=(self.seeds[index],),
            vary={},
        )

    def _own(self, of: Literal["world", "learner"], index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.varied(of).items()}

    def varied(self, of: Literal["world", "learner"]) -> dict[str, tuple[float, ...]]:
        """The settings of world or learner in which members differ, by their own names."""
        start = f"{of}."
        return {k.removeprefix(start): v for k, v in self.vary.items() if k.startswith(start)}

    def member_name(self, index: int) -> str:
        """What tells a member apart: its seed, and the numbers that are its own."""
        own = [f"{name.split('.')[1]}={x[index]:g}" for name, x in self.vary.items()]
        return " ".join([f"seed-{self.seeds[index]}", *own])

    def trial_hash(self, index: int) -> str:
        """Digest of one member as if it had been asked for alone: packing is not hashed."""
        return self.member(index).hash

    def to_json(self) -> Json:
        """The whole configuration; `from_json` gives back an equal one."""
        return encode(self) | {
            "world": {"name": self.world.name, "settings": encode(self.world)},
            "learner": {"kind": self.learner.kind, "settings": encode(self.learner)},
        }

    @classmethod
    def from_json(cls, data: Json) -> "TrainConfig":
        """The configuration that `to_json` wrote; ValueError where a setting is not known."""
        if not isinstance(data, dict):
            raise ValueError(f"config must be a table, got {data!r}")
        world = _tagged(data, "world", "name")
        learner = _tagged(data, "learner", "kind")
        name = known("world", world["name"], registry.names())
        world_class = type(next(iter(registry.scenarios(name).values())))
        kinds = {config.kind: type(config) for config in LEARNERS.values()}
        learner_class = kinds[known("kind of learner", learner["kind"], kinds)]
        rest = {key: value for key, value in data.items() if key not in ("world", "learner")}
        plain = decode(_Plain, rest)
        return cls(
            world=decode(world_class, world["settings"], "config.world"),
            learner=decode(learner_class, learner["settings"], "config.learner"),
            **{key: getattr(plain, key) for key in rest},
        )


@dataclass(frozen=True, kw_only=True)
class _Plain(Execution):
    """The settings of TrainConfig that need no tag to be read back."""

    seeds: tuple[int, ...]
    vary: dict[str, tuple[float, ...]]
    total_steps: int
    teacher: str
    lessons: int
    scenario: str
    algorithm: str


def variable(config: TrainConfig) -> list[str]:
    """The settings in which members of a pack may differ, as `vary` names them."""
    return [
        *(f"world.{name}" for name in getattr(config.world, "settable", ())),
        *(f"learner.{name}" for name in config.learner.variable),
    ]


def crossed(config: TrainConfig, grid: Mapping[str, Sequence[float]]) -> TrainConfig:
    """A pack of every combination of the numbers in `grid`, each with every seed of `config`."""
    names = [known("setting in which members may differ", n, variable(config)) for n in grid]
    for name, values in grid.items():
        if not values:
            raise BadInput(f"grid must give {name} at least one number, got none")
    members = list(itertools.product(*grid.values(), config.seeds))
    *columns, seeds = zip(*members, strict=True)
    vary = dict(zip(names, columns, strict=True))
    return replace(config, seeds=tuple(map(int, seeds)), vary=vary)


def pack(trials: Sequence[TrainConfig]) -> TrainConfig:
    """One run of all these single members; BadInput names a setting in which they cannot differ.

    Where and how it runs is taken from the first.
    """
    first = trials[0]
    shared = _fixed(first)
    for trial in trials:
        if trial.members != 1:
            raise BadInput(f"a pack is made of single members, got one of {trial.members}")
        for place, value in _fixed(trial).items():
            other = shared.get(place)
            if value != other:
                raise BadInput(f"{place} must be the same in a pack, got {other} and {value}")
    vary = {
        place: tuple(float(_get(trial, place)) for trial in trials)
        for place in variable(first)
        if len({_get(trial, place) for trial in trials}) > 1
    }
    return replace(first, seeds=tuple(trial.seeds[0] for trial in trials), vary=vary)


def pack_key(trial: TrainConfig) -> str:
    """Equal for single members that can be trained in one pack."""
    return _digest(_fixed(trial))


def _fixed(trial: TrainConfig) -> dict[str, Json]:
    """Every setting that all members of a pack share, by its place."""
    free = {place for place in variable(trial) if isinstance(_get(trial, place), int | float)}
    settings = {
        f"{of}.{name}": value
        for of in ("world", "learner")
        for name, value in encode(getattr(trial, of)).items()
        if f"{of}.{name}" not in free
    }
    kinds = {"world": trial.world.name, "learner": trial.learner.kind}
    whole = {name: getattr(trial, name) for name in ("total_steps", "teacher", "lessons")}
    return kinds | settings | whole


def _get(trial: TrainConfig, place: str) -> Any:
    of, _, name = place.partition(".")
    return getattr(getattr(trial, of), name)


def preset(world: str, *, scenario: str | None = None, learner: str | None = None) -> TrainConfig:
    """The configuration behind three names; UnknownName suggests the nearest.

    A scenario may also be a TOML or JSON file. The learner is by default the world's, and takes
    from its own settings those that suit the scenario, or for a file the world's first scenario.
    Its `total_steps` is the default or one update, whichever is more.
    """
    scenarios = registry.scenarios(known("world", world, registry.names()))
    first = next(iter(scenarios))
    scenario = first if scenario is None else scenario
    if is_document(scenario):
        world_config, suits = read_scenario(world, scenario), first
    else:
        world_config = scenarios[known(f"scenario of {world}", scenario, scenarios)]
        suits = scenario
    learner = registry.learner(world) if learner is None else learner
    learner_config = _suited(LEARNERS[known("learner", learner, LEARNERS)], world, suits)
    return TrainConfig(
        world=world_config,
        learner=learner_config,
        scenario=Path(scenario).stem if is_document(scenario) else scenario,
        algorithm=learner,
        total_steps=max(DEFAULT_TOTAL_STEPS, learner_config.lanes * learner_config.steps),
    )


def _suited(config: LearnerConfig, world: str, scenario: str) -> LearnerConfig:
    """The learner with the settings that the world's scenario asks for, as far as it has them."""
    asked = registry.learner_settings(world, scenario)
    every = {name for one in LEARNERS.values() for name in _fields(one)}
    for name in asked:
        known(f"learner setting (asked for by {world}, scenario {scenario})", name, every)
    return replace(config, **{k: v for k, v in asked.items() if k in _fields(config)})


def _fields(config: LearnerConfig) -> set[str]:
    return {field.name for field in fields(config)}


def parse_seeds(text: str, *, first: int = 0) -> tuple[int, ...]:
    """`5` is five seeds from `first` on; `3,7,9` is that list (`3,` is the single seed 3)."""
    try:
        if "," in text:
            return tuple(int(part) for part in text.split(",") if part.strip())
        count = int(text)
    except ValueError as error:
        raise BadInput(f"seeds must be a number or a list such as 3,7,9, got '{text}'") from error
    if count < 1:
        raise BadInput(f"seeds must be at least 1, got {count}")
    return tuple(range(first, first + count))


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """`learner.lr_actor=1e-4,3e-4` to that setting's numbers; `-` in a name may stand for `_`."""
    grid: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        if name in grid:
            raise BadInput(f"grid must name a setting once, got {name} twice; join its numbers")
        try:
            grid[name] = tuple(float(x) for x in values.split(","))
        except ValueError as error:
            raise BadInput(
                f"grid must be settings with numbers such as learner.lr_actor=1e-4,3e-4, "
                f"got '{text}'"
            ) from error
    return grid


def _decisive(config: TrainConfig) -> dict[str, Any]:
    data = config.to_json()
    always = ("world", "learner", "total_steps")
    if_used = tuple(key for key in ("vary", "teacher", "lessons") if data[key])
    return {key: data[key] for key in always + if_used}


def _digest(data: Json) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _tagged(data: dict[str, Json], key: str, tag: str) -> dict[str, Json]:
    entry = data.get(key)
    if not isinstance(entry, dict) or set(entry) != {tag, "settings"}:
        raise ValueError(f"config.{key} must hold '{tag}' and 'settings'")
    return entry


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))
