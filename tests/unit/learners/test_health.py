import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.actions import Observation
from lockstep.learners.config import PPOConfig
from lockstep.learners.health import Seen, Tally
from lockstep.learners.probe import EVERY
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests.helpers import assemble, train
from tests.toys import Masked, Match, Pool, Recall

CONFIG = PPOConfig(hidden=8, lanes=4, steps=6, epochs=3, lr_actor=2e-2, lr_critic=1e-2)
SCENE = partial(registry.build, replace(SCENARIOS["demo"], n_users=5, n_uavs=2, n_slots=4))


def updated(make: Any, config: PPOConfig = CONFIG, *, updates: int = 2) -> Any:
    """Learner, rollout and the statistics of the last update, for two members."""
    learner, collector, rollout = assemble(make, config, [3, 5], dtype=torch.float64)
    return learner, rollout, train(learner, collector, rollout, updates)[-1]


def by_member(x: Tensor) -> list[Tensor]:
    """`[T, L, A]` as the numbers of each member."""
    return [rows.flatten() for rows in x.unflatten(1, (2, -1)).unbind(dim=1)]


def test_moments_are_of_what_was_collected_and_not_of_what_was_normalised() -> None:
    config = replace(CONFIG, reward_norm="running")
    _, rollout, stats = updated(partial(Match, agents=3), config)
    rows = rollout.roles["player"]
    for member, (reward, value) in enumerate(
        zip(by_member(rows.reward), by_member(rows.value), strict=True)
    ):
        assert stats["train/player/reward_mean"][member].item() == pytest.approx(
            reward.mean().item()
        )
        for name, x in (("reward", reward), ("value", value)):
            expected = x.std(correction=0).item()
            assert stats[f"train/player/{name}_std"][member].item() == pytest.approx(expected)
        assert stats["train/player/value_mean"][member].item() == pytest.approx(value.mean().item())


def test_returns_and_advantages_are_those_before_standardising() -> None:
    config = replace(CONFIG, gae_lambda=1.0)
    _, rollout, stats = updated(partial(Match, horizon=1), config)  # return = reward
    rows = rollout.roles["player"]
    for member, (reward, value) in enumerate(
        zip(by_member(rows.reward), by_member(rows.value), strict=True)
    ):
        expected = {
            "return_mean": reward.mean(),
            "return_std": reward.std(correction=0),
            "advantage_std": (reward - value).std(correction=0),
        }
        for name, x in expected.items():
            assert stats[f"train/player/{name}"][member].item() == pytest.approx(x.item()), name


def judged(log_ratio: list[float], advantage: list[float], weight: list[float]) -> Any:
    learner, _, rollout = assemble(Match, replace(CONFIG, lanes=1, steps=len(weight)), [0])
    rollout.written = rollout.steps
    role = learner._batch(rollout).roles["player"]
    shape = role.decided.shape

    def rows(x: list[float]) -> Tensor:
        return torch.tensor(x, dtype=torch.float64).view(shape)

    w = rows(weight)
    role = replace(role, decided=w, advantage=rows(advantage) * w, n_decided=w.sum().view(1))
    seen = Seen(means={"x": torch.zeros(1)})
    moved = torch.where(w > 0, rows(log_ratio), 0.0)
    seen.judge("player", role, moved, moved.exp())
    tally = Tally()
    tally.add(seen, torch.ones(1, dtype=torch.bool))
    return {name.split("/")[-1]: x.item() for name, x in tally.stats().items()}


def test_estimators_of_a_move_are_their_definitions_and_skip_who_only_waited() -> None:
    moved, advantage = [0.3, -0.2, 0.05, 7.0], [1.0, -1.0, 0.5, 9.0]
    found = judged(moved, advantage, [1.0, 1.0, 1.0, 0.0])
    d, a = torch.tensor(moved[:3]).double(), torch.tensor(advantage[:3]).double()
    assert found["ratio_mean"] == pytest.approx(d.exp().mean().item())
    assert found["ratio_max"] == pytest.approx(math.exp(0.3))
    assert found["effective_share"] == pytest.approx(1 / (d.exp() ** 2).mean().item())
    assert found["k1"] == pytest.approx(-d.mean().item())
    assert found["k2"] == pytest.approx((d**2).mean().item() / 2)
    expected = torch.corrcoef(torch.stack((d, a)))[0, 1].item()
    assert found["advantage_corr"] == pytest.approx(expected)


