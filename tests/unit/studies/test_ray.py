"""Jobs in a real Ray cluster, which nearly all tests of this file share."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from lockstep.cli import main
from lockstep.errors import BadInput
from lockstep.run.rundir import read_json
from lockstep.studies import budget, store, worker
from lockstep.studies.budget import thread_environment
from lockstep.studies.catalogue import load
from lockstep.studies.jobs import Driver, Event, Exit, Failure, Job, Limits, Outcome
from lockstep.studies.ray_pool import RayCluster, RayPool
from lockstep.studies.schedule import Place, Scheduler, Settings
from lockstep.studies.study import Study, sweep
from tests.integration.test_study import logs, tiny, until
from tests.unit.studies import roots

ray = pytest.importorskip("ray")

# Ray keeps sockets and log files open until its process ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


MEMORY = 4_000_000_000
"""Bytes that the cluster may give to jobs."""


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A cluster of one machine with room for two jobs; this process is not in it."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    has = {"num_cpus": 2, "num_gpus": 0, "memory": MEMORY, "object_store_memory": 100_000_000}
    made = Cluster(initialize_head=True, head_node_args=has | {"include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture
def more(head: Any) -> Iterator[Any]:
    """Adds a machine to the cluster until the end of a test."""
    added: list[Any] = []

    def add(**has: int) -> None:
        added.append(head.add_node(object_store_memory=100_000_000, memory=MEMORY, **has))
        head.wait_for_nodes()

    yield add
    for node in added:
        head.remove_node(node)


@pytest.fixture
def cluster(head: Any) -> Iterator[RayCluster]:
    with RayCluster(head.address) as joined:
        yield joined


@pytest.fixture
def pool(cluster: RayCluster) -> Iterator[RayPool]:
    made = RayPool(thread_environment(1) | {"COLOUR": "green"}, cluster)
    yield made
    made.stop(grace=0.0)


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


def test_the_cluster_says_how_many_jobs_there_is_room_for(cluster: RayCluster):
    assert RayPool({}, cluster).slots == 2
    assert RayPool({}, cluster, asked=1).slots == 1
    with pytest.raises(BadInput, match="has no machine with 3 CPUs for a job; use fewer --threads"):
        RayPool({}, cluster, threads=3)
    with pytest.raises(BadInput, match="the Ray cluster has no GPU; use --device cpu"):
        RayPool({}, cluster, device="cuda")


def test_a_job_has_room_on_one_machine_or_none(cluster: RayCluster, more: Any):
    more(num_cpus=3, num_gpus=0)
    assert [RayPool({}, cluster, threads=n).slots for n in (1, 2, 3)] == [5, 2, 1]
    with pytest.raises(BadInput, match="has no machine with 4 CPUs"):
        RayPool({}, cluster, threads=4)


def test_jobs_wait_for_memory_and_none_for_ever(pool: RayPool, tmp_path: Path):
    """Two of three gigabytes do not go on at once, where there are four; one of a hundred does."""
    wrote = diary(pool, tmp_path, {"a": 3e9, "b": 3e9, "c": 100e9})
    assert wrote[::2] == wrote[1::2]
    assert (pool.slots, pool.memory) == (2, MEMORY)


def test_jobs_on_gpus_share_them_by_their_memory(
    cluster: RayCluster, more: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A GPU that Ray believes in is enough for that; what is free there it cannot say."""
    monkeypatch.setattr(RayPool, "_gpu_free", lambda pool: 60e9)
    more(num_cpus=2, num_gpus=1)
    pool = RayPool({}, cluster, device="cuda")
    assert (pool.slots, pool.memory) == (2, 60e9 - budget.GPU_RESERVE)
    wrote = diary(pool, tmp_path, {"a": 40e9, "b": 100e9})
    assert wrote[::2] == wrote[1::2]
    for one, other in (("c", "d"), ("d", "c")):  # each ends once the other has begun
        script = f"touch {one}; while ! test -e {other}; do sleep 0.05; done"
        waiting = job(f"cd {tmp_path}; {script}", tmp_path, one)
        pool.start(replace(waiting, memory=40e9 if one == "c" else 1e9))
    assert [end_of(pool).code for _ in range(2)] == [0, 0]


def diary(pool: RayPool, folder: Path, memory: dict[str, float]) -> list[str]:
    """The names of jobs in the order in which they began and ended, each for a while."""
    book = folder / "diary"
    for name, need in memory.items():
        script = f"echo {name} >> {book}; sleep 0.5; echo {name} >> {book}"
        pool.start(replace(job(script, folder, name), memory=need))
    assert [end_of(pool).code for _ in memory] == [0] * len(memory)
    return book.read_text().split()


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


