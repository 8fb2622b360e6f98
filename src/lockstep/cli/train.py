"""`lockstep train`: train a learner in a world, one member for each seed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from lockstep.cli import together
from lockstep.cli.flags import bad_settings, named_value, parse
from lockstep.errors import BadInput, RunExists
from lockstep.run.config import (
    Execution,
    TrainConfig,
    crossed,
    parse_grid,
    parse_seeds,
    preset,
)
from lockstep.run.rundir import run_folder
from lockstep.worlds import registry

DESCRIPTION = """\
Train a learner in a world: one member for each seed, all in one batched program.

examples:
  lockstep train uav-mec
  lockstep train uav-mec --scenario paper --seeds 5 --learner ab-mappo --total-steps 80000
  lockstep train uav-mec --seeds 3,7,9 --world.bandwidth-mhz 30 --learner.clip-ratio .1
  lockstep train uav-mec --seeds 3 --grid learner.lr_actor=1e-4,3e-4 world.bandwidth_mhz=30,50,70
  lockstep train city-growth --teacher npv --lessons 20
  torchrun --nproc-per-node 2 -m lockstep train uav-mec --learner.lanes 8

The run is written to ROOT/NAME. An interrupt (Ctrl-C) or SIGTERM stops it after the update in
progress, with a checkpoint, and `lockstep resume` goes on from there; a second one stops it at
once. `lockstep watch` shows it from another terminal, `lockstep doctor` says what looks wrong."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is to be trained, and where it goes."""

    world_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]
    """The world to train in; `lockstep worlds` lists them."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """Scenario that the world's settings start from, by name or from a TOML or JSON file where the
    world reads one; by default the world's first."""
    learner: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Learner that the learner's settings start from: ab-mappo, b-mappo, ag-mappo, g-mappo, ppo,
    maddpg or randomized; by default the world's."""
    seeds: Annotated[str, tyro.conf.arg(metavar="COUNT|LIST")] = "1"
    """A number of seeds counted from --seed, or a list such as 3,7,9."""
    seed: int = 0
    """First seed when --seeds is a number."""
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=LIST")] = ()
    """Numbers in which members differ, such as learner.lr_actor=1e-4,3e-4: one member for each
    combination and seed."""
    total_steps: int | None = None
    """Environment steps of each member, over all its lanes; 80000 by default."""
    teacher: Annotated[str, tyro.conf.arg(metavar="HEURISTIC")] = ""
    """Heuristic of the world that decides in the first --lessons updates and is imitated."""
    lessons: int = 0
    """Updates in which the teacher decides; afterwards the policies learn from their rewards."""
    name: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the run; by default WORLD-LEARNER-N with the first free N."""
    root: Path = Path("runs")
    """Folder that holds the runs."""
    resume: bool = False
    """Continue an unfinished run under --root with these settings, if there is one."""
    require_gpu: bool = False
    """Fail if there is no GPU, instead of training on the CPU."""
    json: bool = False
    """Print the run's summary as JSON, and nothing else, on standard output."""


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Execution, _Asked):
    """What every world and learner share."""


def main(argv: Sequence[str]) -> int:
    """Trains and says where the run lies; of several processes, the first one does."""
    return together.run(_lead, argv)


def _lead(argv: Sequence[str], **company: Any) -> int:
    flags = parse(flags_type(argv), argv, verb="train", description=DESCRIPTION)
    with bad_settings():
        config = to_config(flags)
    return _train(config, flags, company)


def flags_type(argv: Sequence[str]) -> type[Any]:
    """The flags, with the settings of the world and learner that `argv` names as defaults."""
    names = registry.names()
    plain = [arg for arg in argv[:1] if not arg.startswith("-")]
    world = next((arg for arg in argv if arg in names), plain[0] if plain else names[0])
    base = preset(
        world,
        scenario=named_value(argv, "--scenario"),
        learner=named_value(argv, "--learner"),
    )
    return dataclasses.make_dataclass(
        "TrainFlags",
        [
            _settings("world", base.world),
            _settings("learner", base.learner),
        ],
        bases=(TrainFlags,),
        frozen=True,
        kw_only=True,
    )


def _settings(name: str, default: object) -> tuple[str, Any, Any]:
    """A field whose own fields become `--<name>.<setting>`."""
    annotated = Annotated[type(default), tyro.conf.arg(name=name)]  # type: ignore[valid-type]
    return f"{name}_config", annotated, field(default=default)


def to_config(flags: Any) -> TrainConfig:
    """The run's configuration behind the flags; ValueError where settings contradict."""
    base = preset(flags.world_name, scenario=flags.scenario, learner=flags.learner)
    total = base.total_steps if flags.total_steps is None else flags.total_steps
    config = replace(
        base,
        world=flags.world_config,
        learner=flags.learner_config,
        seeds=parse_seeds(flags.seeds, first=flags.seed),
        total_steps=total,
        teacher=flags.teacher,
        lessons=flags.lessons,
        **{field.name: getattr(flags, field.name) for field in dataclasses.fields(Execution)},
    )
    return crossed(config, parse_grid(flags.grid)) if flags.grid else config


def with_gpu(config: TrainConfig) -> TrainConfig:
    """The configuration on a GPU, which must be there."""
    if config.device == "cpu":
        raise BadInput("--require-gpu and --device cpu contradict each other; leave one out")
    from torch.cuda import is_available

    if not is_available():
        raise BadInput("--require-gpu was given, but no GPU is available here; leave it out")
    return replace(config, device="cuda")


def _train(config: TrainConfig, flags: Any, company: dict[str, Any]) -> int:
    folder = run_folder(config, name=flags.name, root=flags.root)
    if folder.exists() and not flags.resume:
        raise RunExists(folder)
    from lockstep.cli.progress import shown  # these import torch, which takes seconds
    from lockstep.cli.report import console_for, device_line, report
    from lockstep.run import loop
    from lockstep.run.find import find
    from lockstep.run.trainer import resolve

    console = console_for(as_json=flags.json)
    if flags.require_gpu:
        config = with_gpu(config)
    if flags.resume:
        try:
            found = find(None, root=flags.root, config=config)
        except BadInput as none:
            console.print(f"{none}; starting anew", soft_wrap=True, highlight=False)
        else:
            console.print(found.why, soft_wrap=True, highlight=False)
            console.print(device_line(asked=config, taken=resolve(config)), soft_wrap=True)
            how: dict[str, Any] = {name: getattr(config, name) for name in ("device", "threads")}
            with shown(found.folder.name, console=console) as watch:
                run = loop.resume(found.folder, step=found.step, on_update=watch, **company, **how)
            return report(run, console=console, as_json=flags.json)
    console.print(device_line(asked=config, taken=resolve(config)), soft_wrap=True)
    while True:
        try:
            with shown(folder.name, console=console) as watch:
                run = loop.train(config, folder, on_update=watch, **company)
        except RunExists:  # another run has just taken the name
            if flags.name is not None or company:
                raise
            folder = run_folder(config, name=None, root=flags.root)
        else:
            return report(run, console=console, as_json=flags.json)