def test_a_ratio_below_one_everywhere_has_a_maximum_below_one() -> None:
    assert judged([-0.5, 0.0], [1.0, 1.0], [1.0, 0.0])["ratio_max"] == pytest.approx(math.exp(-0.5))


def test_before_any_step_ratios_are_one_and_correlate_with_nothing() -> None:
    stats = updated(Match, replace(CONFIG, epochs=1), updates=1)[2]
    for name, expected in {"ratio_mean": 1, "ratio_max": 1, "effective_share": 1}.items():
        assert stats[f"train/player/{name}"].tolist() == pytest.approx([expected] * 2)
    for name in ("k1", "k2", "advantage_corr"):
        assert stats[f"train/player/{name}"].tolist() == pytest.approx([0, 0], abs=1e-9)


def test_an_update_that_works_raises_what_had_a_positive_advantage() -> None:
    stats = updated(Match, replace(CONFIG, epochs=6), updates=1)[2]
    assert (stats["train/player/advantage_corr"] > 0.1).all()
    assert (stats["train/player/ratio_max"] > 1).all()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_choices_are_counted_over_every_row_of_the_rollout(minibatches: int) -> None:
    config = replace(CONFIG, minibatches=minibatches)
    _, rollout, stats = updated(partial(Masked, agents=2), config)
    legal = rollout.roles["player"].obs.legal["pick"].sum(dim=-1)  # [T, L, A]
    for member, K in enumerate(by_member(legal)):
        assert stats["train/player/choices"][member].item() == pytest.approx(
            K.double().mean().item()
        )
        forced = (K == 1).double().mean().item()
        assert forced > 0
        assert stats["train/player/forced_share"][member].item() == pytest.approx(forced)


def test_the_share_of_entropy_counts_rows_with_a_choice_and_is_nearly_one_at_first() -> None:
    config = replace(CONFIG, epochs=1, lr_actor=1e-9)
    _, rollout, stats = updated(partial(Masked, agents=2), config, updates=1)
    rows = rollout.roles["player"]
    K = rows.obs.legal["pick"].sum(dim=-1)
    for member, (entropy, k) in enumerate(zip(by_member(rows.entropy), by_member(K), strict=True)):
        share = (entropy[k > 1] / k[k > 1].log()).mean().item()
        assert stats["train/player/entropy_share"][member].item() == pytest.approx(share)
        assert 0.9 < share <= 1.0


def test_roles_report_what_their_heads_have_and_nothing_else() -> None:
    kinds = {
        "entropy_share": "choice",
        "choices": "choice",
        "forced_share": "choice",
        "concentration": "beta",
        "concentration_max": "beta",
        "std": "gaussian",
    }
    for make, changes, kind in (
        (Match, {}, "beta"),
        (Match, {"unit_head": "gaussian_sigmoid"}, "gaussian"),
        (Pool, {}, "choice"),
    ):
        stats = updated(make, replace(CONFIG, **changes), updates=1)[2]
        for name, of in kinds.items():
            assert (f"train/player/{name}" in stats) == (of == kind), (name, kind)


def test_concentration_is_alpha_plus_beta_and_std_the_first_one() -> None:
    still = replace(CONFIG, epochs=1, lr_actor=1e-12)
    learner, rollout, stats = updated(Match, still, updates=1)
    batch = learner._batch(rollout)
    law = learner._law("player", batch.roles["player"], batch).parts["number"]
    total = (law.alpha + law.beta).detach().flatten(1)
    for name, x in (("", total.mean(dim=1)), ("_max", total.amax(dim=1))):
        torch.testing.assert_close(
            stats[f"train/player/concentration{name}"], x, rtol=1e-6, atol=1e-6
        )
    stats = updated(Match, replace(still, unit_head="gaussian_clip"), updates=1)[2]
    assert stats["train/player/std"].tolist() == pytest.approx([0.5, 0.5], rel=1e-6)


