"""What a notebook user calls: train, make, load, evaluate, by name and in one line each."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lockstep.core.learner import Learner
from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadCheckpoint, BadInput, known
from lockstep.learners import registry as learners
from lockstep.learners.config import LEARNERS, LearnerConfig
from lockstep.run import checkpoint, loop
from lockstep.run.config import TrainConfig, crossed, parse_seeds, preset
from lockstep.run.evaluate import EVALUATION_SEED, Evaluation, evaluate as _evaluate
from lockstep.run.fitting import Misfit, fit
from lockstep.run.manifest import config_hashes
from lockstep.run.policy import HeuristicPolicy, LearnedPolicy, Policy
from lockstep.run.record import Run
from lockstep.run.rundir import run_folder
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry as worlds
from lockstep.worlds.registry import WorldConfig

log = logging.getLogger(__name__)


def configure(
    world: str | WorldConfig,
    *,
    scenario: Path | str | None = None,
    learner: str | LearnerConfig | None = None,
    seeds: int | Sequence[int] = 1,
    seed: int = 0,
    grid: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> TrainConfig:
    """A run's configuration from names or configs; `settings` are fields of TrainConfig.

    `seeds=5` means `seed` to `seed + 4`, a sequence means itself. `grid`, such as
    `{"learner.lr_actor": [1e-4, 3e-4]}`, asks for a member of each combination and seed.
    """
    if isinstance(scenario, Path):
        scenario = str(scenario)
    if not isinstance(scenario, str | None):
        raise BadInput(
            f"scenario must be a name or a file, got a {type(scenario).__name__}; give settings of "
            "a world in place of the world's name"
        )
    if not isinstance(learner, LearnerConfig | str | None):
        raise BadInput(
            f"learner must be a name or a learner's config, got a {type(learner).__name__}"
        )
    if isinstance(world, str):
        config = preset(
            world, scenario=scenario, learner=learner if isinstance(learner, str) else None
        )
    elif scenario is not None:
        raise BadInput("scenario names a preset of a world; give either it or a world's config")
    else:
        config = preset(world.name, learner=learner if isinstance(learner, str) else None)
        config = replace(config, world=world, scenario="")
    if learner is not None and not isinstance(learner, str):
        config = replace(config, learner=learner, algorithm=learner.kind)
    chosen = parse_seeds(str(seeds), first=seed) if isinstance(seeds, int) else tuple(seeds)
    unknown = set(settings) - set(TrainConfig.__dataclass_fields__)
    if unknown:
        known("setting", min(unknown), TrainConfig.__dataclass_fields__)
    config = replace(config, seeds=chosen, **settings)
    return crossed(config, grid) if grid else config


def train(
    world: str | WorldConfig,
    *,
    name: str | None = None,
    root: Path | str = "runs",
    on_update: loop.OnUpdate | None = None,
    **options: Any,
) -> Run:
    """Trains a pack, one member for each seed, into `root/name`, and returns the run.

    `options` are those of `trainer`: scenario, learner, seeds, seed, total_steps, device, ...
    Without a name the run is called `<world>-<learner>-<n>`.
    """
    config = configure(world, **options)
    return loop.train(config, run_folder(config, name=name, root=Path(root)), on_update=on_update)


def trainer(world: str | WorldConfig, **options: Any) -> Trainer:
    """World, learner and rollout of a run, to be driven by hand: `trainer.update()`.

    Options: `scenario`, `learner` (a name or a config), `seeds` (a count or a list), `seed`,
    `grid` (numbers in which members differ), and the fields of TrainConfig such as `total_steps`
    and `device`.
    """
    return Trainer(configure(world, **options))


def make(
    world: str | WorldConfig,
    *,
    scenario: Path | str | None = None,
    lanes: int = 1,
    seed: int = 0,
    device: str = "cpu",
    compile: bool = False,
) -> World:
    """A world of `lanes` copies, reset from `seed` and ready to be stepped by hand."""
    if lanes < 1:
        raise BadInput(f"lanes must be at least 1, got {lanes}")
    config = configure(world, scenario=scenario).world
    place = torch.device(device)
    made = worlds.build(config, lanes=lanes, device=place, compile=compile)
    made.reset(lane_keys([seed], lanes=lanes, device=place))
    return made


def load(
    run: Run | Path | str,
    *,
    member: int | None = None,
    pointer: str = "latest",
    device: str = "cpu",
    world: WorldConfig | None = None,
) -> LearnedPolicy:
    """The policy of one member of a run: `member`, or the best by the run's objective.

    `world` are the settings it is to play under, where they are not the run's own: with more builds
    a turn it makes more, and weights that do not fit are refused.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    why = ""
    if member is None:
        member = run.best_comparable()
        why = f", best of {run.config.members} by world/{run.objective}"
    seed = run.config.member(member).seeds[0]
    label = f"{run.config.algorithm} member {member} (seed {seed}{why})"
    log.info("loaded %s from %s", label, run.folder)
    learner = _restored(run, pointer=pointer, device=device)
    if world is not None and world != run.config.world:
        learner = _moved(learner, run, world)
    return LearnedPolicy(learner, member=member, label=label)


