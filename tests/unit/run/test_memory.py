from dataclasses import replace

import pytest
import torch

from lockstep.learners.config import PPOConfig, RandomizedConfig
from lockstep.run.memory import ladder, ran_out, rung
from tests import tiny


def rungs(lanes: int, minibatches: int, *, fresh: bool) -> list[tuple[int, int, int]]:
    config = tiny.config()
    assert isinstance(config.learner, PPOConfig)
    learner = replace(config.learner, lanes=lanes, steps=10, minibatches=minibatches)
    config = replace(config, learner=learner, total_steps=1000)
    found = [rung(below) for below in ladder(config, fresh=fresh)]
    return [(r["accumulate"], r["lanes"], r["steps"]) for r in found]


def test_minibatches_are_split_first_and_lanes_are_halved_only_while_nothing_is_learned():
    assert rungs(8, 2, fresh=False) == [(2, 8, 10), (4, 8, 10)]
    assert rungs(8, 2, fresh=True) == [(2, 8, 10), (4, 8, 10), (2, 4, 20), (1, 2, 40)]
    assert rungs(5, 1, fresh=True) == [(5, 5, 10)]


def test_every_rung_learns_from_as_many_samples():
    for below in ladder(replace(tiny.config(), total_steps=1000), fresh=True):
        assert below.steps_per_update == tiny.STEPS_PER_UPDATE


def test_a_learner_without_gradients_only_has_lanes_to_give():
    config = replace(tiny.config(), learner=RandomizedConfig(lanes=4, steps=6), total_steps=1000)
    assert [below.learner.lanes for below in ladder(config, fresh=True)] == [2, 1]
    assert list(ladder(config, fresh=False)) == []


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_only_a_lack_of_memory_counts(error: Exception, memory: bool):
    assert ran_out(error) is memory


def test_what_torch_says_on_the_cpu_counts():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**55)
    assert ran_out(refused.value)
