"""Learning from a right and from a faulty replay of the same decisions; for `demo-fault` alone.

Lockstep's own learners cannot be made to do this: their audit stops the update. So the small loop
here is written by hand, with the replay as a parameter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.run.fault_task import N_CONTEXT, N_FEATURES, ROLE, CandidateTask

FIXED_K = 5
"""The K that the faulty update assumes."""
CLIP = 0.2
DECISIONS, EPOCHS, MINIBATCHES = 512, 4, 2
_HIDDEN, _RATE, _LAST = 64, 3e-3, 5


class Scorer:
    """Scores each candidate by itself and the context: two hidden layers, one network."""

    def __init__(self, *, seed: int = 0, gain: float = 0.01) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weight(n_in: int, n_out: int, gain: float) -> Tensor:
            x = gain * torch.randn(n_in, n_out, generator=generator) / math.sqrt(n_in)
            return x.requires_grad_()

        self.weights = [
            weight(N_FEATURES + N_CONTEXT, _HIDDEN, 1.7),
            weight(_HIDDEN, _HIDDEN, 1.7),
            weight(_HIDDEN, 1, gain),
        ]

    def logits(self, context: Tensor, rows: Tensor) -> Tensor:
        """`[B, C]` from `[B, 2]` and `[B, C, 6]`."""
        x = torch.cat((rows, context.unsqueeze(1).expand(-1, rows.shape[1], -1)), dim=-1)
        for weight in self.weights[:-1]:
            x = torch.tanh(x @ weight)
        return (x @ self.weights[-1]).squeeze(-1)

    def log_p(self, context: Tensor, rows: Tensor, legal: Tensor) -> Tensor:
        """Log-probs `[B, C]` over the candidates that exist."""
        return self.logits(context, rows).masked_fill(~legal, -torch.inf).log_softmax(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """N decisions as right code stores them."""

    context: Tensor  # [N, 2]
    rows: Tensor  # [N, C, 6]
    legal: Tensor  # [N, C] bool
    index: Tensor  # [N]
    log_prob: Tensor  # [N]
    score: Tensor  # [N]

    def take(self, at: Tensor) -> "Decisions":
        """Some of them."""
        return Decisions(**{name: getattr(self, name)[at] for name in self.__dataclass_fields__})


@torch.no_grad()
def sample(policy: Scorer, world: CandidateTask, generator: torch.Generator) -> Decisions:
    """One decision in every lane, drawn from the policy over the candidates that exist."""
    seen = world.observe(ROLE).map(lambda x: x[:, 0])
    context, rows, legal = seen.features["obs"], seen.entities["candidate"], seen.legal["pick"]
    log_p = policy.log_p(context, rows, legal)
    index = torch.multinomial(log_p.exp(), 1, generator=generator)  # [L, 1]
    world.act(ROLE, {"pick": index})
    return Decisions(
        context=context,
        rows=rows,
        legal=legal,
        index=index.squeeze(-1),
        log_prob=log_p.gather(-1, index).squeeze(-1),
        score=world.advance().metrics["score"],
    )


Replay = Callable[[Scorer, Decisions], tuple[Tensor, Tensor, Tensor]]
"""New log-probs `[B]`, entropies `[B]`, and which rows could be replayed `[B]`."""


def _over(policy: Scorer, d: Decisions, legal: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    log_p = policy.log_p(d.context, d.rows, legal)
    finite = log_p.masked_fill(~legal, 0.0)
    entropy = -(log_p.exp() * finite).sum(dim=-1)
    return log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1), entropy


def stored_set(policy: Scorer, d: Decisions) -> tuple[Tensor, Tensor, Tensor]:
    """The right replay: the choice set that was stored."""
    log_prob, entropy = _over(policy, d, d.legal, d.index)
    return log_prob, entropy, torch.ones_like(d.index, dtype=torch.bool)


def fixed_clamped(policy: Scorer, d: Decisions) -> tuple[Tensor, Tensor, Tensor]:
    """The original failure: K is taken to be 5, and an index beyond it becomes 4."""
    log_prob, entropy, _ = fixed_dropped(policy, d)
    return log_prob, entropy, torch.ones_like(d.index, dtype=torch.bool)


def fixed_dropped(policy: Scorer, d: Decisions) -> tuple[Tensor, Tensor, Tensor]:
    """The same, but rows whose index lies beyond 5 are left out."""
    first = Decisions(
        context=d.context,
        rows=d.rows[:, :FIXED_K],
        legal=d.legal[:, :FIXED_K],
        index=d.index.clamp(max=FIXED_K - 1),
        log_prob=d.log_prob,
        score=d.score,
    )
    log_prob, entropy = _over(policy, first, first.legal, first.index)
    return log_prob, entropy, d.index < FIXED_K


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to learn."""

    name: str
    replay: Replay
    stop_kl: float = math.inf
    """An epoch ends before the minibatch whose KL (k3) exceeds this."""
    least_valid: float = 0.0
    """A minibatch with a smaller share of valid rows is skipped."""


