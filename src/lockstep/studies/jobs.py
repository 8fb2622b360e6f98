"""Working off a list of jobs: largest first, several at once, and all of them or none; no torch."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
"""Seconds after which a waiting driver looks whether it was asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command to be carried out once."""

    name: str
    """What tells it from the others."""
    command: tuple[str, ...]
    """The program and its arguments."""
    log: Path
    """The file to which it writes; the command is added to what is there."""
    cost: float = 1.0
    """Its size beside the others: the largest goes first."""
    heavy: bool = False
    """Whether it counts against the limit of heavy jobs."""
    room: float = 0.0
    """Bytes that it may take on the disk while it goes on, where that is much."""
    memory: float = 0.0
    """Bytes that it is expected to take of the memory that jobs share, a GPU's or the machine's."""


STOPPED = 10
"""Exit code of a job that was asked to stop; a checkpoint holds what it learned."""
KILLED = -9
"""Exit code of a process that the system has killed, which it does when memory runs out."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a job ended."""

    job: Job
    """Which."""
    code: int | None
    """Its exit code, minus the number of the signal that killed it; None if its machine, or the
    process that watched over it, was lost."""
    note: str = ""
    """What its code and its log do not say: how it was lost, for one."""
    paused: bool = False
    """Whether it stopped because its time on that machine was over, to be handed in again."""


@runtime_checkable
class Pool(Protocol):
    """Where jobs are carried out."""

    def start(self, job: Job) -> None:
        """Begins a job; it may wait for a place of its own."""

    def wait(self, timeout: float) -> list[Exit]:
        """The jobs that have ended; waits for the first of them, `timeout` seconds at most."""

    def stop(self, *, grace: float) -> list[Exit]:
        """Asks all jobs to stop, after `grace` seconds insists, and returns when none is left."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why the whole came to a halt."""

    name: str
    """The job that failed."""
    code: int | None
    """Its exit code; None if it had none: it took too long, or was lost."""
    log: Path
    """What it said."""
    why: str
    """What happened to it."""

    def __str__(self) -> str:
        code = "" if self.code is None else f" (exit code {self.code})"
        return f"{self.name} {self.why}{code}; its log is {self.log}"


@dataclass(frozen=True, kw_only=True)
class Again:
    """Jobs that take the place of one that did not come to its end."""

    jobs: tuple[Job, ...]
    """What to do instead, in the order of their cost."""
    why: str
    """What happened to the one before."""
    fewer: bool = False
    """Whether to have only half as many jobs at once from now on as that one saw."""


Judge: TypeAlias = Callable[[Exit, int], Failure | Again | None]
"""From an exit, and how many jobs went on at once with it at most, to what follows from it; None if
all is well."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a job, for whoever watches."""

    kind: Literal["start", "done", "again", "failed", "stopped"]
    """What."""
    job: Job
    """To which."""
    text: str = ""
    """More about it."""
    running: int = 0
    """Jobs that are going on now."""
    waiting: int = 0
    """Jobs that have not begun."""


OnEvent: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many jobs at once, and how long."""

    slots: int
    """Jobs at once."""
    heavy: int = 0
    """Heavy jobs among them; lighter ones may overtake those that wait. 0 sets no limit."""
    room: float = math.inf
    """Bytes on the disk for all of them; a job that needs more has it for itself."""
    memory: float = math.inf
    """Bytes of memory, likewise."""
    timeout: float = 0.0
    """Seconds that a job may take; 0 sets no limit."""
    start_until: float = 0.0
    """Seconds after which no job is begun any more, and those going on are waited for; 0 never."""
    grace: float = 3.0
    """Seconds in which jobs may end by themselves after another one has failed."""
    writes: float = 0.3e9
    """Bytes of `Job.room` for which they get a second more: a part of it is the checkpoint that
    they write meanwhile."""
    farewell: float = 60.0
    """Seconds in which jobs may end by themselves when the whole is asked to stop; `grace` and what
    is added to it are never more."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended."""

    failure: Failure | None = None
    """What made it stop early."""
    stopped: bool = False
    """Whether it was asked to stop, or to begin nothing more, before all was done."""


@dataclass
class _Running:
    job: Job
    since: float
    at_once: int = 1
    """How many went on with it at most, itself counted."""


