"""Each fault that can come between sampling and learning is planted and must be named."""

import pytest
import torch

from lockstep.errors import AuditFailure
from lockstep.learners.audit import audit
from lockstep.learners.config import PPOConfig
from lockstep.run.checkpoint import state_digest
from tests.helpers import assemble
from tests.toys import Masked, Match, Pool, Recall

CONFIG = PPOConfig(hidden=16, lanes=8, steps=6, critic="state")


def collected(make=Masked, config=CONFIG, seeds=(0, 1)):
    learner, collector, rollout = assemble(make, config, list(seeds))
    for pack in learner.policies.values():  # a sharper policy, since near-uniform ones hide errors
        with torch.no_grad():
            pack.weights.mul_(1.5)
            generator = torch.Generator().manual_seed(0)
            pack.weights.add_(0.3 * torch.randn(pack.weights.shape, generator=generator))
    collector.collect(rollout)
    return learner, rollout


@pytest.mark.parametrize("make", [Match, Masked, Pool])
def test_a_healthy_update_raises_nothing_and_reports_tiny_gaps(make):
    learner, rollout = collected(make, PPOConfig(hidden=16, lanes=4, steps=3))
    stats = learner.update(rollout).scalars
    assert stats["audit/player/log_prob_gap"].max() < 2e-5
    assert stats["audit/first/player/approx_kl"].abs().max() < 1e-6


def test_a_healthy_recurrent_update_replays_exactly():
    learner, rollout = collected(Recall, PPOConfig(hidden=16, lanes=4, steps=7, memory="gru"))
    assert learner.update(rollout).scalars["audit/player/log_prob_gap"].max() < 2e-5


def test_memory_reset_at_the_wrong_step_is_named():
    config = PPOConfig(hidden=16, lanes=4, steps=7, memory="gru")
    learner, rollout = collected(Recall, config)
    rollout.starts.copy_(rollout.starts.roll(1, dims=0))
    with pytest.raises(AuditFailure, match="G4 log_prob"):
        learner.update(rollout)


def test_a_mask_rebuilt_after_the_fact_is_named_by_support():
    learner, rollout = collected()
    rows = rollout.roles["player"]
    chosen = rows.action["pick"][2, 3, 0]
    rows.obs.legal["pick"][2, 3, 0] = True
    rows.obs.legal["pick"][2, 3, 0, chosen] = False
    with pytest.raises(AuditFailure, match=r"G5 support.*(?s:.*)mask or candidate set") as failed:
        learner.update(rollout)
    assert "G5 support (player)" in failed.value.gates


def test_a_mask_that_grew_is_named_with_the_row_and_the_size_of_the_set():
    learner, rollout = collected()
    rollout.roles["player"].obs.legal["pick"][...] = True
    with pytest.raises(AuditFailure, match=r"G4 log_prob(?s:.*)K=4.*observations CHANGED"):
        learner.update(rollout)


def test_a_fixed_number_of_candidates_is_named():
    learner, rollout = collected(Pool, PPOConfig(hidden=16, lanes=4, steps=3))
    rows = rollout.roles["player"]
    rows.obs.legal["pick"][..., 5:] = False
    rows.action["pick"].clamp_(max=4)
    with pytest.raises(AuditFailure, match=r"G4 log_prob(?s:.*)K=5"):
        learner.update(rollout)


def test_candidates_in_another_order_are_named():
    learner, rollout = collected(Pool, PPOConfig(hidden=16, lanes=4, steps=3))
    rows = rollout.roles["player"].obs.entities["candidate"]
    rows.copy_(rows.flip(-2))
    with pytest.raises(AuditFailure, match=r"G4 log_prob(?s:.*)CHANGED"):
        learner.update(rollout)


def test_an_observation_rewritten_by_a_normaliser_is_named_with_a_hint():
    learner, rollout = collected(Match)
    rollout.roles["player"].obs.features["obs"].mul_(1.01)
    with pytest.raises(AuditFailure, match=r"CHANGED(?s:.*)normaliser"):
        learner.update(rollout)


