"""`lockstep study run`: train what has no result yet, on this machine or on many."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep.cli.flags import bad_settings, parse
from lockstep.cli.study_flags import StudyFlags
from lockstep.cli.study_results import finish
from lockstep.errors import BadInput
from lockstep.run.stop import stop_on_signals
from lockstep.run.watching import span
from lockstep.studies import budget
from lockstep.studies.figures import load_matplotlib
from lockstep.studies.jobs import Event, Limits, OnEvent, Outcome, Pool
from lockstep.studies.leavings import Keep
from lockstep.studies.local import LocalPool
from lockstep.studies.packing import MAX_MEMBERS, MAX_MEMBERS_CPU
from lockstep.studies.ray_pool import RayCluster, RayPool
from lockstep.studies.schedule import (
    CHECKPOINT_EVERY,
    Compile,
    Device,
    Place,
    Scheduler,
    Settings,
    until,
)
from lockstep.studies.slurm_pool import JOBS, SlurmPool
from lockstep.studies.store import check_metrics
from lockstep.studies.study import wanted

DESCRIPTION = """\
Train the trials of a study that have no result yet: packs of them in processes of their own, the
largest first. The same command goes on after an interruption, whatever ended it: finished packs are
not trained again, unfinished ones continue from their last checkpoint. The first pack that fails
ends the others. An interrupt (Ctrl-C) or SIGTERM stops all with a checkpoint.

examples:
  lockstep study run uav-paper --smoke --finish
  lockstep study run uav-paper --only fig6 --device cuda
  lockstep study run uav-paper --start-until 400 --stop-after 540
  lockstep study run uav-paper --backend ray --ray-address auto
  lockstep study run uav-paper --backend slurm --slurm-partition gpu --device cuda --dry-run

Exit code: 0 if every trial has a result, or all was stopped on request (Ctrl-C, SIGTERM,
--stop-after, --start-until); 1 if a pack failed, or a second signal ended all at once."""


@dataclass(frozen=True, kw_only=True)
class RunFlags(StudyFlags):
    """The flags of `study run`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIGURE")] = ()
    """Names of the figures whose trials are trained; by default all."""
    learners: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LEARNER")] = ()
    """Of these, the learners whose trials are trained (ab-mappo, maddpg, ...); by default all."""
    jobs: int = 0
    """Packs at once; 0 takes as many as cores and memory allow."""
    threads: int = 1
    """CPU threads of each."""
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one, on this machine or in the Ray cluster, and
    says what it took. With --backend slurm it must be cpu or cuda."""
    max_members: int = 0
    """Most trials that are trained side by side in one pack; 0 takes 48, and 3 on the CPU."""
    compile: Compile = "off"
    """Whether packs compile their programs: none, all, or the large ones, which take a GPU most of
    a minute or longer."""
    max_heavy: int = 0
    """Of the packs that are more than half as large as the largest or keep a replay, so many at
    once; 0 sets no limit."""
    timeout: float = 0.0
    """With --backend local: seconds that a pack may take; 0 sets no limit."""
    stop_after: float = 0.0
    """Seconds after which to stop with checkpoints; the same command goes on. 0 never."""
    start_until: float = 0.0
    """Seconds after which no pack is begun any more, and the others come to their end. 0 never."""
    checkpoint_every: int = CHECKPOINT_EVERY
    """Updates between checkpoints: what a pack loses at most when it is killed; four times as many
    where it keeps a replay."""
    keep: Keep = "flights"
    """What is kept of a pack when its results are filed: the policies that figures of flights show,
    the policies of all trials, or whole runs with their checkpoints."""
    finish: bool = False
    """Once every trial has a result, aggregate them, draw the figures into the root and, where
    there is a paper to compare with, print the score."""
    backend: Literal["local", "ray", "slurm"] = "local"
    """Where the processes run: on this machine, in a Ray cluster, or as jobs of Slurm."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """With --backend ray: an existing cluster, or auto; by default a local one is started."""
    slurm_partition: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With --backend slurm: the partition; by default the cluster's."""
    slurm_minutes: int = 60
    """With --backend slurm: minutes that each job asks for."""
    dry_run: bool = False
    """With --backend slurm: print what would be submitted, and submit nothing."""

    def __post_init__(self) -> None:
        for name in (
            *("jobs", "max_members", "max_heavy"),
            *("timeout", "stop_after", "start_until"),
        ):
            if not getattr(self, name) >= 0:  # nor NaN
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.finish and (self.only or self.learners or self.dry_run):
            names = ("only", "learners", "dry_run")
            given = ", ".join(f"--{x.replace('_', '-')}" for x in names if getattr(self, x))
            raise ValueError(f"finish needs every trial of the study, got it with {given}")
        if self.timeout and self.backend != "local":  # the time that a job waits is not its own
            instead = "--slurm-minutes" if self.backend == "slurm" else "--stop-after"
            raise ValueError(
                f"timeout does not go with --backend {self.backend}; use {instead}, "
                f"got {self.timeout:g}"
            )
        if self.backend == "slurm":
            if self.device == "auto":
                raise ValueError(
                    "device must be cpu or cuda with --backend slurm, since nothing here can ask "
                    "its machines for a GPU; choose --device cpu or --device cuda, got auto"
                )
        elif self.dry_run or self.slurm_partition is not None:
            name = "dry_run" if self.dry_run else "slurm_partition"
            raise ValueError(f"{name} goes with --backend slurm, got {self.backend}")
        if self.ray_address is not None and self.backend != "ray":
            raise ValueError(f"ray_address goes with --backend ray, got {self.backend}")