VARIANTS = (
    Variant(name="stored choice set", replay=stored_set),
    Variant(name="K = 5, index clamped", replay=fixed_clamped),
    Variant(name="K = 5, others dropped", replay=fixed_dropped),
    Variant(name="K = 5 clamped, stop at KL > 0.05", replay=fixed_clamped, stop_kl=0.05),
    Variant(name="K = 5 dropped, skip below 0.90 valid", replay=fixed_dropped, least_valid=0.9),
)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What came of a variant."""

    name: str
    score: float
    """Mean score of the sampled choices in the last five updates: 0 uniform, 1 best."""
    first_ratio: float
    first_k3: float
    """Of the first minibatch, before any step: 1 and 0 if the replay is right."""
    last_k3: float
    used: float
    """Share of minibatches from which a step was taken."""


def learn(variant: Variant, *, updates: int, seed: int = 0) -> Learned:
    """PPO on the one-step task, with the variant's replay."""
    generator = torch.Generator().manual_seed(seed)
    policy, world = Scorer(seed=seed), CandidateTask(lanes=DECISIONS)
    optimizer = torch.optim.Adam(policy.weights, lr=_RATE)
    scores, minibatches, used = [], [], 0
    for _ in range(updates):
        batch = sample(policy, world, generator)
        scores.append(float(batch.score.mean()))
        advantage = (batch.score - batch.score.mean()) / batch.score.std()
        for _ in range(EPOCHS):
            for at in torch.randperm(DECISIONS, generator=generator).chunk(MINIBATCHES):
                ratio_and_k3, stepped = _step(variant, policy, optimizer, batch.take(at),
                                              advantage[at])  # fmt: skip
                minibatches.append(ratio_and_k3)
                used += stepped
                if ratio_and_k3[1] > variant.stop_kl:
                    break
    planned = updates * EPOCHS * MINIBATCHES
    return Learned(
        name=variant.name,
        score=sum(scores[-_LAST:]) / len(scores[-_LAST:]),
        first_ratio=minibatches[0][0],
        first_k3=minibatches[0][1],
        last_k3=minibatches[-1][1],
        used=used / planned,
    )


def _step(
    variant: Variant,
    policy: Scorer,
    optimizer: torch.optim.Optimizer,
    d: Decisions,
    advantage: Tensor,
) -> tuple[tuple[float, float], bool]:
    """One clipped-surrogate step; mean ratio and k3 before it, and whether it was taken."""
    log_prob, entropy, valid = variant.replay(policy, d)
    gap = (log_prob - d.log_prob)[valid]
    ratio = gap.exp()
    k3 = float((ratio - 1.0 - gap).mean().detach())
    stepped = k3 <= variant.stop_kl and float(valid.float().mean()) >= variant.least_valid
    if stepped:
        weight = advantage[valid]
        gain = torch.minimum(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight)
        loss = -gain.mean() - 0.01 * entropy[valid].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (float(ratio.mean().detach()), k3), stepped
