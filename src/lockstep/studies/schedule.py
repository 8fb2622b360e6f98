"""A study on one machine or many: what is left of it as jobs, and what follows from their ends."""

import logging
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from lockstep.run.config import TrainConfig
from lockstep.run.lock import RunLock
from lockstep.run.rundir import RunDir, read_json
from lockstep.studies import worker
from lockstep.studies.budget import need
from lockstep.studies.jobs import (
    STOPPED,
    Again,
    Driver,
    Exit,
    Failure,
    Job,
    Limits,
    OnEvent,
    Outcome,
    Pool,
)
from lockstep.studies.leavings import Keep, leave, policies
from lockstep.studies.packing import MAX_MEMBERS, Pack, cost, halves, keeps_replay, packs
from lockstep.studies.plan import GPU
from lockstep.studies.status import HeldRun, held_runs
from lockstep.studies.store import (
    check_study,
    is_there,
    logs_in,
    making,
    read_trial,
    runs_in,
    sound_and_damaged,
    too_large_in,
    write_study,
)
from lockstep.studies.study import Study, Trial, wanted
from lockstep.studies.verdicts import failure, ran_out

log = logging.getLogger(__name__)

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
Compile: TypeAlias = Literal["off", "on", "large"]
COMPILE_FROM = 50.0
"""Seconds on a GPU without compiling, as `plan` expects them, from which a pack counts as large:
compiling takes a minute and a half of the CPU and leaves less than half of them."""
LOSSES = 3
"""How often in a row a pack may lose its machine, or its time on it, without a new checkpoint."""
HEAVY = 0.5
"""A pack is heavy if its size is more than this share of the largest, or it keeps a replay."""
CHECKPOINT_EVERY = 50
"""Updates between checkpoints: what a pack loses at most when it is killed, not stopped. One with a
replay loses `RARELY` times as many."""
REPLAY_ROOM = 3e9
"""Bytes on the disk for each member with a replay: its newest checkpoint, the best one, and the one
that is being written."""
RARELY = 4
"""How many times as far apart the checkpoints of a replay are, of which each is gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the jobs of a study are made; where they are carried out is the pool's business."""

    device: Device = "cpu"
    """Where each of them trains."""
    threads: int = 1
    """CPU threads of each."""
    max_members: int = MAX_MEMBERS
    """Most trials that train side by side in one."""
    compile: Compile = "off"
    """Which of them compile their programs."""
    only: tuple[str, ...] = ()
    """Names of figures whose trials are trained; all of them if there is none."""
    learners: tuple[str, ...] = ()
    """Names of learners, of whose trials the same is true."""
    source: str = ""
    """The file that declares the study, if it is one."""
    keep: Keep = "flights"
    """What is kept of a pack when it is finished."""
    checkpoint_every: int = CHECKPOINT_EVERY
    """Updates between checkpoints; `RARELY` times as many where there is a replay."""

    def __post_init__(self) -> None:
        for name in ("threads", "max_members", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where jobs are carried out, and how many at once."""

    pool: Pool
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left to do."""

    done: int
    """Distinct trials that have a result."""
    packs: tuple[Pack, ...]
    """Packs to be trained, the costliest first."""
    taken_up: int
    """How many of them have begun already."""

    @property
    def trials(self) -> int:
        """Distinct trials to be trained."""
        return sum(len(pack.trials) for pack in self.packs)


class Scheduler:
    """Carries out a study under one root; only one at a time may.

    Use it as a context: it holds the root's lock.
    """

    def __init__(self, study: Study, root: Path, settings: Settings) -> None:
        self.study, self.settings = study, settings
        self.root = root.resolve()
        self.logs = logs_in(self.root) / _launch()
        self._lock = RunLock(self.root)
        self._policies = policies(study, settings.keep)
        self._packs: dict[str, Pack] = {}
        self._attempts: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._reached: dict[str, str] = {}

    def __enter__(self) -> "Scheduler":
        if is_there(self.root):
            check_study(self.root, self.study)
        with making(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        self._lock.__enter__()
        try:
            write_study(self.root, self.study)
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)

    def work(self) -> Work:
        """What is left: finished runs are filed, unfinished ones taken up, the rest is packed.

        A run goes on as a whole, so it is taken up if most of its trials still lack a result. Where
        fewer do, these are trained anew, which is less than to train the others twice.
        """
        asked = wanted(self.study, self.settings.only, self.settings.learners)
        every = self.study.distinct()
        held = [run for run in held_runs(self.root) if set(run.members) & set(asked)]
        left = self._left(asked)
        unfiled = [run for run in held if run.finished and set(run.members) & set(left)]
        for run in unfiled:
            self._leave(run)
        left = self._left(asked) if unfiled else left
        taken: list[Pack] = []
        for run in held:
            if _worth_taking_up(run, left=left, every=every):
                taken.append(_taken_up(self.root, run, every))
                left = {id: trial for id, trial in left.items() if id not in run.members}
        fresh = packs(left.values(), max_members=self.settings.max_members)
        made = [*taken, *(part for pack in fresh for part in self._fitting(pack))]
        return Work(
            done=len(asked.keys() - {trial.hash for pack in made for trial in pack.trials}),
            packs=tuple(sorted(made, key=lambda pack: pack.cost, reverse=True)),
            taken_up=len(taken),
        )

    def run(
        self,
        work: Work,
        place: Place,
        *,
        on_event: OnEvent,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Trains what is left; returns when that is done, one pack has failed, or on request."""
        driver = Driver(
            self.jobs(work),
            place.pool,
            limits=place.limits,
            judge=self._judge,
            on_event=on_event,
        )
        return driver.go(stopped)

    def jobs(self, work: Work) -> list[Job]:
        """A job for each pack, with its order written."""
        largest = max((pack.size for pack in work.packs), default=0)
        return [
            self._job(pack, heavy=pack.size > HEAVY * largest or keeps_replay(pack.config))
            for pack in work.packs
        ]

    def _left(self, wanted: dict[str, Trial]) -> dict[str, Trial]:
        sound, _ = sound_and_damaged(self.root)
        done = {summary.id for summary in sound}
        return {id: trial for id, trial in wanted.items() if id not in done}

    def _leave(self, run: HeldRun) -> None:
        from lockstep.run.record import Run  # imports torch

        found = Run.open(runs_in(self.root) / run.name)
        leave(self.root, run.name, found, keep=self.settings.keep, of=self._policies)

    def _fitting(self, pack: Pack) -> Iterator[Pack]:
        """The pack, in parts if it was seen not to fit into memory."""
        if (too_large_in(self.root) / pack.name).exists() and len(pack.trials) > 1:
            for half in halves(pack):
                yield from self._fitting(half)
        else:
            yield pack

    def _job(self, pack: Pack, *, heavy: bool) -> Job:
        self._packs[pack.name] = pack
        self._attempts[pack.name] = 1
        self._reached[pack.name] = self._newest(pack.name)
        settings = self.settings
        rarely = RARELY if keeps_replay(pack.config) else 1
        order = worker.Order(
            root=self.root,
            name=pack.name,
            config=replace(
                pack.config,
                device=settings.device,
                compile="on" if _compiles(pack, settings.compile) else "off",
                threads=settings.threads,
                checkpoint_every=rarely * settings.checkpoint_every,
                keep_checkpoints=1,
            ),
            source=settings.source,
            keep=settings.keep,
            policies=tuple(t.hash for t in pack.trials if t.hash in self._policies),
        )
        file = self.logs / f"{pack.name}.json"
        with making(self.logs):
            self.logs.mkdir(parents=True, exist_ok=True)
        order.write(file)
        return Job(
            name=pack.name,
            command=(sys.executable, "-m", worker.__name__, str(file)),
            log=self.logs / f"{pack.name}.log",
            cost=pack.cost,
            heavy=heavy,
            room=REPLAY_ROOM * _replays(pack),
            memory=need(settings.device, agents=pack.size, replays=_replays(pack)),
        )

    def _judge(self, exit: Exit, at_once: int) -> Failure | Again | None:
        if exit.code == worker.DONE:
            return self._unfiled(exit)
        if exit.code is None or exit.paused:
            return self._lost(exit)
        if ran_out(exit):
            return self._out_of_memory(exit, at_once)
        why = "was stopped by somebody else" if exit.code == STOPPED else "failed"
        return failure(exit, why)

    def _unfiled(self, exit: Exit) -> Failure | None:
        """A failure unless every trial of a pack that came to its end has a result."""
        trials = self._packs[exit.job.name].trials
        lacking = sum(read_trial(self.root, trial.hash) is None for trial in trials)
        if not lacking:
            return None
        why = (
            f"came to its end, and {lacking} of its {len(trials)} trials have no result: the code "
            "or the study has changed since this study was started; start it again"
        )
        return Failure(name=exit.job.name, code=exit.code, log=exit.job.log, why=why)

    def _lost(self, exit: Exit) -> Failure | Again:
        """Anew, as long as that leads on: a time limit may come any number of times."""
        name, newest = exit.job.name, self._newest(exit.job.name)
        if newest != self._reached[name]:
            self._reached[name], self._losses[name] = newest, 0
        else:
            self._losses[name] += 1
        if self._losses[name] > LOSSES:
            return failure(exit, f"came to no new checkpoint in {LOSSES + 1} attempts")
        what = exit.note if exit.paused else f"its machine was lost ({exit.note})"
        why = f"{what}; it goes on from its last checkpoint"
        return Again(jobs=(self._anew(exit.job),), why=why)

    def _newest(self, name: str) -> str:
        """What a pack's newest checkpoint is called; empty before the first one."""
        pointer = RunDir(runs_in(self.root) / name).checkpoints / "latest"
        return pointer.read_text() if pointer.is_file() else ""

    def _anew(self, job: Job) -> Job:
        """The job once more, with a log of its own: an old one would be taken for what it says."""
        self._attempts[job.name] += 1
        return replace(job, log=self.logs / f"{job.name}.{self._attempts[job.name]}.log")

    def _out_of_memory(self, exit: Exit, at_once: int) -> Failure | Again:
        """First fewer at once, then smaller packs."""
        if at_once > 1:
            why = f"memory ran out with {at_once} at once; half as many from now on"
            return Again(jobs=(self._anew(exit.job),), why=why, fewer=True)
        pack = self._packs[exit.job.name]
        if len(pack.trials) == 1:
            return failure(exit, "has one trial and does not fit into memory")
        self._set_aside(pack)
        parts = [self._job(half, heavy=exit.job.heavy) for half in halves(pack)]
        why = f"memory ran out; its {len(pack.trials)} trials start again in two packs"
        return Again(jobs=tuple(parts), why=why)

    def _set_aside(self, pack: Pack) -> None:
        """Moves a run that does not fit away, so that nobody takes it up and it is remembered.

        Its checkpoints, which nobody takes up either, are the most of it.
        """
        aside = too_large_in(self.root) / pack.name
        aside.parent.mkdir(exist_ok=True)
        folder = runs_in(self.root) / pack.name
        if folder.exists():
            folder.rename(aside)
            shutil.rmtree(aside / "checkpoints", ignore_errors=True)
        else:
            aside.mkdir()


def _replays(pack: Pack) -> int:
    """Members that keep a replay."""
    return len(pack.trials) if keeps_replay(pack.config) else 0


def _compiles(pack: Pack, which: Compile) -> bool:
    return which == "on" or (which == "large" and GPU.seconds(pack) >= COMPILE_FROM)


def until(
    seconds: float, stopped: Callable[[], bool], *, since: float | None = None
) -> Callable[[], bool]:
    """`stopped`, or when so many seconds have passed, from `since` on; 0 sets no limit."""
    end = (time.monotonic() if since is None else since) + seconds
    return lambda: stopped() or bool(seconds and time.monotonic() >= end)


def _worth_taking_up(run: HeldRun, *, left: dict[str, Trial], every: dict[str, Trial]) -> bool:
    """Whether a run is to go on: most of its trials lack a result, and the study knows them all."""
    members = set(run.members)
    return (
        not run.finished and members <= set(every) and 2 * len(members & set(left)) > len(members)
    )


def _taken_up(root: Path, run: HeldRun, trials: dict[str, Trial]) -> Pack:
    config = TrainConfig.from_json(read_json(RunDir(runs_in(root) / run.name).config))
    members = tuple(trials[id] for id in run.members)
    return Pack(name=run.name, trials=members, config=config, cost=cost(config))


def _launch() -> str:
    """A name that no other launch has."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}-{secrets.token_hex(3)}"