def test_rates_and_stopped_epochs_are_told_by_member() -> None:
    learner, collector, rollout = assemble(Match, CONFIG, [3, 5])
    learner.optimizers["player"].lr[1] = 0.5
    stats = train(learner, collector, rollout, 1)[0]
    assert stats["train/lr_actor"].tolist() == pytest.approx([2e-2, 0.5])
    assert stats["train/lr_critic"].tolist() == pytest.approx([1e-2, 1e-2])
    assert stats["train/stopped_epochs"].tolist() == [0, 0]
    stopped = updated(Match, replace(CONFIG, kl_stop_minibatch=1e-9), updates=1)[2]
    assert stopped["train/stopped_epochs"].tolist() == [2, 2]


def shifts(config: PPOConfig, make: Any = Match, updates: int = EVERY + 3) -> Any:
    learner, collector, rollout = assemble(make, config, [3, 5])
    stats = train(learner, collector, rollout, updates)
    return learner, collector, rollout, [s.get("train/player/behaviour_shift") for s in stats]


@pytest.mark.parametrize(
    ("make", "changes"), [(Match, {}), (Masked, {}), (Recall, {"memory": "gru"})]
)
def test_behaviour_moves_are_told_from_the_second_look_on(make: Any, changes: Any) -> None:
    *_, found = shifts(replace(CONFIG, epochs=1, **changes), make)
    assert all(shift is None for shift in found[:EVERY])
    assert all((shift > 1e-4).all() and (shift < 3).all() for shift in found[EVERY:])
    assert torch.equal(found[EVERY], found[-1])  # told again until the next look


def test_a_policy_that_does_not_learn_does_not_move() -> None:
    *_, found = shifts(replace(CONFIG, epochs=1, lr_actor=1e-15))
    assert found[-1].tolist() == pytest.approx([0, 0], abs=1e-6)


def test_the_probe_is_saved_and_goes_on_bit_equally() -> None:
    config = replace(CONFIG, epochs=1)
    learner, collector, rollout, _ = shifts(config, updates=EVERY - 2)
    saved = learner.state_dict(), collector.state_dict()
    expected = train(learner, collector, rollout, 4)[-1]
    other, again, storage = assemble(Match, config, [3, 5])
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    got = train(other, again, storage, 4)[-1]
    assert torch.equal(
        expected["train/player/behaviour_shift"], got["train/player/behaviour_shift"]
    )


def test_the_probe_holds_rows_with_a_decision_where_there_are_some() -> None:
    class Rarely(Masked):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.spec = replace(self.spec, every_step=False)

        def observe(self, role: str) -> Observation:
            plain = super().observe(role)
            return replace(plain, acts=self.seen[..., 0] > 0.8)

    learner, *_ = updated(partial(Rarely, agents=3), updates=1)
    obs = learner.probe.state_dict()["player"]["obs"]
    assert obs["acts"].all()
    assert all(x.shape[:4] == (2, 1, 64, 1) for x in obs.values())
    assert obs["features/obs"].flatten(1).unique(dim=1).shape[1] > 64


def test_health_costs_no_pass_through_a_network_of_its_own() -> None:
    learner, collector, rollout = assemble(SCENE, CONFIG, [3])
    calls = []
    plain = learner._parameters

    def counting(role: str, obs: Observation, *rest: Any) -> Any:
        calls.append(obs.acts.numel())
        return plain(role, obs, *rest)

    learner._parameters = counting
    train(learner, collector, rollout, 1)  # the probe looks
    calls.clear()
    collector.collect(rollout)
    acting = len(calls)
    learner.update(rollout)
    assert len(calls) - acting == 2 * CONFIG.epochs  # two roles; the audit shares the first pass