def test_weights_that_are_not_those_that_acted_are_named():
    learner, rollout = collected(Match)
    with torch.no_grad():
        learner.policies["player"].weights.mul_(1.01)
    with pytest.raises(AuditFailure, match=r"unchanged(?s:.*)weights or the mode"):
        learner.update(rollout)


def test_a_critic_that_is_not_the_one_that_valued_is_named():
    learner, rollout = collected(Match)
    with torch.no_grad():
        learner.critic.weights.mul_(1.1)
    with pytest.raises(AuditFailure, match="G4 value"):
        learner.update(rollout)


def test_a_stale_policy_version_is_named():
    learner, rollout = collected(Match)
    rollout.version -= 1
    with pytest.raises(
        AuditFailure, match=r"G3 policy version(?s:.*)version \[-1\].*learner is at 0"
    ):
        learner.update(rollout)


def test_rows_out_of_order_are_named():
    learner, rollout = collected(Match)
    rollout.clock.copy_(rollout.clock.flip(0))
    with pytest.raises(AuditFailure, match="G2 order"):
        learner.update(rollout)


def test_an_action_changed_after_sampling_is_named():
    learner, rollout = collected(Match)
    rollout.roles["player"].action["number"].mul_(0.9)
    with pytest.raises(AuditFailure, match="G4 log_prob"):
        learner.update(rollout)


@pytest.mark.parametrize("field", ["reward", "value"])
def test_numbers_that_are_not_finite_are_named(field):
    learner, rollout = collected(Match)
    getattr(rollout.roles["player"], field)[1, 1, 0] = torch.nan
    with pytest.raises(AuditFailure, match="G16 finite") as failed:
        learner.update(rollout)
    assert "G16 finite (player)" in failed.value.gates


def test_minibatches_that_do_not_line_up_are_named(monkeypatch):
    learner, rollout = collected(Match, PPOConfig(hidden=16, lanes=8, steps=6, minibatches=2))
    from lockstep.learners.batch import Batch

    plain = Batch.lanes

    def shifted(self, index):
        part = plain(self, index)
        role = part.roles["player"]
        object.__setattr__(role, "log_prob", role.log_prob.roll(1, dims=1))
        return part

    monkeypatch.setattr(Batch, "lanes", shifted)
    with pytest.raises(AuditFailure, match="G6 first minibatch"):
        learner.update(rollout)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_an_update_that_the_audit_refuses_leaves_the_learner_as_it_was(minibatches):
    config = PPOConfig(hidden=16, lanes=4, steps=6, reward_norm="running", minibatches=minibatches)
    learner, rollout = collected(Match, config)
    learner.update(rollout)  # so that there are moments and statistics to spoil
    before = state_digest(learner.state_dict())
    with pytest.raises(AuditFailure, match="G3 policy version"):
        learner.update(rollout)
    assert state_digest(learner.state_dict()) == before


def test_rounding_of_an_unlikely_decision_is_larger_than_that_of_a_likely_one():
    """Seen with 13 candidates: -4.548325 when it was acted on, -4.548348 when rebuilt."""
    for stored, gap, passes in ((-4.5, 2.4e-5, True), (-0.1, 2.4e-5, False), (-4.5, 2e-4, False)):
        learner, collector, rollout = assemble(Masked, PPOConfig(hidden=16, lanes=2, steps=3), [0])
        collector.collect(rollout)
        replayed, _ = learner._replay(learner._batch(rollout))
        rows = rollout.roles["player"]
        rows.log_prob.fill_(stored)
        replayed.log_prob["player"].fill_(stored)
        replayed.log_prob["player"][1, 0, 0] += gap
        if passes:
            audit(learner.spec, rollout, replayed, learner.version, precision="fp32")
        else:
            with pytest.raises(AuditFailure, match=r"G4 log_prob \(player\)"):
                audit(learner.spec, rollout, replayed, learner.version, precision="fp32")