def load_members(run: Run, *, pointer: str = "latest", device: str = "cpu") -> LearnedPolicy:
    """The policy of all members of a run side by side, to be evaluated on the same episodes."""
    learner = _restored(run, pointer=pointer, device=device)
    return LearnedPolicy(learner, label=run.config.algorithm)


def heuristic(world: str, name: str) -> HeuristicPolicy:
    """A rule without weights, by name."""
    rules = worlds.heuristics(known("world", world, worlds.names()))
    return HeuristicPolicy(rules[known(f"heuristic of {world}", name, rules)], label=name)


def evaluate(
    policy: Policy | str,
    world: World,
    *,
    episodes: int = 20,
    seed: int = EVALUATION_SEED,
    stochastic: bool = False,
) -> Evaluation:
    """Metrics of a policy, or of a heuristic by name, on fixed episodes; resets the world."""
    if isinstance(policy, str):
        policy = heuristic(world.spec.name, policy)
    return _evaluate(policy, world, episodes=episodes, seed=seed, deterministic=not stochastic)


def world_names() -> list[str]:
    """The worlds there are."""
    return worlds.names()


def learner_names() -> list[str]:
    """The learners there are."""
    return list(LEARNERS)


def _restored(run: Run, *, pointer: str, device: str) -> Learner:
    """The run's learner with the weights of a checkpoint."""
    step = checkpoint.pointed(run.dir.checkpoints, known("checkpoint", pointer, ("latest", "best")))
    if step is None:
        raise BadInput(f"{run.folder} has no checkpoint yet; let it train further")
    place = torch.device(device)
    learner = _fresh(run.config, run.config.world, place)
    owners = config_hashes(run.manifest)
    _, state = checkpoint.load(run.dir.checkpoints, step, device=place, owner=owners)
    try:
        learner.load_state_dict(fit(state["learner"], learner.state_dict()))
    except ValueError as misfit:
        raise BadCheckpoint(
            run.dir.checkpoints / f"{step}.pt", f"does not fit the run's learner: {misfit}"
        ) from misfit
    return learner


def _fresh(config: TrainConfig, world: WorldConfig, device: torch.device) -> Learner:
    """The run's learner as it would begin in a world."""
    spec = worlds.build(world, lanes=1, device=device, compile=False).spec
    return learners.build(
        config.learner, spec, seeds=config.seeds, vary=config.varied("learner"), device=device
    )


def _moved(learner: Learner, run: Run, world: WorldConfig) -> Learner:
    """A learner for another world with the policies of this one; BadInput if they do not fit."""
    other = _fresh(run.config, world, learner.device)
    state = other.state_dict()
    if "weights" not in state:
        return other  # nothing was learned that could be taken along

    def policies(weights: Mapping[str, Any], of: Learner) -> dict[str, Any]:
        return {f"weights of {role.name}": weights[role.name] for role in of.spec.roles}

    try:
        taken = fit(
            policies(learner.state_dict()["weights"], learner), policies(state["weights"], other)
        )
    except Misfit as misfit:
        raise BadInput(
            f"{run.folder} cannot play here, since agents, types or features are not those that it "
            f"was trained with: {misfit}"
        ) from misfit
    for role in other.spec.roles:
        state["weights"][role.name] = taken[f"weights of {role.name}"]
    other.load_state_dict(state)
    return other
