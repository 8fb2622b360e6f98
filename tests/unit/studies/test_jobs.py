"""Working off jobs: their order, their number at once, and what ends them all."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.studies.jobs import (
    STOPPED,
    Again,
    Driver,
    Event,
    Exit,
    Failure,
    Job,
    Judge,
    Limits,
)
from lockstep.studies.local import LocalPool

QUICK, LONG = "exit 0", "sleep 60"


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    made = LocalPool({})
    yield made
    made.stop(grace=0.0)


class Watched:
    """A driver of shell commands in real processes, and what it said."""

    def __init__(self, pool: LocalPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self.events: list[Event] = []

    def job(self, name: str, script: str = QUICK, **about) -> Job:
        log = self.folder / f"{name}.log"
        return Job(name=name, command=("/bin/sh", "-c", script), log=log, **about)

    def go(
        self,
        *jobs: Job,
        judge: Judge | None = None,
        stopped: Callable[[], bool] = lambda: False,
        **limits,
    ):
        driver = Driver(
            jobs,
            self.pool,
            limits=Limits(**{"slots": 1} | limits),
            judge=judge or self.judge,
            on_event=self.events.append,
        )
        return driver.go(stopped)

    def judge(self, exit: Exit, slots: int) -> Failure | Again | None:
        if exit.code == 0:
            return None
        return Failure(name=exit.job.name, code=exit.code, log=exit.job.log, why="failed")

    def names(self, kind: str) -> list[str]:
        return [event.job.name for event in self.events if event.kind == kind]


@pytest.fixture
def watched(pool: LocalPool, tmp_path: Path) -> Watched:
    return Watched(pool, tmp_path)


def test_the_largest_job_goes_first(watched: Watched):
    jobs = [watched.job(f"{cost:g}", cost=cost) for cost in (2.0, 8.0, 4.0)]
    outcome = watched.go(*jobs)
    assert (outcome.failure, outcome.stopped) == (None, False)
    assert watched.names("start") == ["8", "4", "2"]
    assert sorted(watched.names("done")) == ["2", "4", "8"]


def test_no_more_jobs_go_on_at_once_than_there_are_slots(watched: Watched):
    watched.go(*(watched.job(str(i), "sleep 0.05") for i in range(7)), slots=3)
    assert max(event.running for event in watched.events) == 3
    assert len(watched.names("done")) == 7


def test_light_jobs_overtake_heavy_ones_that_wait_for_their_slot(watched: Watched):
    heavy = [watched.job(f"heavy-{i}", "sleep 0.3", cost=9.0, heavy=True) for i in range(2)]
    light = [watched.job(f"light-{i}", cost=1.0) for i in range(2)]
    watched.go(*heavy, *light, slots=2, heavy=1)
    assert watched.names("start") == ["heavy-0", "light-0", "light-1", "heavy-1"]


def test_jobs_that_need_much_of_the_disk_share_what_there_is_and_others_overtake(
    watched: Watched,
):
    large = [watched.job(f"large-{i}", "sleep 0.3", cost=9.0, room=6e9) for i in range(2)]
    light = [watched.job(f"light-{i}", cost=1.0) for i in range(2)]
    watched.go(*large, *light, slots=2, room=10e9)
    assert watched.names("start") == ["large-0", "light-0", "light-1", "large-1"]


def test_small_jobs_share_a_gpu_with_as_many_large_ones_as_fit(watched: Watched):
    large = [watched.job(f"large-{i}", "sleep 0.3", cost=9.0, memory=40e9) for i in range(3)]
    small = [watched.job(f"small-{i}", "sleep 0.1", cost=1.0, memory=5e9) for i in range(2)]
    watched.go(*large, *small, slots=12, memory=100e9)
    assert watched.names("start")[:4] == ["large-0", "large-1", "small-0", "small-1"]
    assert max(event.running for event in watched.events) == 4


def test_a_job_that_needs_more_than_the_disk_has_is_tried_alone(watched: Watched):
    jobs = [watched.job(f"large-{i}", "sleep 0.1", room=6e9) for i in range(2)]
    assert watched.go(*jobs, slots=2, room=1e9).failure is None
    assert max(event.running for event in watched.events) == 1


def test_the_first_failure_ends_the_others_within_five_seconds(watched: Watched):
    begun = time.monotonic()
    deaf = "trap '' TERM; while true; do sleep 0.1; done"
    outcome = watched.go(
        watched.job("bad", "sleep 0.2; echo broken; exit 7"),
        watched.job("polite", LONG),
        watched.job("deaf", deaf),
        watched.job("later", cost=0.5),
        slots=3,
    )
    assert time.monotonic() - begun < 5.0
    assert outcome.failure is not None
    said = str(outcome.failure)
    assert said == f"bad failed (exit code 7); its log is {watched.folder / 'bad.log'}"
    assert (watched.folder / "bad.log").read_text() == "broken\n"
    assert sorted(watched.names("stopped")) == ["deaf", "polite"]
    assert "later" not in watched.names("start")


def test_others_are_asked_before_they_are_forced(watched: Watched):
    polite = "trap 'echo bye; exit 10' TERM; echo up; sleep 60 & wait"
    ready = f"while ! grep -q up {watched.folder}/polite.log; do sleep 0.02; done; exit 1"
    watched.go(watched.job("polite", polite), watched.job("bad", ready), slots=2)
    assert (watched.folder / "polite.log").read_text() == "up\nbye\n"


def test_a_job_with_large_checkpoints_has_longer_to_write_one(watched: Watched):
    slow = "trap 'sleep 0.6; echo saved; exit 10' TERM; echo up; sleep 60 & wait"
    ready = f"while ! grep -q up {watched.folder}/slow.log; do sleep 0.02; done; exit 1"
    said = []
    for room in (0.0, 2e9):
        (watched.folder / "slow.log").unlink(missing_ok=True)
        jobs = watched.job("slow", slow, room=room), watched.job("bad", ready)
        watched.go(*jobs, slots=2, grace=0.2, writes=1e9)
        said.append((watched.folder / "slow.log").read_text())
    assert said == ["up\n", "up\nsaved\n"]


def test_others_stop_with_a_checkpoint_when_one_cannot_be_started(watched: Watched):
    polite = watched.job("polite", "trap 'echo bye; exit 10' TERM; echo up; sleep 60 & wait")
    later = watched.job("later", cost=0.5)

    def judge(exit: Exit, slots: int) -> None:
        later.log.mkdir()

    ready = f"while ! grep -q up {watched.folder}/polite.log; do sleep 0.02; done"
    with pytest.raises(BadInput, match=r"later.log cannot be made: Is a directory"):
        watched.go(polite, watched.job("first", ready), later, judge=judge, slots=2)
    assert polite.log.read_text() == "up\nbye\n"
    assert watched.names("stopped") == ["polite"]


def test_a_job_that_takes_too_long_ends_all_within_five_seconds(watched: Watched):
    begun = time.monotonic()
    outcome = watched.go(
        watched.job("slow", LONG), watched.job("other", LONG), slots=2, timeout=1.0
    )
    assert 1.0 < time.monotonic() - begun < 6.0
    assert outcome.failure is not None
    assert outcome.failure.code is None
    assert "took longer than the timeout of 1 s; its log is" in str(outcome.failure)
    assert len(watched.names("failed")) == 1  # and nothing else is said of that one
    assert sorted(watched.names("failed") + watched.names("stopped")) == ["other", "slow"]


def test_without_a_timeout_a_job_may_take_its_time(watched: Watched):
    assert watched.go(watched.job("one", "sleep 0.6"), timeout=0.0).failure is None


def test_a_job_that_is_judged_worth_another_try_gets_one(watched: Watched):
    tries: list[int] = []

    def judge(exit: Exit, slots: int) -> Again | None:
        tries.append(slots)
        return Again(jobs=(exit.job,), why="again") if len(tries) < 3 else None

    outcome = watched.go(watched.job("one", "exit 3"), judge=judge)
    assert outcome.failure is None
    assert watched.names("start") == ["one"] * 3
    assert watched.names("again") == ["one"] * 2


def test_a_job_can_be_replaced_by_others_with_fewer_at_once(watched: Watched):
    def judge(exit: Exit, slots: int) -> Again | None:
        if exit.code == 0:
            return None
        parts = (watched.job("half-a"), watched.job("half-b"))
        return Again(jobs=parts, why="too large", fewer=True)

    long = [watched.job(f"long-{i}", "sleep 0.5") for i in range(3)]
    watched.go(watched.job("whole", "exit 1", cost=9.0), *long, judge=judge, slots=4)
    assert sorted(watched.names("start")) == [
        "half-a", "half-b", "long-0", "long-1", "long-2", "whole"
    ]  # fmt: skip
    after = [event for event in watched.events if event.job.name.startswith("half")]
    assert max(event.running for event in after if event.kind == "start") <= 2


def test_a_judge_is_told_how_many_went_on_beside_a_job_at_most(watched: Watched):
    """Itself counted: one that waited for room had fewer beside it than there are slots."""
    told: dict[str, int] = {}

    def judge(exit: Exit, at_once: int) -> None:
        told[exit.job.name] = at_once

    pair = [watched.job(f"pair-{i}", "sleep 0.3", cost=2.0, room=4e9) for i in range(2)]
    alone = watched.job("alone", room=9e9)
    watched.go(*pair, alone, judge=judge, slots=9, room=9e9)
    assert told == {"pair-0": 2, "pair-1": 2, "alone": 1}


def test_half_of_those_that_went_on_are_left_when_fewer_are_to_go_on(watched: Watched):
    """However many slots there were: they were never all taken."""
    tries: list[str] = []

    def judge(exit: Exit, at_once: int) -> Again | None:
        tries.append(exit.job.name)
        if tries.count(exit.job.name) > 1:
            return None
        return Again(jobs=(exit.job,), why="too many", fewer=True)

    jobs = [watched.job(str(i), "sleep 0.3", room=4e9) for i in range(2)]
    watched.go(*jobs, judge=judge, slots=9, room=8e9)
    seen = [event.running for event in watched.events if event.kind == "start"]
    assert seen == [1, 2, 1, 1]


def test_all_stop_when_that_is_asked_for(watched: Watched):
    asked = threading.Timer(0.3, lambda: None)
    asked.start()
    begun = time.monotonic()
    outcome = watched.go(
        watched.job("one", LONG), watched.job("two", LONG), stopped=lambda: not asked.is_alive()
    )
    assert outcome.stopped
    assert time.monotonic() - begun < 3.0
    assert watched.names("stopped") == ["one"]


def test_a_job_that_fails_while_all_are_stopped_is_a_failure(watched: Watched):
    def broken(name: str, code: int) -> Job:
        return watched.job(name, f"trap 'exit {code}' TERM; echo up; sleep 60 & wait")

    def stopped() -> bool:
        logs = [watched.folder / f"{name}.log" for name in ("good", "bad")]
        return all(log.is_file() and log.read_text() for log in logs)

    jobs = broken("good", STOPPED), broken("bad", 7)
    outcome = watched.go(*jobs, stopped=stopped, slots=2)
    assert outcome.failure is not None
    assert (outcome.failure.name, outcome.failure.code) == ("bad", 7)
    assert (watched.names("stopped"), watched.names("failed")) == (["good"], ["bad"])


def test_no_job_begins_when_it_is_too_late_and_those_going_on_come_to_their_end(watched: Watched):
    jobs = [watched.job("first", "sleep 0.6", cost=2.0), watched.job("second", cost=1.0)]
    outcome = watched.go(*jobs, start_until=0.3)
    assert outcome.stopped
    assert outcome.failure is None
    assert watched.names("done") == ["first"]
    assert "second" not in watched.names("start")


def test_work_that_is_done_in_time_is_not_called_stopped(watched: Watched):
    assert not watched.go(watched.job("one"), start_until=30.0).stopped


def test_nothing_is_left_running_when_the_driver_breaks(watched: Watched, pool: LocalPool):
    def judge(exit: Exit, slots: int) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        watched.go(watched.job("one"), watched.job("two", LONG), judge=judge, slots=2)
    assert pool.wait(0.0) == []
    assert pool.stop(grace=0.0) == []
