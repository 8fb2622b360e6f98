"""How many processes, and how many threads each."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.errors import BadInput
from lockstep.studies import budget
from lockstep.studies.budget import GB, cpu_slots, gpu_need

PLENTY = 1000 * GB


def test_packs_that_compile_at_once_share_the_cores_twice_over(monkeypatch: pytest.MonkeyPatch):
    """A compiler waits for its neighbours, and one pack compiles while others train."""
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    monkeypatch.delenv(name, raising=False)
    assert budget.compiler_environment(slots=12, cores=16) == {name: "2"}
    assert budget.compiler_environment(slots=1, cores=2) == {name: "4"}
    assert budget.compiler_environment(slots=64, cores=16) == {name: "1"}
    monkeypatch.setenv(name, "7")
    assert budget.compiler_environment(slots=12, cores=16) == {name: "7"}


def test_as_many_processes_as_asked_if_there_is_room():
    assert cpu_slots(3, threads=1, cores=16, available=PLENTY) == 3


def test_cores_bound_the_processes_and_threads_share_them():
    assert cpu_slots(100, threads=1, cores=16, available=PLENTY) == 16
    assert cpu_slots(100, threads=4, cores=16, available=PLENTY) == 4


def test_memory_bounds_the_processes_at_eight_tenths_of_a_gigabyte_above_four():
    assert cpu_slots(100, threads=1, cores=64, available=12 * GB) == 10
    assert cpu_slots(100, threads=1, cores=64, available=4.9 * GB) == 1


def test_zero_asks_for_as_many_as_there_is_room_for():
    assert cpu_slots(0, threads=1, cores=16, available=PLENTY) == 16
    assert cpu_slots(0, threads=2, cores=16, available=8 * GB) == 5


def test_one_process_is_always_allowed():
    assert cpu_slots(5, threads=8, cores=2, available=1 * GB) == 1


def test_the_need_of_a_pack_is_a_little_more_than_was_measured():
    peak = 12.7 * GB  # 32 members of 70 agents, in tf32
    assert peak < gpu_need(agents=70 * 32) < 1.3 * peak


def test_members_with_a_replay_need_gigabytes_wherever_they_train():
    for device in ("cpu", "cuda"):
        plain, large = (budget.need(device, agents=70, replays=n) for n in (0, 3))
        assert plain < 1.1 * GB
        assert large == plain + 9 * GB


def test_processes_on_a_gpu_are_bounded_by_cores_and_by_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(budget, "_available", lambda: PLENTY)
    for cores, asked, expected in ((4, 0, 4), (16, 2, 2), (64, 100, budget.GPU_PROCESSES)):
        monkeypatch.setattr(budget, "cores", lambda cores=cores: cores)
        assert budget.slots(asked, threads=1, device="cuda") == expected


def test_four_libraries_are_told_how_many_threads_to_take():
    assert budget.thread_environment(3) == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "NUMEXPR_NUM_THREADS": "3",
    }


def test_a_tenth_of_the_free_disk_is_left_alone(tmp_path: Path):
    free = shutil.disk_usage(tmp_path).free
    assert budget.disk_room(tmp_path) == pytest.approx(0.9 * free, rel=0.01)


def test_this_machine_has_room_for_one_process():
    assert 1 <= budget.slots(1, threads=1, device="cpu") <= budget.cores()


def test_memory_is_shared_job_by_job_and_processes_on_a_gpu_are_twelve_at_most(monkeypatch):
    monkeypatch.setattr(budget, "cores", lambda: 64)
    monkeypatch.setattr(budget.psutil, "virtual_memory", lambda: SimpleNamespace(available=PLENTY))
    monkeypatch.setattr(budget, "gpu_free", lambda: 80 * GB)
    assert budget.slots(0, threads=1, device="cuda") == budget.GPU_PROCESSES
    assert budget.slots(0, threads=1, device="cpu") == 64
    assert budget.room("cuda") == 80 * GB - budget.GPU_RESERVE
    assert budget.room("cpu") == PLENTY - budget.RESERVE


def test_a_gpu_that_is_not_there_is_said_to_be_unreadable():
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with pytest.raises(BadInput, match=r"free memory could not be read: .*; use --device cpu"):
        budget.gpu_free(hidden)