def main(argv: Sequence[str]) -> int:
    """Trains and says how it ended."""
    since = time.monotonic()
    flags = parse(RunFlags, argv, verb="study run", description=DESCRIPTION)
    study, root = flags.load()
    wanted(study, flags.only, flags.learners)  # refuses what is not there before a root is made
    check_metrics(study)
    if flags.finish:
        load_matplotlib()  # if it is not there, that is to be known before a training of hours
    console = Console()
    with _cluster(flags) as cluster:
        device = _device(flags, cluster, console)
        most = MAX_MEMBERS_CPU if device == "cpu" else MAX_MEMBERS
        with bad_settings():
            settings = Settings(
                device=device,
                threads=flags.threads,
                max_members=flags.max_members or most,
                compile=flags.compile,
                only=flags.only,
                learners=flags.learners,
                source=flags.source,
                keep=flags.keep,
                checkpoint_every=flags.checkpoint_every,
            )
        scheduler = Scheduler(study, root, settings)
        place = _place(flags, scheduler, cluster)
        outcome = _trained(flags, scheduler, place, console, since=since)
    if outcome is None:
        return 0
    code = _end(outcome, console)
    if flags.finish and outcome == Outcome():
        finish(study, root)
    return code


def _trained(
    flags: RunFlags, scheduler: Scheduler, place: Place, console: Console, *, since: float
) -> Outcome | None:
    """How the training ended; None if it was only to be shown what would be submitted."""
    with ExitStack() as stack:
        # Joining a Ray cluster sets handlers of signals, so these come after.
        stopped = stack.enter_context(stop_on_signals())
        stack.enter_context(scheduler)
        work = scheduler.work()
        _say(
            console,
            f"{scheduler.study.name} in {scheduler.root}: {work.done} trials done, {work.trials} "
            f"to train in {len(work.packs)} packs, {work.taken_up} of them taken up where they "
            "stopped",
        )
        if not work.packs:
            return Outcome()
        if flags.dry_run:
            assert isinstance(place.pool, SlurmPool)
            for job in scheduler.jobs(work):
                print(place.pool.script(job))
            return None
        _say(console, f"up to {place.limits.slots} packs at once; logs are in {scheduler.logs}")
        limits = replace(place.limits, room=budget.disk_room(scheduler.root))
        place = replace(place, limits=_in_time(limits, flags.start_until, since=since))
        with _teller(console) as tell:
            return scheduler.run(
                work, place, on_event=tell, stopped=until(flags.stop_after, stopped, since=since)
            )


