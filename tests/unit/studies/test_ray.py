"""Jobs in a real Ray cluster, which all tests of this file share."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.errors import BadInput
from lockstep.run.rundir import read_json
from lockstep.studies import store, worker
from lockstep.studies.budget import thread_environment
from lockstep.studies.jobs import Driver, Event, Exit, Failure, Job, Limits, Outcome
from lockstep.studies.ray_pool import RayPool
from lockstep.studies.schedule import Place, Scheduler, Settings
from lockstep.studies.study import Study, sweep
from tests.unit.studies import roots

ray = pytest.importorskip("ray")

# Ray keeps sockets and log files open until its process ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine with room for two jobs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture
def pool(cluster: None) -> Iterator[RayPool]:
    made = RayPool(thread_environment(1) | {"COLOUR": "green"})
    yield made
    made.stop(grace=0.0)
    made.close()


def job(script: str, folder: Path, name: str = "one", cost: float = 1.0) -> Job:
    log = folder / f"{name}.log"
    return Job(name=name, command=("/bin/sh", "-c", script), log=log, cost=cost)


def end_of(pool: RayPool, seconds: float = 30.0) -> Exit:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for exit in pool.wait(1.0):
            return exit
    raise AssertionError(f"no job ended within {seconds:g} seconds")


def said(log: Path, text: str) -> str:
    for _ in range(1500):
        if log.exists() and text in log.read_text():
            return log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{log} does not say {text!r}")


def gone(pid: int) -> bool:
    for _ in range(150):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_a_job_runs_with_its_environment_log_and_exit_code(pool: RayPool, tmp_path: Path):
    pool.start(job('echo "$COLOUR $OMP_NUM_THREADS"; exit 7', tmp_path))
    exit = end_of(pool)
    assert (exit.job.name, exit.code) == ("one", 7)
    assert (tmp_path / "one.log").read_text() == "green 1\n"


def test_the_cluster_says_how_many_jobs_there_is_room_for(pool: RayPool):
    assert pool.slots == 2
    assert RayPool({}, asked=1).slots == 1
    with pytest.raises(BadInput, match="has no 3 CPUs for a job; use fewer --threads"):
        RayPool({}, threads=3)
    with pytest.raises(BadInput, match="the Ray cluster has no GPU; use --device cpu"):
        RayPool({}, device="cuda")


def test_the_first_failure_ends_the_others(pool: RayPool, tmp_path: Path):
    polite = job("trap 'echo bye; exit 10' TERM; echo up; sleep 60 & wait", tmp_path, "polite")
    ready = f"while ! grep -q up {tmp_path}/polite.log; do sleep 0.05; done; exit 3"
    events: list[Event] = []

    def judge(exit: Exit, slots: int) -> Failure | None:
        if exit.code == 0:
            return None
        return Failure(name=exit.job.name, code=exit.code, log=exit.job.log, why="failed")

    driver = Driver(
        [polite, job(ready, tmp_path, "bad"), job("exit 0", tmp_path, "later", cost=0.5)],
        pool,
        limits=Limits(slots=2),
        judge=judge,
        on_event=events.append,
    )
    outcome = driver.go(lambda: False)
    failed = next(event for event in events if event.kind == "failed")
    assert outcome.failure is not None
    assert (outcome.failure.name, outcome.failure.code) == ("bad", 3)
    assert failed.job.name == "bad"
    assert (tmp_path / "polite.log").read_text() == "up\nbye\n"
    assert "later" not in [event.job.name for event in events]


def test_a_job_whose_ray_worker_is_killed_is_told_as_lost_and_ends_itself(
    pool: RayPool, tmp_path: Path, study_pack
):
    """The job is a pack in training, which sees that the process that started it is gone."""
    order, log = study_pack
    command = (sys.executable, "-m", worker.__name__, str(order))
    pool.start(Job(name="pack", command=command, log=log))
    said(log, "checkpoint at step 0")
    child = next(
        p for p in psutil.process_iter(["cmdline"]) if str(order) in (p.info["cmdline"] or [])
    )
    os.kill(child.ppid(), signal.SIGKILL)
    exit = end_of(pool)
    assert exit.code is None
    assert exit.note
    assert gone(child.pid)
    assert "stopped; it goes on when the study does" in log.read_text()


@pytest.fixture
def study_pack(tmp_path: Path) -> tuple[Path, Path]:
    """The order to train a pack for very long, and its log."""
    study = roots.tiny_study()
    with Scheduler(study, tmp_path / "root", Settings()) as scheduler:
        (pack, *_) = scheduler.work().packs
    longer = replace(pack.config, total_steps=12 * 50_000)
    order = worker.Order(root=tmp_path / "root", name=pack.name, config=longer)
    order.write(tmp_path / "order.json")
    return tmp_path / "order.json", tmp_path / "pack.log"


@pytest.mark.slow
def test_a_study_is_trained_by_two_workers_although_one_is_killed(pool: RayPool, tmp_path: Path):
    study, root = longer_study(), tmp_path / "root"
    events: list[Event] = []
    killed: list[int] = []

    def watch(event: Event) -> None:
        events.append(event)

    def kill_one() -> bool:
        """Asked every moment: kills a Ray worker once its pack has learned for a while."""
        begun = [log for log in root.rglob("*.log") if "checkpoint at step 0" in log.read_text()]
        if begun and not killed:
            for process in psutil.process_iter(["cmdline"]):
                if str(begun[0].with_suffix(".json")) in (process.info["cmdline"] or []):
                    killed.append(process.ppid())
                    os.kill(killed[0], signal.SIGKILL)
        return False

    with Scheduler(study, root, Settings(device="cpu")) as scheduler:
        place = Place(pool=pool, limits=Limits(slots=pool.slots))
        outcome = scheduler.run(scheduler.work(), place, on_event=watch, stopped=kill_one)
    assert outcome == Outcome()
    assert killed
    again = [event for event in events if event.kind == "again"]
    assert len(again) == 1
    assert "its machine was lost" in again[0].text
    assert max(event.running for event in events) == 2
    assert sorted(store.filed(root)) == sorted(study.distinct())
    history = [
        event["event"]
        for run in store.runs_in(root).iterdir()
        for event in read_json(run / "manifest.json")["history"]
    ]
    assert sorted(history) == ["resume", "start", "start"]


def longer_study() -> Study:
    series = {f"K={n}": roots.tiny_config(150, n_users=n) for n in (4, 5)}
    points = sweep("band", series, seeds=(1, 2), axis="world.bandwidth_mhz", values=(30.0, 50.0))
    shown = roots.figure("band", "bars", points, (roots.ENERGY,))
    return Study(name="tiny", figures=(shown,))
