"""Jobs of Slurm: what would be submitted, and real jobs through submitit's local cluster."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.cli import main
from lockstep.errors import BadInput
from lockstep.studies import worker
from lockstep.studies.budget import thread_environment
from lockstep.studies.jobs import Exit, Job
from lockstep.studies.slurm_pool import SlurmPool
from tests.integration.test_study import tiny

pytest.importorskip("submitit")

# submitit leaves the processes of its local cluster to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SlurmPool]:
    made = SlurmPool({"COLOUR": "green"}, folder=tmp_path / "slurm", cluster="local")
    yield made
    made.stop(grace=5.0)


def job(script: str, folder: Path, name: str = "one") -> Job:
    return Job(name=name, command=("/bin/sh", "-c", script), log=folder / f"{name}.log")


def end_of(pool: SlurmPool, seconds: float = 60.0) -> Exit:
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


def test_a_script_asks_for_what_a_job_needs_and_carries_it_out(tmp_path: Path):
    pool = SlurmPool(
        thread_environment(4),
        folder=tmp_path / "slurm",
        threads=4,
        gpu=True,
        minutes=30,
        partition="night",
    )
    command = (sys.executable, "-m", worker.__name__, "an order.json")
    script = pool.script(Job(name="uav-1", command=command, log=tmp_path / "uav-1.log"))
    flags = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    for flag in (
        *("job-name=uav-1", "partition=night", "time=30", "cpus-per-task=4"),
        *("gpus-per-node=1", "nodes=1", "ntasks-per-node=1", "signal=USR2@120"),
    ):
        assert f"#SBATCH --{flag}" in flags
    assert "env OMP_NUM_THREADS=4 MKL_NUM_THREADS=4" in script
    assert f"{sys.executable} -m lockstep.studies.worker 'an order.json'" in script


def test_what_is_not_asked_for_is_left_to_the_cluster(tmp_path: Path):
    script = SlurmPool({}, folder=tmp_path).script(job("exit 0", tmp_path))
    assert "partition" not in script
    assert "gpus" not in script


def test_without_slurm_nothing_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"there is no Slurm here \(sbatch, srun, sacct not found\)"):
        SlurmPool({}, folder=tmp_path).check()


def test_a_job_without_time_for_a_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"slurm_minutes must be more than 2, .* got 2"):
        SlurmPool({}, folder=tmp_path, minutes=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--slurm-minutes", "2", "--device", "cpu"), "slurm_minutes must be more than 2"),
        (("--device", "cpu"), "there is no Slurm here (sbatch, srun, sacct not found)"),
        ((), "device must be cpu or cuda with --backend slurm"),
        (("--device", "auto", "--dry-run"), "device must be cpu or cuda with --backend slurm"),
    ],
)
def test_what_slurm_cannot_do_is_refused_before_a_root_is_made(
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*verb(tmp_path), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_without_submitit_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*verb(tmp_path), "--device", "cpu"]) == 2
    assert "pip install 'lockstep-rl[slurm]'" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(("device", "packs"), [("cpu", 4), ("cuda", 2)])
def test_a_dry_run_packs_and_asks_for_what_the_device_needs(
    device: str, packs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*verb(tmp_path), "--device", device, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("#!/bin/bash") == packs
    assert said.count("#SBATCH --gpus-per-node=1") == (packs if device == "cuda" else 0)


def verb(folder: Path) -> list[str]:
    file, root = tiny(folder, updates=2), str(folder / "root")
    return ["study", "run", file, "--root", root, "--backend", "slurm"]


def test_a_job_runs_with_its_environment_log_and_exit_code(pool: SlurmPool, tmp_path: Path):
    pool.start(job('echo "$COLOUR"; exit 7', tmp_path))
    exit = end_of(pool)
    assert (exit.job.name, exit.code) == ("one", 7)
    assert (tmp_path / "one.log").read_text() == "green\n"


def test_a_job_that_stopped_because_its_time_was_up_can_be_handed_in_again(
    pool: SlurmPool, tmp_path: Path
):
    pool.start(job(f"exit {worker.STOPPED}", tmp_path))
    exit = end_of(pool)
    assert (exit.code, exit.paused) == (worker.STOPPED, True)
    assert exit.note == "its 60 minutes were over, or Slurm needed the machine"


def test_notice_that_time_is_nearly_over_is_left_to_the_command(pool: SlurmPool, tmp_path: Path):
    """Every process of the job gets it, as here; the command alone heeds it."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR2, lambda *_: (print('noticed'), sys.exit(10)))\n"
        "print(os.getpid(), os.getppid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "one.log"
    pool.start(Job(name="one", command=(sys.executable, "-c", code), log=log))
    command, attendant = map(int, said(log, "\n").split())
    for process in (attendant, command):
        os.kill(process, signal.SIGUSR2)
    exit = end_of(pool)
    assert exit.paused
    assert "noticed" in log.read_text()


def test_stopping_cancels_the_jobs(pool: SlurmPool, tmp_path: Path):
    pool.start(job("echo $$; exec sleep 61", tmp_path))
    child = int(said(tmp_path / "one.log", "\n"))
    (exit,) = pool.stop(grace=20.0)
    assert exit.code != 0
    for _ in range(200):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {child} is still there")


@pytest.mark.slow  # submitit waits for a result that a file system may show late
def test_a_job_that_is_killed_from_outside_is_lost(pool: SlurmPool, tmp_path: Path):
    pool.start(job("echo $PPID; exec sleep 62", tmp_path))
    attendant = int(said(tmp_path / "one.log", "\n"))
    os.kill(attendant, signal.SIGKILL)
    exit = end_of(pool)
    assert exit.code != 0
    assert exit.note