class Driver:
    """Works off jobs in a pool; the first failure ends all."""

    def __init__(
        self, jobs: Iterable[Job], pool: Pool, *, limits: Limits, judge: Judge, on_event: OnEvent
    ) -> None:
        self.pool, self.limits, self.judge, self.on_event = pool, limits, judge, on_event
        self.slots = limits.slots
        self._waiting = list(jobs)
        self._sort()
        self._running: dict[str, _Running] = {}
        self._begun = time.monotonic()

    def go(self, stopped: Callable[[], bool]) -> Outcome:
        """Returns when all jobs are done, one has failed, or `stopped` says so."""
        self._begun = time.monotonic()
        try:
            while self._waiting or self._running:
                if stopped():
                    return Outcome(stopped=True, failure=self._end(grace=self.limits.farewell))
                if not self._closed():
                    self._fill()
                elif not self._running:
                    return Outcome(stopped=True)
                failure = self._look() or self._late()
                if failure is not None:
                    self._end(grace=self._grace(), told=failure.name)
                    return Outcome(failure=failure)
        except Exception:  # as when a job cannot be started, which is no fault of the others
            self._end(grace=self._grace())
            raise
        finally:
            if self._running:  # on the way out with an error, such as a second interrupt
                self.pool.stop(grace=0.0)
        return Outcome()

    def _sort(self) -> None:
        self._waiting.sort(key=lambda job: (-job.cost, job.name))

    def _closed(self) -> bool:
        """Whether it is too late to begin a job."""
        limit = self.limits.start_until
        return bool(limit) and time.monotonic() - self._begun >= limit

    def _fill(self) -> None:
        while len(self._running) < self.slots:
            job = next(filter(self._may_start, self._waiting), None)
            if job is None:
                return
            self._waiting.remove(job)
            self.pool.start(job)
            self._running[job.name] = _Running(job, time.monotonic())
            for one in self._running.values():
                one.at_once = max(one.at_once, len(self._running))
            self._tell("start", job)

    def _may_start(self, job: Job) -> bool:
        running = [one.job for one in self._running.values()]
        if job.heavy and self.limits.heavy and sum(j.heavy for j in running) >= self.limits.heavy:
            return False
        room = math.fsum(other.room for other in running)
        memory = math.fsum(other.memory for other in running)
        fits = _fits(job.memory, memory, self.limits.memory)
        return fits and _fits(job.room, room, self.limits.room)

    def _look(self) -> Failure | None:
        """Waits a little for jobs to end; the first failure among them."""
        failures = [self._ended(exit) for exit in self.pool.wait(self._patience())]
        return next((failure for failure in failures if failure is not None), None)

    def _ended(self, exit: Exit) -> Failure | None:
        at_once = self._running.pop(exit.job.name).at_once
        verdict = self.judge(exit, at_once)
        if isinstance(verdict, Failure):
            self._tell("failed", exit.job, verdict.why)
            return verdict
        if verdict is None:
            self._tell("done", exit.job)
            return None
        if verdict.fewer:
            self.slots = max(1, min(self.slots, at_once // 2))
        self._waiting += verdict.jobs
        self._sort()
        self._tell("again", exit.job, verdict.why)
        return None

    def _patience(self) -> float:
        if not self.limits.timeout or not self._running:
            return LOOK_EVERY
        oldest = min(one.since for one in self._running.values())
        left = oldest + self.limits.timeout - time.monotonic()
        return min(LOOK_EVERY, max(left, 0.0))

    def _late(self) -> Failure | None:
        if not self.limits.timeout:
            return None
        now = time.monotonic()
        for one in self._running.values():
            if now - one.since >= self.limits.timeout:
                why = f"took longer than the timeout of {self.limits.timeout:g} s"
                self._tell("failed", one.job, why)
                return Failure(name=one.job.name, code=None, log=one.job.log, why=why)
        return None

    def _grace(self) -> float:
        """Seconds to end in when one has failed; large checkpoints take long to write."""
        room = math.fsum(one.job.room for one in self._running.values())
        return min(self.limits.grace + room / self.limits.writes, self.limits.farewell)

    def _end(self, *, grace: float, told: str = "") -> Failure | None:
        """Stops all jobs; the first that failed instead.

        What became of the one called `told` has been said.
        """
        failures = []
        for exit in self.pool.stop(grace=grace):
            at_once = self._running.pop(exit.job.name).at_once
            if exit.job.name == told:
                continue
            failed = exit.code is not None and exit.code > 0 and exit.code != STOPPED
            verdict = self.judge(exit, at_once) if failed else None
            if isinstance(verdict, Failure):
                failures.append(verdict)
                self._tell("failed", exit.job, verdict.why)
            else:  # one that came to its end before the request reached it is done all the same
                self._tell("done" if exit.code == 0 else "stopped", exit.job)
        return next(iter(failures), None)

    def _tell(
        self,
        kind: Literal["start", "done", "again", "failed", "stopped"],
        job: Job,
        text: str = "",
    ) -> None:
        log.info("%s %s %s", kind, job.name, text)
        self.on_event(
            Event(
                kind=kind,
                job=job,
                text=text,
                running=len(self._running),
                waiting=len(self._waiting),
            )
        )


def _fits(need: float, taken: float, whole: float) -> bool:
    """Whether there is enough left; what needs more than the whole gets all of it."""
    return not (need and taken and taken + need > whole)
