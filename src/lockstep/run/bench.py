"""Measures a world, acting in it and learning in it, one upon the other: the speed ledger."""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lockstep.core.programs import Captured
from lockstep.core.rollout import Rollout
from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput, LockstepError
from lockstep.learners.config import PPOConfig
from lockstep.run import manifest, memory
from lockstep.run.config import TrainConfig
from lockstep.run.equality import compare
from lockstep.run.jsonable import Json
from lockstep.run.launches import calls_of
from lockstep.run.ledger import ACTING, LEARNING, WORLD, Equality, Ledger, Repeat, Row
from lockstep.run.tape import Tape
from lockstep.run.timing import Clock, Region, Timer, forget_peak, peak_bytes
from lockstep.run.trainer import Trainer, arithmetic, resolve
from lockstep.worlds import registry

_CAPTURES_BY = 3
"""The call in which a graph is captured, after eager ones; later calls replay it."""
_TAPE_BYTES = 2**30
"""Decisions kept at most; a tape that would need more is shorter than a rollout."""

Say = Callable[[str], None]


def bench(
    config: TrainConfig, *, seconds: float = 5.0, world_lanes: int | None = None, say: Say
) -> Ledger:
    """The ledger of `config`, each row measured for about `seconds`.

    The world alone runs in `world_lanes` lanes, by default in as many as training has. A path that
    does not compute what the plain one computes is refused with LockstepError before it is timed.
    """
    if not seconds > 0:
        raise BadInput(f"seconds must be positive, got {seconds:g}")
    if world_lanes is not None and world_lanes < 1:
        raise BadInput(f"world_lanes must be at least 1, got {world_lanes}")
    config = resolve(config)
    try:
        with arithmetic(config):
            return _measure(config, seconds, world_lanes, say)
    except (RuntimeError, MemoryError) as error:
        if not memory.ran_out(error):
            raise
        raise LockstepError(
            f"memory ran out ({error}); use fewer --seeds, --learner.lanes or --world-lanes"
        ) from error


def _measure(config: TrainConfig, seconds: float, world_lanes: int | None, say: Say) -> Ledger:
    load = os.getloadavg()
    timer = Timer(torch.device(config.device), seconds=seconds)
    lanes = world_lanes or config.members * config.learner.lanes
    say(f"world only: {lanes} lanes, decisions drawn beforehand")
    world = _build_world(config, lanes)
    path = _path(config, world)
    world_row = _world_row(world, config, timer, graphs="graphs" in path)
    del world
    memory.release()

    forget_peak(timer.device)
    say(f"training: seeds {_listed(config.seeds)}, {path} path; the first calls prepare it")
    trainer = Trainer(config)
    warm = _warm_up(trainer, timer, path)
    equality = None if path == "plain" else _check(trainer, path, say)
    say(f"{ACTING}: {trainer.world.lanes} lanes")
    forget_peak(timer.device)
    acting = _training_row(ACTING, trainer, timer, [collect for collect, _ in warm])
    say(LEARNING)
    forget_peak(timer.device)
    learning = _training_row(LEARNING, trainer, timer, [sum(both) for both in warm])
    say("counting the calls of one update")
    return Ledger(
        path=path,
        rows=(world_row, acting, learning),
        calls=calls_of(trainer.update, timer.device),
        equality=equality,
        about=_about(trainer, load, seconds=seconds),
    )


def _build_world(config: TrainConfig, lanes: int) -> World:
    compiles = config.compile == "on"
    return registry.build(config.world, lanes=lanes, device=config.device, compile=compiles)


def _path(config: TrainConfig, world: World) -> str:
    """How the trainer of this configuration computes, in words."""
    graphs = config.graphs and config.device == "cuda" and world.spec.capturable
    kernels = config.kernels and config.device == "cuda"
    words = {"compiled": config.compile == "on", "graphs": graphs, "kernels": kernels}
    return " and ".join(word for word, used in words.items() if used) or "plain"


