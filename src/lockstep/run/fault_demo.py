"""The failure that Lockstep rules out, side by side with the right replay; for `demo-fault` alone.

One network decides thousands of times among 8 to 50 candidates, and stores what it should. Then the
decisions are replayed before any gradient step, rightly and in ways seen in real projects. Whatever
differs from ratio 1, KL 0 and clip 0 is an error of bookkeeping.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lockstep.collect.synchronous import Collector
from lockstep.core.rollout import RoleRows, Rollout
from lockstep.core.streams import Streams, lane_keys
from lockstep.errors import AuditFailure
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.run.doctor import (
    Batch,
    TransitionAudit,
    Transitions,
    audit_transitions,
    fingerprints,
)
from lockstep.run.fault_learning import FIXED_K, VARIANTS, Learned, Scorer, learn, sample
from lockstep.run.fault_task import MOST, ROLE, CandidateTask
from lockstep.run.jsonable import Json, encode
from lockstep.run.trainer import threads

HEADS = {"near uniform": 0.005, "sharp": 0.47}
"""Standard deviation of the logits of a head that has learned nothing, or something."""

_VALID_LEAST, _RATIO_OFF, _KL_MOST, _CLIP_MOST, _PINNED = 0.9, 0.1, 0.2, 0.3, 1e-5
_ENGINE_LANES = 64

LogP = Callable[[Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to replay: what the update does with stored decisions."""

    name: str
    stored: Callable[[Transitions], Transitions] | None = None
    """What becomes of the stored decisions."""
    policy: Callable[[Scorer], LogP] | None = None
    """What the update asks instead of the policy that acted."""
    engine: Callable[[PPO, RoleRows], None] | None = None
    """The same fault planted in a rollout of Lockstep's own learner."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One row of the table."""

    head: str
    replay: str
    valid_share: float
    ratio_mean: float
    ratio_sd: float
    k3: float
    clip_fraction: float
    max_gap: float
    """Largest difference of a log-prob."""
    entropy: float
    slo: tuple[str, ...]
    """Those of the usual health checks that it fails; empty means that they all pass."""
    audit: str
    """What the audit of transitions finds, or "ok"."""
    engine: str
    """What Lockstep's learner does with such a rollout."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """Both halves: the replay before any step, and what is learned from it."""

    decisions: int
    updates: int
    replays: tuple[Replayed, ...]
    learned: tuple[Learned, ...]

    def to_json(self) -> Json:
        """Everything as plain values."""
        return encode(self)


def _untold(what: str) -> None:
    """Nobody listens."""


def demonstrate(
    *,
    decisions: int = 4096,
    updates: int = 100,
    on_part: Callable[[str], None] = _untold,
) -> Demonstration:
    """Replays and learns; `on_part` hears of each part as it begins."""
    with threads(1):  # small batches: with more, threads mostly wait for each other
        replays = []
        for head, spread in HEADS.items():
            on_part(f"replay, {head} head")
            replays += replayed(head, spread, decisions=decisions)
        learned = []
        for variant in VARIANTS:
            on_part(f"learning, {variant.name}")
            learned.append(learn(variant, updates=updates))
    return Demonstration(
        decisions=decisions, updates=updates, replays=tuple(replays), learned=tuple(learned)
    )


def replayed(head: str, spread: float, *, decisions: int) -> list[Replayed]:
    """Every fault on the same decisions of one network whose logits have the given spread."""
    policy = _with_spread(spread)
    stored = _stored(policy, decisions)
    rows = []
    for fault in FAULTS:
        asked = stored if fault.stored is None else fault.stored(stored)
        log_p = _as_it_acted(policy) if fault.policy is None else fault.policy(policy)
        audit = audit_transitions(log_p, asked, version=0)
        entropy = _entropy(log_p, asked)
        rows.append(
            Replayed(
                head=head,
                replay=fault.name,
                valid_share=audit.valid_share,
                ratio_mean=audit.ratio_mean,
                ratio_sd=audit.ratio_sd,
                k3=audit.k3,
                clip_fraction=audit.clip_fraction,
                max_gap=audit.max_gap,
                entropy=entropy,
                slo=slo_breaches(audit, entropy),
                audit=audit.fault or "ok",
                engine=_in_the_engine(fault, spread),
            )
        )
    return rows


def slo_breaches(audit: TransitionAudit, entropy: float) -> tuple[str, ...]:
    """Which of the checks usually made on a first minibatch fail.

    Valid share above 0.90, mean ratio within 0.1 of 1, KL below 0.2, clip fraction at most 0.30,
    entropy not pinned at the log of a constant.
    """
    held = {
        "valid": audit.valid_share > _VALID_LEAST,
        "ratio": abs(audit.ratio_mean - 1.0) <= _RATIO_OFF,
        "KL": audit.k3 < _KL_MOST,
        "clip": audit.clip_fraction <= _CLIP_MOST,
        "entropy": abs(entropy - math.log(FIXED_K)) > _PINNED,
    }
    return tuple(name for name, ok in held.items() if not ok)


def _with_spread(spread: float) -> Scorer:
    """A network whose logits have the given standard deviation on decisions of the task."""
    policy, world = Scorer(seed=3, gain=1.0), CandidateTask(lanes=256)
    seen = world.observe(ROLE).map(lambda x: x[:, 0])
    with torch.no_grad():
        logits = policy.logits(seen.features["obs"], seen.entities["candidate"])
        policy.weights[-1].mul_(spread / float(logits[seen.legal["pick"]].std()))
    return policy


def _stored(policy: Scorer, decisions: int) -> Transitions:
    """Decisions as they should be stored: with their choice sets."""
    d = sample(policy, CandidateTask(lanes=decisions), torch.Generator().manual_seed(1))
    return Transitions(
        obs=d.context,
        index=d.index,
        log_prob=d.log_prob,
        mask=d.legal,
        candidates=d.rows,
        time=torch.zeros(decisions, dtype=torch.int64),
        episode=torch.arange(decisions),
        policy_version=torch.zeros(decisions, dtype=torch.int64),
        fingerprint=fingerprints(d.context, mask=d.legal, candidates=d.rows),
    )


@torch.no_grad()
def _as_it_acted_on(policy: Scorer, batch: Batch, mask: Tensor) -> Tensor:
    return policy.log_p(batch.obs, torch.as_tensor(batch.candidates), mask)


def _as_it_acted(policy: Scorer) -> LogP:
    return lambda batch: _as_it_acted_on(policy, batch, batch.mask)


def _entropy(policy: LogP, stored: Transitions) -> float:
    """Mean entropy of the distributions the update would compute."""
    mask = torch.as_tensor(stored.mask)
    batch = Batch(obs=stored.obs, mask=mask, candidates=stored.candidates, agent=None)
    log_p = policy(batch)
    p = log_p.exp()
    return float(-(p * log_p.masked_fill(p == 0, 0.0)).sum(dim=-1).mean())


def _in_the_engine(fault: Fault, spread: float) -> str:
    """What a learner of Lockstep does with a rollout in which the fault was planted."""
    learner, rollout = _collected(spread)
    if fault.engine is not None:
        fault.engine(learner, rollout.roles[ROLE])
    try:
        learner.update(rollout)
    except AuditFailure as failure:
        gates = sorted({gate.split()[0] for gate in failure.gates})
        return f"stopped by {', '.join(gates)}"
    return "learned"


def _collected(spread: float) -> tuple[PPO, Rollout]:
    """A learner and a rollout that it has just filled; its logits have about the given spread."""
    config = PPOConfig(hidden=16, lanes=_ENGINE_LANES, steps=1, minibatches=1, critic="state")
    world, keys = CandidateTask(lanes=_ENGINE_LANES), lane_keys([0], lanes=_ENGINE_LANES)
    world.reset(keys)
    learner = PPO(config, world.spec, seeds=[0])
    with torch.no_grad():
        weights = learner.policies[ROLE].weights
        noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(0))
        weights.add_(noise * min(0.3, spread))
    rollout = learner.rollout()
    Collector(world, learner, Streams(keys)).collect(rollout)
    return learner, rollout


def _cut(stored: Transitions) -> Transitions:
    first = torch.arange(MOST) < FIXED_K
    return replace(stored, mask=first.expand(len(torch.as_tensor(stored.index)), MOST))


def _cut_and_clamped(stored: Transitions) -> Transitions:
    return replace(_cut(stored), index=torch.as_tensor(stored.index).clamp(max=FIXED_K - 1))


def _reordered(stored: Transitions) -> Transitions:
    """The candidates that exist, the other way round."""
    rows, mask = torch.as_tensor(stored.candidates), np.asarray(stored.mask)
    count = torch.from_numpy(mask.sum(axis=1)).unsqueeze(-1)  # [N, 1]
    order = (count - 1 - torch.arange(MOST)) % MOST
    return replace(stored, candidates=rows.gather(1, order.unsqueeze(-1).expand_as(rows)))


def _unmasked(policy: Scorer) -> LogP:
    return lambda batch: _as_it_acted_on(policy, batch, torch.ones_like(batch.mask))


def _halved_temperature(policy: Scorer) -> LogP:
    acted = _as_it_acted(policy)
    return lambda batch: (2.0 * acted(batch)).log_softmax(dim=-1)


def _cut_rows(learner: PPO, rows: RoleRows) -> None:  # noqa: ARG001
    rows.obs.legal["pick"][..., FIXED_K:] = False


def _cut_and_clamp_rows(learner: PPO, rows: RoleRows) -> None:
    _cut_rows(learner, rows)
    rows.action["pick"].clamp_(max=FIXED_K - 1)


def _unmask_rows(learner: PPO, rows: RoleRows) -> None:  # noqa: ARG001
    rows.obs.legal["pick"].fill_(True)


def _reorder_rows(learner: PPO, rows: RoleRows) -> None:  # noqa: ARG001
    rows.obs.entities["candidate"].copy_(rows.obs.entities["candidate"].roll(1, dims=-2))


def _halve_temperature_of(learner: PPO, rows: RoleRows) -> None:  # noqa: ARG001
    learner.config = replace(learner.config, temperature=0.5)


FAULTS = (
    Fault(name="stored choice set"),
    Fault(name="K = 5, index clamped", stored=_cut_and_clamped, engine=_cut_and_clamp_rows),
    Fault(name="K = 5, index >= 5 dropped", stored=_cut, engine=_cut_rows),
    Fault(name="no mask in the update", policy=_unmasked, engine=_unmask_rows),
    Fault(name="order of candidates changed", stored=_reordered, engine=_reorder_rows),
    Fault(
        name="temperature 0.5 in the update only",
        policy=_halved_temperature,
        engine=_halve_temperature_of,
    ),
)
