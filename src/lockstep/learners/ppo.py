"""Proximal policy optimisation for a pack of members; with several roles it is MAPPO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import action_dims
from lockstep.core.learner import UpdateStats
from lockstep.core.programs import Captured
from lockstep.core.returns import gae
from lockstep.core.rollout import Rollout
from lockstep.core.world import WorldSpec
from lockstep.learners.actor_critic import ActorCritic, sliced
from lockstep.learners.audit import Replayed, audit, fetch
from lockstep.learners.batch import Batch, RoleBatch, make_batch, weighted_mean
from lockstep.learners.config import PPOConfig
from lockstep.learners.normalise import RunningReward
from lockstep.nets.packing import clip_by_norm

Stats = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One pass over a minibatch, before its gradients."""

    loss: Tensor  # []
    stats: Stats  # [P] each
    replayed: Replayed


class PPO(ActorCritic):
    """P members, each with its own weights, optimizer state and statistics."""

    def __init__(
        self,
        config: PPOConfig,
        spec: WorldSpec,
        *,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compile: bool = False,
        graphs: bool = False,
    ) -> None:
        super().__init__(config, spec, seeds=seeds, device=device, dtype=dtype, compile=compile)
        self.rewards = {role.name: RunningReward(self.members, device) for role in spec.roles}
        # Where one minibatch is the whole batch, its forward pass is the audit's replay, which
        # saves 5 % of an update on one CPU thread. A graph cannot be left half-way for a check.
        self._audits_first_pass = (
            config.minibatches == 1 and config.precision == "fp32" and not graphs
        )
        if graphs:
            captured: dict[str, Any] = {
                name: Captured(getattr(self, name)) for name in ("_batch", "_replay", "_learn")
            }
            vars(self).update(captured)

    def update(self, rollout: Rollout) -> UpdateStats:
        """Advantages, audit, epochs of minibatches; statistics by member."""
        if not rollout.full:
            raise ValueError(
                f"update() needs a full rollout, got {rollout.written} of {rollout.steps} rows; "
                "collect first"
            )
        batch = self._batch(rollout)
        stats: Stats = {
            f"train/{name}/explained_variance": explained_variance(role)
            for name, role in batch.roles.items()
        }
        first: Forward | None = None
        if self.config.audit or self.config.precision != "fp32":
            if self._audits_first_pass:
                first = self._loss(batch)
                replayed = first.replayed
            else:
                replayed, batch = self._replay(batch)
            precision = self.config.precision
            worst = audit(self.spec, rollout, replayed, self.version, precision=precision)
            stats |= {name: gap.expand(self.members) for name, gap in worst.items()}
        stats |= self._learn(batch) if first is None else self._learn(batch, first)
        self.version += 1
        return UpdateStats(scalars=fetch(stats))

    def _batch(self, rollout: Rollout) -> Batch:
        """Members first, with advantages of normalised rewards."""
        advantage = {}
        for role in self.spec.roles:
            rows = rollout.roles[role.name]
            reward = rows.reward
            if self.config.reward_norm == "running":
                reward = self.rewards[role.name].normalise(reward)

            def of_agents(x: Tensor, like: Tensor = reward) -> Tensor:
                return x.unsqueeze(-1).expand_as(like)  # [T, L, A]

            every_step = self.spec.every_step
            advantage[role.name] = gae(
                reward,
                rows.value,
                rows.next_value,
                of_agents(rollout.terminated),
                of_agents(rollout.truncated),
                gamma=role.discount,
                lam=self.config.decay(role.name),
                elapsed=None if every_step else of_agents(rollout.elapsed),
                acts=None if every_step else rows.obs.acts,
            )
        return make_batch(rollout, self.members, advantage)

    @torch.no_grad()
    def _replay(self, batch: Batch) -> tuple[Replayed, Batch]:
        """Every decision and value rebuilt from what was stored, as `[T, L, A]`.

        In other precisions than fp32 the batch that comes back judges steps by these log-probs, the
        learner's own, rather than by those that acted.
        """
        pairs = {name: self._rebuild(name, role, batch) for name, role in batch.roles.items()}
        replayed = _replayed(pairs, self._values(batch.state))
        if self.config.precision != "fp32":
            batch = batch.with_log_prob({name: log_prob for name, (log_prob, _) in pairs.items()})
        return replayed, batch

    def _rebuild(self, name: str, role: RoleBatch, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy `[P, T, N, A]` of stored decisions."""
        params, _ = self._parameters(name, role.obs, role.memory, batch.starts)
        return self._joint(name, params, role.obs).log_prob_and_entropy(role.action)

    def _learn(self, batch: Batch, forward: Forward | None = None) -> Stats:
        """Epochs of minibatches; `forward` is the first minibatch's pass if it was made already."""
        config = self.config
        total: Stats = {}
        extra: Stats = {}
        taken = self._per_member(0.0)
        learning = torch.ones(self.members, dtype=torch.bool, device=self.device)
        for _ in range(config.epochs):
            in_epoch, epoch_kl, epoch_taken = learning, self._per_member(0.0), self._per_member(0.0)
            for part in self._minibatches(batch):
                forward = forward or self._loss(part)
                loss, stats, forward = forward.loss, forward.stats, None
                kl = torch.stack([stats[f"train/{name}/approx_kl"] for name in part.roles]).amax(0)
                if config.kl_stop_minibatch is not None:
                    in_epoch = in_epoch & (kl <= config.kl_stop_minibatch)
                stats |= self._step(loss, in_epoch)
                if not total:
                    total = {name: torch.zeros_like(value) for name, value in stats.items()}
                    extra = _before_any_step(stats) | {"train/max_kl": kl}
                for name, value in stats.items():
                    total[name] += torch.where(in_epoch, value, 0.0)
                taken += in_epoch
                epoch_kl += torch.where(in_epoch, kl, 0.0)
                epoch_taken += in_epoch
                extra["train/max_kl"] = torch.maximum(extra["train/max_kl"], kl)
            if config.kl_stop_update is not None:
                learning = learning & (epoch_kl <= config.kl_stop_update * epoch_taken.clamp(min=1))
        mean = {name: value / taken.clamp(min=1) for name, value in total.items()}
        return mean | extra | {"train/minibatches": taken}

    def _minibatches(self, batch: Batch) -> list[Batch]:
        n = self.config.minibatches
        if n == 1:
            return [batch]
        order = self.streams.draw("minibatches").uniform(self.config.lanes).argsort(dim=-1)
        self.streams.tick()
        return [batch.lanes(index) for index in order.chunk(n, dim=-1)]

    def _loss(self, batch: Batch) -> Forward:
        """One forward pass over all networks; members' gradients do not meet in the sum."""
        stats: Stats = {}
        value = self._values(batch.state)
        loss = self._critic_loss(batch, value, stats)
        pairs = {}
        for name, role in batch.roles.items():
            pairs[name] = self._rebuild(name, role, batch)
            loss = loss + self._policy_loss(name, role, *pairs[name], stats)
        return Forward(loss=loss.sum(), stats=stats, replayed=_replayed(pairs, value))

    def _policy_loss(
        self, name: str, role: RoleBatch, log_prob: Tensor, entropy: Tensor, stats: Stats
    ) -> Tensor:
        config = self.config
        # A wrong shape here would broadcast every row against every advantage and learn nothing.
        assert log_prob.shape == role.log_prob.shape == role.advantage.shape
        log_ratio = torch.where(role.weight > 0, log_prob - role.log_prob, 0.0)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
        surrogate = torch.minimum(ratio * role.advantage, clipped * role.advantage)
        policy_loss = -weighted_mean(surrogate, role.weight)
        mean_entropy = weighted_mean(entropy, role.weight)
        with torch.no_grad():
            outside = ((ratio - 1).abs() > config.clip_ratio).to(ratio.dtype)
            stats[f"train/{name}/policy_loss"] = policy_loss.detach()
            stats[f"train/{name}/entropy"] = mean_entropy.detach()
            stats[f"train/{name}/approx_kl"] = weighted_mean(ratio - 1 - log_ratio, role.weight)
            stats[f"train/{name}/clip_fraction"] = weighted_mean(outside, role.weight)
        per_dimension = config.entropy_per == "dimension"
        dims = action_dims(self.spec.role(name).action) if per_dimension else 1
        return policy_loss - config.entropy_weight * mean_entropy / dims

    def _critic_loss(self, batch: Batch, values: dict[str, Tensor], stats: Stats) -> Tensor:
        error, count = self._per_member(0.0), self._per_member(0.0)
        for name, value in values.items():
            role = batch.roles[name]
            miss = (value - role.target) ** 2
            if self.config.value_clip is not None:
                limit = self.config.value_clip
                near = role.value + (value - role.value).clamp(-limit, limit)
                miss = torch.maximum(miss, (near - role.target) ** 2)
            error = error + (miss * role.weight).flatten(1).sum(dim=1)
            count = count + role.weight.flatten(1).sum(dim=1)
        loss = 0.5 * error / count.clamp(min=1.0)
        stats["train/value_loss"] = loss.detach()
        return loss

    def _step(self, loss: Tensor, active: Tensor) -> Stats:
        """One clipped Adam step of every network for the members in `active`."""
        gradients = torch.autograd.grad(loss, [pack.weights for pack in self.packs.values()])
        limit = self._per_member(self.config.max_grad_norm)
        stats = {}
        for (name, optimizer), gradient in zip(self.optimizers.items(), gradients, strict=True):
            clipped, norm = clip_by_norm(gradient, limit)
            optimizer.step(clipped, active)
            stats[f"train/{name}/grad_norm"] = norm
        return stats

    def member(self, index: int) -> "PPO":
        """One member as a learner of its own, with copies of its weights and statistics."""
        seeds, device = [self.seeds[index]], self.device
        one = PPO(self.config, self.spec, seeds=seeds, device=device, dtype=self.dtype)
        one.load_state_dict(sliced(self.state_dict(), index))
        return one

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future, running reward statistics included."""
        rewards = {name: running.state_dict() for name, running in self.rewards.items()}
        return super().state_dict() | {"rewards": rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes all of it up again in place."""
        super().load_state_dict(state)
        for name, running in self.rewards.items():
            running.load_state_dict(state["rewards"][name])


def _replayed(pairs: dict[str, tuple[Tensor, Tensor]], value: dict[str, Tensor]) -> Replayed:
    """Log-probs, entropies and values `[P, T, N, A]` as the audit compares them, `[T, L, A]`."""

    def lanes(x: Tensor) -> Tensor:
        return x.detach().movedim(0, 1).flatten(1, 2)

    return Replayed(
        log_prob={name: lanes(log_prob) for name, (log_prob, _) in pairs.items()},
        entropy={name: lanes(entropy) for name, (_, entropy) in pairs.items()},
        value={name: lanes(v) for name, v in value.items()},
    )


def _before_any_step(stats: Stats) -> Stats:
    """What the loss saw in the first minibatch; `fetch` demands that it is nothing."""
    return {
        name.replace("train/", "audit/first/"): value
        for name, value in stats.items()
        if name.endswith(("/approx_kl", "/clip_fraction"))
    }


def explained_variance(role: RoleBatch) -> Tensor:
    """Share of the targets' variance that the collected values explain, by member `[P]`.

    Only rows with a decision count; it is 0 where the targets do not vary.
    """
    lead = (-1,) + (1,) * (role.target.ndim - 1)

    def variance(x: Tensor) -> Tensor:
        centre = weighted_mean(x, role.weight).view(lead)
        return weighted_mean((x - centre) ** 2, role.weight)

    spread = variance(role.target)
    share = 1 - variance(role.target - role.value) / spread.clamp(min=1e-12)
    return torch.where(spread > 1e-12, share, 0.0)