def _cluster(flags: RunFlags) -> AbstractContextManager[RayCluster | None]:
    return RayCluster(flags.ray_address) if flags.backend == "ray" else nullcontext()


def _device(flags: RunFlags, cluster: RayCluster | None, console: Console) -> Device:
    """Where to train: auto is decided here, since packs are made for it."""
    if flags.device == "cuda" and flags.backend == "local" and not budget.gpu_there():
        raise BadInput("device is cuda, but no GPU is available here; use --device cpu")
    if flags.device != "auto":
        return flags.device
    there = budget.gpu_there() if cluster is None else cluster.gpus > 0
    device: Device = "cuda" if there else "cpu"
    where = "" if cluster is None else " in the Ray cluster"
    _say(console, f"device: {device} (auto: {'there is one' if there else 'no GPU'}{where})")
    return device


def _place(flags: RunFlags, scheduler: Scheduler, cluster: RayCluster | None) -> Place:
    """Where the jobs go; what is not there is refused before the scheduler makes a root."""
    threads, device = flags.threads, scheduler.settings.device
    extra = budget.thread_environment(threads)
    pool: Pool
    if cluster is not None:
        pool = ray = RayPool(extra, cluster, threads=threads, device=device, asked=flags.jobs)
        slots, memory = ray.slots, ray.memory
    elif flags.backend == "slurm":
        pool = slurm = SlurmPool(
            extra,
            folder=scheduler.logs / "slurm",
            threads=threads,
            gpu=device == "cuda",
            minutes=flags.slurm_minutes,
            partition=flags.slurm_partition,
        )
        if not flags.dry_run:
            slurm.check()
        slots, memory = flags.jobs or JOBS, math.inf
    else:
        slots = budget.slots(flags.jobs, threads=threads, device=device)
        memory = budget.room(device)
        pool = LocalPool(extra | budget.compiler_environment(slots=slots, cores=budget.cores()))
    limits = Limits(slots=slots, heavy=flags.max_heavy, memory=memory, timeout=flags.timeout)
    return Place(pool=pool, limits=limits)


def _in_time(limits: Limits, start_until: float, *, since: float) -> Limits:
    """The limits with what is left of a time that began at `since`; 0 sets no limit."""
    left = max(start_until - (time.monotonic() - since), 1e-6)
    return replace(limits, start_until=left) if start_until else limits


@contextmanager
def _teller(console: Console) -> Iterator[OnEvent]:
    """Says what happens to packs, a line each; on a terminal with a bar below."""
    begun, done, total = time.monotonic(), 0, 0
    with Progress(
        TextColumn("{task.completed}/{task.total} packs"),
        BarColumn(),
        TextColumn("{task.fields[running]} running"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None, running=0)

        def tell(event: Event) -> None:
            nonlocal done, total
            done += event.kind == "done"
            # A pack may become two, and one that failed or was stopped is part of the whole.
            total = max(total, done + event.running + event.waiting)
            bar.update(task, completed=done, total=total, running=event.running)
            more = f": {event.text}" if event.text else ""
            stand = f"{done} of {total} packs done, {event.running} running"
            passed = span(time.monotonic() - begun)
            _say(console, f"{event.kind:8}{event.job.name}{more}  ({stand}, {passed})")

        yield tell


def _end(outcome: Outcome, console: Console) -> int:
    if outcome.failure is not None:
        _say(console, f"failed: {outcome.failure}")
        _say(console, "the others were stopped; the same command goes on where they are")
        return 1
    if outcome.stopped:
        _say(console, "stopped before the end; the same command goes on from here")
        return 0
    _say(console, "every trial has a result")
    return 0


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
