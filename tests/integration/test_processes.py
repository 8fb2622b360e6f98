"""One run in two processes on the CPU: the numbers of one process, and one end for both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.core.company import Company
from lockstep.errors import BadInput
from lockstep.run import checkpoint, loop, shares
from lockstep.run.record import Run
from tests import tiny

FLAGS = [*tiny.flags(3), "--seeds=2", "--learner.lanes=4", "--learner.minibatches=2"]
TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def lockstep(*args: str, processes: int, root: Path) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += [f"--nproc-per-node={processes}", "-m", "lockstep", *args]
    return subprocess.run(
        start,
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def state(run: Run) -> dict[str, torch.Tensor]:
    step = checkpoint.newest(run.dir.checkpoints)
    assert step is not None
    return checkpoint.load(run.dir.checkpoints, step)[1]


def test_two_processes_learn_what_one_does(tmp_path: Path):
    runs = []
    for processes in (1, 2):
        name = f"--name=of-{processes}"
        done = lockstep("train", "uav-mec", *FLAGS, name, processes=processes, root=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("update 1/") == 1  # the others are silent
        runs.append(Run.open(tmp_path / "runs" / f"of-{processes}"))
    one, two = runs
    torch.testing.assert_close(state(two), state(one), **TIGHT, equal_nan=True)
    assert list(two.metrics) == list(one.metrics)
    for key in one.metrics:
        if "/" in key:
            found, wanted = torch.tensor(two.curve(key)), torch.tensor(one.curve(key))
            torch.testing.assert_close(found, wanted, **TIGHT, equal_nan=True, msg=key)
    assert two.finished


def test_a_process_that_fails_ends_all_with_one_message(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    from lockstep.errors import AuditFailure\n"
        "    from lockstep.learners import ppo\n"
        "    def broken(*args, **kwargs):\n"
        "        raise AuditFailure('a row was exchanged')\n"
        "    ppo.audit = broken\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        done = lockstep("train", "uav-mec", *FLAGS, "--name=x", processes=2, root=tmp_path)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("lockstep train:")]
    assert said == ["lockstep train: process 1 of 2 ended the run: a row was exchanged"]
    assert not Run.open(tmp_path / "runs" / "x").finished


def test_lanes_that_cannot_be_shared_are_refused_before_anything_is_made(tmp_path: Path):
    three = Company()
    three.size = 3
    with pytest.raises(BadInput, match=r"learner.lanes \(2\) must be divisible by .* \(3\)"):
        shares.check(tiny.config(), three)
    with pytest.raises(BadInput, match="number of processes"):
        loop.train(tiny.config(), tmp_path / "run", company=three)
    assert not (tmp_path / "run").exists()


def test_a_run_of_one_process_is_resumed_by_two(tmp_path: Path):
    whole = lockstep("train", "uav-mec", *FLAGS, "--name=whole", processes=1, root=tmp_path)
    assert whole.returncode == 0, whole.stderr
    cut = ["--name=cut", "--checkpoint-every=1", "--keep-checkpoints=9"]
    made = lockstep("train", "uav-mec", *FLAGS, *cut, processes=1, root=tmp_path)
    assert made.returncode == 0, made.stderr
    run = Run.open(tmp_path / "runs" / "cut")
    run.dir.summary.unlink()
    middle = checkpoint.steps(run.dir.checkpoints)[1]
    older = str(run.dir.checkpoints / f"{middle}.pt")
    done = lockstep("resume", older, "--set-aside-newer", processes=2, root=tmp_path)
    assert done.returncode == 0, done.stderr
    whole_run = Run.open(tmp_path / "runs" / "whole")
    torch.testing.assert_close(state(run), state(whole_run), **TIGHT, equal_nan=True)
    again = lockstep("resume", str(run.folder), processes=2, root=tmp_path)
    assert again.returncode == 0, again.stderr