def test_a_study_is_trained_in_a_cluster_of_its_own_which_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    root, file = tmp_path / "root", small(tmp_path)
    others = rays()
    assert main([*verb(file, root), "--max-members", "4"]) == 0
    said = capsys.readouterr().out
    assert "0 trials done, 4 to train in 1 packs" in said
    assert said.endswith("every trial has a result\n")
    assert sorted(store.filed(root)) == sorted(load(file).distinct())
    assert not ray.is_initialized()
    assert rays() == others


def rays() -> set[int]:
    """The processes of Ray that this one has started."""
    own = psutil.Process().children(recursive=True)
    return {process.pid for process in own if process.name() in ("raylet", "gcs_server")}


def small(folder: Path, updates: int = 2) -> str:
    """A file that declares four trials, which may be one pack."""
    file = Path(tiny(folder, updates))
    file.write_text(file.read_text().replace("for n in (4, 5)", "for n in (4,)"))
    return str(file)


def verb(file: str, root: Path, *flags: str) -> list[str]:
    return ["study", "run", file, "--root", str(root), "--backend", "ray", *flags]


def longer_study() -> Study:
    series = {f"K={n}": roots.tiny_config(150, n_users=n) for n in (4, 5)}
    points = sweep("band", series, seeds=(1, 2), axis="world.bandwidth_mhz", values=(30.0, 50.0))
    shown = roots.figure("band", "bars", points, (roots.ENERGY,))
    return Study(name="tiny", figures=(shown,))


def test_a_study_joins_a_cluster_and_is_packed_for_what_it_has(
    head: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", small(tmp_path)
    assert main(verb(file, root, "--ray-address", head.address)) == 0
    said = capsys.readouterr().out
    assert said.startswith("device: cpu (auto: no GPU in the Ray cluster)\n")
    assert "0 trials done, 4 to train in 2 packs" in said
    assert "up to 2 packs at once" in said
    assert said.endswith("every trial has a result\n")
    assert sorted(store.filed(root)) == sorted(load(file).distinct())
    assert not ray.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU of the cluster must be none")
def test_a_gpu_in_the_cluster_is_taken_and_refused_if_it_is_none(
    head: Any, more: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    more(num_cpus=1, num_gpus=1)
    root, file = tmp_path / "root", small(tmp_path)
    assert main(verb(file, root, "--ray-address", head.address)) == 2
    said = capsys.readouterr()
    assert "device: cuda (auto: there is one in the Ray cluster)\n" in said.out
    assert said.err.startswith("lockstep study: the GPU's free memory could not be read: ")
    assert said.err.endswith("; use --device cpu\n")
    assert said.err.count("\n") == 1
    assert not root.exists()
    assert not ray.is_initialized()


def test_a_scheduler_in_a_cluster_that_is_told_to_stop_does(head: Any, tmp_path: Path):
    """Ray has a handler of its own for that signal, which ends a process at once."""
    root, file = tmp_path / "root", small(tmp_path, updates=3000)
    words = verb(file, root, "--ray-address", head.address, "--max-members", "4")
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        until(root, "checkpoint at step 0", 1, process)
        process.terminate()
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "stopped before the end; the same command goes on from here" in out
    assert "stopped; it goes on when the study does" in logs(root)


def test_where_there_is_no_cluster_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", small(tmp_path)
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert main(verb(file, root, "--ray-address", address)) == 2
    said = capsys.readouterr().err
    assert f"there is no Ray cluster to join at {address} (Connection refused); start one" in said
    assert not root.exists()
    assert main(verb(file, root, "--ray-address", "rubbish")) == 2
    assert "ray_address must be auto or HOST:PORT, got rubbish" in capsys.readouterr().err
    assert not root.exists()


def test_more_threads_than_the_cluster_has_are_refused_before_a_root_is_made(
    head: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", small(tmp_path)
    words = verb(file, root, "--ray-address", head.address, "--threads", "99")
    assert main(words) == 2
    assert "the Ray cluster has no machine with 99 CPUs" in capsys.readouterr().err
    assert not root.exists()
    assert not ray.is_initialized()


def test_without_ray_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "ray", None)
    root, file = tmp_path / "root", small(tmp_path)
    assert main(verb(file, root)) == 2
    assert "ray is not installed; run: pip install 'lockstep-rl[ray]'" in capsys.readouterr().err
    assert not root.exists()


def test_a_timeout_is_refused_since_a_job_may_wait_for_its_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", small(tmp_path)
    assert main(verb(file, root, "--timeout", "9")) == 2
    assert "timeout does not go with --backend ray" in capsys.readouterr().err
    assert not root.exists()
