"""Every way in which sampling and learning were seen to disagree is planted and must be named.

The table is that of the city specification: 4,096 decisions among 8..50 candidates, one network, no
gradient step between sampling and replay, once near uniform and once sharper.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from lockstep.errors import AuditFailure
from lockstep.learners.config import PPOConfig
from lockstep.run.doctor import Batch, Transitions, audit_transitions, examine, fingerprints
from lockstep.run.doctor.foreign import from_rows
from tests.helpers import assemble
from tests.toys import Pool

N, C, F, D = 4096, 50, 8, 64
HEADS = {"near uniform": 0.005, "sharp": 0.47}


class Scorer:
    """Scores each candidate by itself and what the agent sees; logits of a chosen spread."""

    def __init__(self, spread: float, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inner = torch.randn(D, 32, generator=generator) / math.sqrt(D)
        self.outer = torch.randn(32, F, generator=generator) / math.sqrt(32)
        self.spread, self.scale = spread, 1.0
        obs = torch.randn(N, D, generator=generator)
        rows = torch.randn(N, C, F, generator=generator)
        self.scale = spread / float(self.logits(obs, rows).std())

    def logits(self, obs: Tensor, rows: Tensor) -> Tensor:
        wanted = torch.tanh(obs @ self.inner.to(obs.dtype)) @ self.outer.to(obs.dtype)  # [B, F]
        return self.scale * (rows * wanted.unsqueeze(1)).sum(dim=-1)  # [B, C]

    def log_p(self, obs: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        return self.logits(obs, rows).masked_fill(~mask, -math.inf).log_softmax(dim=-1)

    def __call__(self, batch: Batch) -> Tensor:
        return self.log_p(batch.obs, batch.candidates, batch.mask)


@dataclass(frozen=True)
class Sampled:
    """What one policy chose, as right code would store it."""

    policy: Scorer
    stored: Transitions

    @property
    def mask(self) -> Tensor:
        return torch.arange(C) < torch.as_tensor(self.stored.count).unsqueeze(-1)


@cache
def sampled(spread: float) -> Sampled:
    generator = torch.Generator().manual_seed(1)
    policy = Scorer(spread)
    obs = torch.randn(N, D, generator=generator)
    rows = torch.randn(N, C, F, generator=generator)
    count = torch.randint(8, C + 1, (N,), generator=generator)
    mask = torch.arange(C) < count.unsqueeze(-1)
    log_p = policy.log_p(obs, rows, mask)
    index = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
    return Sampled(
        policy,
        Transitions(
            obs=obs,
            index=index,
            log_prob=log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1),
            candidates=rows,
            count=count,
            episode=torch.arange(N) // 64,
            time=torch.arange(N) % 64 // 2,
            agent=torch.arange(N) % 2,
            policy_version=torch.full((N,), 7),
            fingerprint=fingerprints(obs, mask=mask, candidates=rows),
        ),
    )


Plant = Callable[[Sampled], tuple[Callable[[Batch], Tensor], Transitions]]


def shuffled(s: Sampled) -> tuple[Callable[[Batch], Tensor], Transitions]:
    """Candidates in another order among those that exist."""
    generator = torch.Generator().manual_seed(2)
    key = torch.where(s.mask, torch.rand(N, C, generator=generator), 2.0)
    order = key.argsort(dim=-1).unsqueeze(-1).expand(N, C, F)
    return s.policy, replace(s.stored, candidates=s.stored.candidates.gather(1, order))


def enumerated_again(s: Sampled) -> tuple[Callable[[Batch], Tensor], Transitions]:
    generator = torch.Generator().manual_seed(3)
    off = torch.randint(-3, 4, (N,), generator=generator)
    return s.policy, replace(s.stored, count=(torch.as_tensor(s.stored.count) + off).clamp(1, C))


def fresh_noise(s: Sampled) -> tuple[Callable[[Batch], Tensor], Transitions]:
    def noisy(batch: Batch) -> Tensor:
        obs = batch.obs.clone()
        obs[:, :3] = torch.randn(len(obs), 3)
        return s.policy.log_p(obs, batch.candidates, batch.mask)

    return noisy, s.stored


def noise_was_stored(s: Sampled) -> tuple[Callable[[Batch], Tensor], Transitions]:
    obs = s.stored.obs.clone()
    obs[:, :3] = torch.randn(N, 3, generator=torch.Generator().manual_seed(4))
    return s.policy, replace(s.stored, obs=obs)


def explored(s: Sampled, *, honest: bool) -> tuple[Callable[[Batch], Tensor], Transitions]:
    """Epsilon-greedy around the policy; the mixture is logged, or log 1 for explored choices."""
    generator = torch.Generator().manual_seed(5)
    log_p = s.policy.log_p(s.stored.obs, s.stored.candidates, s.mask)
    count = torch.as_tensor(s.stored.count)
    explores = torch.rand(N, generator=generator) < 0.8
    uniform = (torch.rand(N, generator=generator) * count).long()
    index = torch.where(explores, uniform, torch.as_tensor(s.stored.index))
    own = log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    mixture = torch.log(0.2 * own.exp() + 0.8 / count)
    log_prob = mixture if honest else torch.where(explores, 0.0, own)
    return s.policy, replace(s.stored, index=index, log_prob=log_prob)


def other_precision(s: Sampled) -> tuple[Callable[[Batch], Tensor], Transitions]:
    logits = s.policy.logits(s.stored.obs.bfloat16(), s.stored.candidates.bfloat16()).float()
    log_p = logits.masked_fill(~s.mask, -math.inf).log_softmax(dim=-1)
    index = torch.as_tensor(s.stored.index).unsqueeze(-1)
    return s.policy, replace(s.stored, log_prob=log_p.gather(-1, index).squeeze(-1))


def in_the_update(change: Callable[[Scorer, Batch], Tensor]) -> Plant:
    """A fault on the side that replays."""
    return lambda s: (lambda batch: change(s.policy, batch), s.stored)


# The fault, its name, a piece of the hint, and the share of rows that stay valid.
FAULTS: dict[str, tuple[Plant, str, str, float]] = {
    "K = 5, index clamped": (
        lambda s: (
            s.policy,
            replace(
                s.stored,
                count=torch.full((N,), 5),
                index=torch.as_tensor(s.stored.index).clamp(max=4),
            ),
        ),
        "choice set cut",
        "a fixed K = 5",
        1.0,
    ),
    "K = 5, index >= 5 dropped": (
        lambda s: (s.policy, replace(s.stored, count=torch.full((N,), 5))),
        "choice set cut",
        "a fixed K = 5",
        0.23,
    ),
    "no mask in the update": (
        in_the_update(lambda policy, b: policy.log_p(b.obs, b.candidates, torch.ones_like(b.mask))),
        "mask not applied",
        "of its probability outside",
        1.0,
    ),
    "mask not stored": (
        lambda s: (s.policy, replace(s.stored, count=torch.full((N,), C), fingerprint=None)),
        "support differs",
        "normalises over more of them",
        1.0,
    ),
    "mask re-enumerated, K off by up to 3": (
        enumerated_again,
        "choice outside its set",
        "enumerates the candidates anew",
        0.96,
    ),
    "order of candidates changed": (shuffled, "order of choices changed", "order in which", 1.0),
    "3 of 64 inputs fresh noise": (fresh_noise, "policy is not a function", "fresh noise", 1.0),
    "3 of 64 inputs fresh noise, stored": (
        noise_was_stored,
        "observation changed",
        "noise among the inputs",
        1.0,
    ),
    "temperature 0.5 in the update only": (
        in_the_update(
            lambda policy, b: (2 * policy(b)).masked_fill(~b.mask, -math.inf).log_softmax(-1)
        ),
        "temperature differs",
        "times 0.500",
        1.0,
    ),
    "other normalisation statistics": (
        lambda s: (s.policy, replace(s.stored, obs=s.stored.obs * 1.05 + 0.02)),
        "observation changed",
        "a normaliser whose statistics moved",
        1.0,
    ),
    "eps-greedy 0.8, explored logged as log 1": (
        lambda s: explored(s, honest=False),
        "explored choices logged as certain",
        "exploration included",
        1.0,
    ),
    "eps-greedy 0.8, true mixture logged": (
        lambda s: explored(s, honest=True),
        "exploration outside the policy",
        "0.80 of uniform choice",
        1.0,
    ),
    "rollout by another network instance": (
        lambda s: (Scorer(s.policy.spread, seed=9), s.stored),
        "another distribution over the same choices",
        "observations are unchanged: look at the weights",
        1.0,
    ),
    "bf16 rollout, fp32 update": (
        other_precision,
        "another distribution over the same choices",
        "a sampler in bf16",
        1.0,
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_the_healthy_row_raises_nothing_and_replays_exactly(head: str):
    s = sampled(HEADS[head])
    audit = audit_transitions(s.policy, s.stored, version=7)
    assert audit.ok, str(audit)
    assert audit.max_gap < 4e-6
    assert audit.ratio_mean == pytest.approx(1, abs=1e-6)
    assert (audit.k3, audit.clip_fraction) == (pytest.approx(0, abs=1e-9), 0)
    assert [check.ok for check in audit.checks if check.ok is not None] == [True] * 8
    assert audit.fault is None
    assert audit.first is None


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, head: str):
    plant, name, hint, valid = FAULTS[fault]
    audit = audit_transitions(*plant(sampled(HEADS[head])))
    assert not audit.ok
    assert audit.fault == name, str(audit)
    assert audit.hint is not None
    assert hint in audit.hint
    assert audit.valid_share == pytest.approx(valid, abs=0.02)
    assert audit.first is not None
    assert audit.first.choices >= 1


@pytest.mark.parametrize("head", HEADS)
def test_the_numbers_of_the_table_are_found_again(head: str):
    plant, *_ = FAULTS["K = 5, index clamped"]
    audit = audit_transitions(*plant(sampled(HEADS[head])))
    assert audit.ratio_mean == pytest.approx({"near uniform": 5.73, "sharp": 5.43}[head], rel=0.1)
    assert audit.k3 == pytest.approx(3.0, rel=0.2)
    assert audit.entropy == pytest.approx(
        math.log(5), abs={"near uniform": 1e-3, "sharp": 0.2}[head]
    )


@pytest.mark.parametrize("head", HEADS)
def test_log_of_p_plus_a_trifle_stays_quiet(head: str):
    s = sampled(HEADS[head])
    p = torch.as_tensor(s.stored.log_prob).exp()
    assert audit_transitions(s.policy, replace(s.stored, log_prob=torch.log(p + 1e-8))).ok


def test_log_of_p_plus_a_trifle_needs_a_wider_limit_where_the_policy_is_sharp():
    """With probabilities near 1e-4 the trifle shows, as it should."""
    s = sampled(2.5)
    p = torch.as_tensor(s.stored.log_prob).exp()
    trifle = replace(s.stored, log_prob=torch.log(p + 1e-8))
    assert p.min() < 5e-4
    assert not audit_transitions(s.policy, trifle).ok
    assert audit_transitions(s.policy, trifle, limit=1e-3).ok


@pytest.mark.parametrize("head", HEADS)
def test_a_large_negative_number_in_place_of_minus_infinity_stays_quiet(head: str):
    s = sampled(HEADS[head])

    def masked(batch: Batch) -> Tensor:
        logits = s.policy.logits(batch.obs, batch.candidates)
        return logits.masked_fill(~batch.mask, -1e8).log_softmax(dim=-1)

    assert audit_transitions(masked, s.stored).ok


def test_no_replay_can_see_that_the_policys_own_log_prob_was_logged_while_exploring():
    """Ruled out elsewhere: exploration lives inside the distribution."""
    s = sampled(HEADS["sharp"])
    policy, stored = explored(s, honest=True)
    log_p = s.policy.log_p(stored.obs, stored.candidates, s.mask)
    own = log_p.gather(-1, torch.as_tensor(stored.index).unsqueeze(-1)).squeeze(-1)
    assert audit_transitions(policy, replace(stored, log_prob=own)).ok


def test_no_replay_can_see_that_a_head_scores_positions():
    """Only a test of learning tells: such a head replays exactly and learns nothing."""
    s = sampled(HEADS["sharp"])
    head = 0.5 * torch.randn(D, C, generator=torch.Generator().manual_seed(6)) / math.sqrt(D)

    def positional(batch: Batch) -> Tensor:
        return (batch.obs @ head).masked_fill(~batch.mask, -math.inf).log_softmax(dim=-1)

    log_p = (s.stored.obs @ head).masked_fill(~s.mask, -math.inf).log_softmax(dim=-1)
    index = torch.multinomial(log_p.exp(), 1, generator=torch.Generator().manual_seed(7))
    own = replace(s.stored, index=index.squeeze(-1), log_prob=log_p.gather(-1, index).squeeze(-1))
    assert audit_transitions(positional, own).ok


def test_the_doctor_tells_the_lost_number_of_candidates_from_the_log_alone():
    """Thirty updates as CleanRL would log them, each of the planted fault."""
    s = sampled(HEADS["near uniform"])
    log_p = s.policy.log_p(s.stored.obs, s.stored.candidates[:, :5], torch.ones(N, 5).bool())
    index = torch.as_tensor(s.stored.index).clamp(max=4).unsqueeze(-1)
    log_ratio = log_p.gather(-1, index).squeeze(-1) - torch.as_tensor(s.stored.log_prob)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    rows = []
    for rollout in range(32):
        d = log_ratio[rollout * 128 : (rollout + 1) * 128]
        rows.append(
            {
                "losses/approx_kl": float((d.exp() - 1 - d).mean()),
                "losses/old_approx_kl": float(-d.mean()),
                "losses/clipfrac": float(((d.exp() - 1).abs() > 0.2).float().mean()),
                "losses/entropy": float(entropy[rollout * 128 : (rollout + 1) * 128].mean()),
            }
        )
    found = {finding.id: finding for finding in examine(from_rows("city", rows)).findings}
    assert "ln 5 = 1.6094" in found["D2"].evidence
    geometric_mean = float(log_ratio.mean().exp())
    assert found["D4"].values["K"] == pytest.approx(5 * geometric_mean, rel=0.05)


def cut(rows):
    rows.obs.legal["pick"][..., 5:] = False
    rows.action["pick"].clamp_(max=4)


def cut_and_kept(rows):
    rows.obs.legal["pick"][..., 5:] = False


def unmasked(rows):
    rows.obs.legal["pick"][...] = True


def off_by_three(rows):
    rows.obs.legal["pick"][:, :, :, 3:] = rows.obs.legal["pick"][:, :, :, :-3].clone()


def reordered(rows):
    rows.obs.entities["candidate"].copy_(rows.obs.entities["candidate"].flip(-2))


def noise(rows):
    rows.obs.features["obs"][..., 0] += 0.1


def normalised_again(rows):
    rows.obs.features["obs"].mul_(1.05).add_(0.02)


def explored_as_certain(rows):
    rows.log_prob[::2] = 0.0


def halved_temperature(rows):
    rows.log_prob.mul_(1.2)


def rounded(rows):
    rows.log_prob.copy_(rows.log_prob.bfloat16())


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (cut, r"G4 log_prob(?s:.*)K=5.*CHANGED"),
        (cut_and_kept, r"G5 support(?s:.*)mask or candidate set"),
        (unmasked, r"G4 log_prob(?s:.*)K=50.*CHANGED"),
        (off_by_three, r"G4 log_prob(?s:.*)CHANGED"),
        (reordered, r"G4 log_prob(?s:.*)CHANGED"),
        (noise, r"G4 log_prob(?s:.*)CHANGED(?s:.*)rewrites observations"),
        (normalised_again, r"G4 log_prob(?s:.*)CHANGED(?s:.*)normaliser"),
        (explored_as_certain, r"G4 log_prob(?s:.*)stored log_prob 0\.000000"),
        (halved_temperature, r"G4 log_prob(?s:.*)unchanged"),
        (rounded, r"G4 log_prob(?s:.*)unchanged"),
    ],
)
def test_the_same_faults_in_a_rollout_of_ours_stop_the_update(tamper, named: str):
    learner, rollout = trained()
    tamper(rollout.roles["player"])
    with pytest.raises(AuditFailure, match=named):
        learner.update(rollout)


def test_weights_that_did_not_act_stop_the_update():
    learner, rollout = trained()
    other, _, _ = assemble(Pool, PPOConfig(hidden=16, lanes=4, steps=4), [5])
    with torch.no_grad():
        learner.policies["player"].weights.copy_(other.policies["player"].weights)
    with pytest.raises(AuditFailure, match=r"G4 log_prob(?s:.*)weights or the mode"):
        learner.update(rollout)


def test_a_rollout_of_ours_that_nobody_touched_is_learned_from():
    learner, rollout = trained()
    assert learner.update(rollout).scalars["audit/player/log_prob_gap"].max() < 2e-5


def trained():
    """A sharper policy than a fresh one, since those near uniform hide errors."""
    learner, collector, rollout = assemble(Pool, PPOConfig(hidden=16, lanes=4, steps=4), [0])
    with torch.no_grad():
        weights = learner.policies["player"].weights
        generator = torch.Generator().manual_seed(0)
        weights.add_(0.3 * torch.randn(weights.shape, generator=generator))
    collector.collect(rollout)
    return learner, rollout
