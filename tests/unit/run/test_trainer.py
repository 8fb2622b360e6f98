from dataclasses import replace

import pytest
import torch

from lockstep.errors import BadInput
from lockstep.run.checkpoint import state_digest
from lockstep.run.trainer import Trainer, arithmetic
from tests import tiny


class Heard:
    """A pulse that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def enter(self, phase: str) -> None:
        self.told.append(phase)

    def step(self) -> None:
        self.told.append("step")


def test_an_update_tells_its_phases_and_every_step() -> None:
    pulse = Heard()
    trainer = Trainer(tiny.config(), pulse=pulse)
    trainer.update()
    assert pulse.told == ["collect", *["step"] * tiny.LEARNER["steps"], "learn"]


def test_seconds_are_those_of_the_last_update_and_its_parts_fit_into_collecting() -> None:
    trainer = Trainer(tiny.config())
    assert trainer.seconds == {}
    for _ in range(2):
        trainer.update()
    seconds = trainer.seconds
    assert set(seconds) == {"env", "act", "value", "collect", "learn"}
    assert all(spent > 0 for spent in seconds.values())
    parts = seconds["env"] + seconds["act"] + seconds["value"]
    assert 0.5 * seconds["collect"] < parts < seconds["collect"]


def test_a_teacher_must_be_a_heuristic_of_the_world() -> None:
    with pytest.raises(BadInput, match="called 'gredy'; did you mean 'greedy'"):
        Trainer(tiny.config(teacher="gredy", lessons=1))


def test_the_teacher_decides_in_the_first_updates_alone() -> None:
    trainer = Trainer(tiny.config(teacher="greedy", lessons=2))
    scripted = []
    for _ in range(4):
        trainer.update()
        scripted.append(trainer.rollout.scripted)
    assert scripted == [True, True, False, False]


def test_a_learner_without_a_critic_spends_next_to_nothing_on_values() -> None:
    config = tiny.config()
    from lockstep.learners.config import RandomizedConfig

    trainer = Trainer(replace(config, learner=RandomizedConfig(lanes=2, steps=6)))
    trainer.update()
    assert trainer.seconds["value"] < trainer.seconds["act"]


def test_episodes_are_told_beside_the_worlds_metrics() -> None:
    trainer = Trainer(tiny.config())
    found = trainer.collect()
    assert found["episode/finished"].tolist() == [2, 2]  # two lanes of one episode each
    assert found["episode/length_mean"].tolist() == [6, 6]
    for role in ("mu", "uav"):
        rewards = trainer.rollout.roles[role].reward.double().mean(dim=-1).sum(dim=0).view(2, 2)
        torch.testing.assert_close(found[f"episode/{role}/return_mean"], rewards.mean(dim=1))
        assert {key.split("_")[-1] for key in found if key.startswith(f"episode/{role}/")} == {
            "mean",
            "p10",
            "p50",
            "p90",
            "p99",
        }


def test_a_saved_trainer_goes_on_bit_equally_with_its_episodes() -> None:
    straight, resumed = Trainer(tiny.config()), Trainer(tiny.config())
    straight.update()
    saved = straight.state_dict()
    assert set(saved) == {"learner", "collector", "episodes"}
    resumed.load_state_dict(saved, updates=1)
    one, other = straight.update(), resumed.update()
    assert list(one) == list(other)
    assert all(torch.equal(x, other[name]) for name, x in one.items())
    assert state_digest(straight.state_dict()) == state_digest(resumed.state_dict())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_only_tf32_may_round_products_and_convolutions_and_all_is_put_back(precision: str) -> None:
    def switches() -> tuple[str, bool, int]:
        cudnn = torch.backends.cudnn.allow_tf32
        return torch.get_float32_matmul_precision(), cudnn, torch.get_num_threads()

    config = tiny.config()
    config = replace(config, learner=replace(config.learner, precision=precision))
    before = switches()
    with arithmetic(config):
        rounds = precision == "tf32"
        assert switches() == ("high" if rounds else "highest", rounds, 1)
    assert switches() == before


def test_minibatches_are_learned_from_in_as_many_parts_as_asked() -> None:
    whole, parts = Trainer(tiny.config()), Trainer(tiny.config(accumulate=2))
    one, other = whole.update(), parts.update()
    for name in ("train/value_loss", "train/mu/policy_loss", "train/mu/grad_norm"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match=r"accumulate \(3\) must divide the lanes of a minibatch"):
        Trainer(tiny.config(accumulate=3))