def _world_row(world: World, config: TrainConfig, timer: Timer, *, graphs: bool) -> Row:
    """The world alone; a call plays the tape once."""
    forget_peak(timer.device)
    tape = Tape(world, lane_keys(config.seeds[:1], lanes=world.lanes, device=world.device))

    def record(calls: int, clock: Clock) -> None:
        with clock:
            for _ in range(calls):
                tape.record()

    first = timer.once(record)  # a compiled world compiles here
    while tape.steps < config.learner.steps and tape.bytes < _TAPE_BYTES:
        tape.record()
    play: Callable[[], None] = Captured(tape.play) if graphs else tape.play

    def region(calls: int, clock: Clock) -> None:
        for _ in range(calls):
            tape.rewind()
            with clock:
                play()

    warm = [timer.once(region) for _ in range(_CAPTURES_BY if graphs else 1)]
    repeats = timer.repeats(region)
    return Row(
        name=WORLD,
        lanes=world.lanes,
        steps_per_call=world.lanes * tape.steps,
        agents=tape.agents,
        repeats=repeats,
        preparation_s=_beyond([first], _usual(repeats) / tape.steps)
        + _beyond(warm, _usual(repeats)),
        peak_memory_bytes=peak_bytes(timer.device),
    )


def _warm_up(trainer: Trainer, timer: Timer, path: str) -> list[tuple[float, float]]:
    """The first updates, in which things are compiled and captured: seconds of both halves."""
    updates = _CAPTURES_BY if "graphs" in path else 1
    both = _over_and_over(trainer.collect), _over_and_over(trainer.learn)
    return [(timer.once(both[0]), timer.once(both[1])) for _ in range(updates)]


def _check(trainer: Trainer, path: str, say: Say) -> Equality:
    """Compares the path with the plain one, in fp32 whatever is timed: elsewhere samples part."""
    say(f"checking that the {path} path computes what the plain one computes")
    learner = trainer.config.learner
    if isinstance(learner, PPOConfig) and learner.precision != "fp32":
        exact = replace(trainer.config, learner=replace(learner, precision="fp32"))
        trainer = Trainer(exact)
        for _ in range(_CAPTURES_BY if "graphs" in path else 1):
            trainer.update()
    equality = compare(trainer)
    memory.release()
    say(f"they agree to {equality.gaps[-1]:.1e} after one update from equal state")
    return equality


def _training_row(name: str, trainer: Trainer, timer: Timer, warm: Sequence[float]) -> Row:
    """Collecting over and over, or whole updates."""
    call = trainer.collect if name == ACTING else trainer.update
    repeats = timer.repeats(_over_and_over(call))
    return Row(
        name=name,
        lanes=trainer.world.lanes,
        steps_per_call=trainer.config.members * trainer.config.steps_per_update,
        agents=_deciding(trainer.rollout),
        repeats=repeats,
        preparation_s=_beyond(warm, _usual(repeats)),
        peak_memory_bytes=peak_bytes(timer.device),
    )


def _over_and_over(call: Callable[[], object]) -> Region:
    def region(calls: int, clock: Clock) -> None:
        with clock:
            for _ in range(calls):
                call()

    return region


def _deciding(rollout: Rollout) -> float:
    """Agents that decide in a lane's step, on average over the rollout."""
    acts = [rows.obs.acts.double().sum(dim=-1).mean() for rows in rollout.roles.values()]
    return float(torch.stack(acts).sum())


def _listed(seeds: Sequence[int]) -> str:
    few = ", ".join(map(str, seeds[:4]))
    return few if len(seeds) <= 4 else f"{few}, ... ({len(seeds)})"


def _usual(repeats: Sequence[Repeat]) -> float:
    """Wall seconds of a call once everything is prepared; the quickest is disturbed least."""
    return min(repeat.wall_s / repeat.calls for repeat in repeats)


def _beyond(warm: Sequence[float], usual: float) -> float:
    return max(0.0, sum(warm) - len(warm) * usual)


def _about(trainer: Trainer, load: tuple[float, float, float], *, seconds: float) -> Json:
    config, made = trainer.config, manifest.build(trainer.config, trainer.world)
    cuda = {"cuda": torch.version.cuda} if config.device == "cuda" else {}
    return {
        "time": made["history"][0]["time"],
        "command": sys.argv,
        "seconds": seconds,
        "machine": made["machine"]
        | {"load_average_before": list(load), "threads": torch.get_num_threads()},
        "versions": made["packages"] | {"python": platform.python_version()} | cuda,
        "code_version": made["history"][0]["code_version"],
        "config": config.to_json(),
    }
