"""Proximal policy optimisation for a pack of members; with several roles it is MAPPO."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Observation, action_dims
from lockstep.core.distributions import Joint
from lockstep.core.learner import Decision, UpdateStats
from lockstep.core.programs import Captured, compiled
from lockstep.core.returns import gae
from lockstep.core.rollout import Rollout, allocate
from lockstep.core.streams import Draw, Streams, lane_keys
from lockstep.core.world import CriticInput, WorldSpec
from lockstep.learners.audit import Replayed, audit, read_stats
from lockstep.learners.batch import Batch, RoleBatch, make_batch, weighted_mean
from lockstep.learners.config import PPOConfig
from lockstep.learners.normalise import RunningReward
from lockstep.nets.critics import AttentionCritic, StateCritic
from lockstep.nets.packing import Adam, Pack, clip_by_norm
from lockstep.nets.policy import Policy, joint

Stats = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One pass over a minibatch, before its gradients."""

    loss: Tensor  # []
    stats: Stats  # [P] each
    replayed: Replayed


class PPO:
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
        self.config, self.spec = config, spec
        self.members = len(seeds)
        self.device, self.dtype = torch.device(device), dtype
        self.version = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams(lane_keys(seeds, lanes=1, device=device))  # for minibatches

        def pack(build: Any, salt: int) -> Pack:
            return Pack(build, [s * 1009 + salt for s in seeds], device=device, dtype=dtype)

        self.policies = {
            role.name: pack(
                lambda role=role: Policy(
                    role,
                    unit_head=config.unit_head,
                    hidden=config.hidden,
                    scorer=config.actor == "scorer",
                    base=config.scorer_base,
                    memory=config.memory == "gru",
                ),
                salt,
            )
            for salt, role in enumerate(spec.roles)
        }
        self.critic = pack(self._build_critic, len(spec.roles))
        self.packs = {**self.policies, "critic": self.critic}
        self.optimizers = {
            name: Adam(p.weights, lr=self._per_member(self._rate(name)))
            for name, p in self.packs.items()
        }
        self.rewards = {role.name: RunningReward(self.members, device) for role in spec.roles}
        self._graphs = graphs
        if compile:
            self._act = MethodType(compiled(PPO._act), self)  # type: ignore[method-assign]
        if graphs:
            self._batch, self._replay, self._learn = (  # type: ignore[method-assign]
                Captured(self._batch),
                Captured(self._replay),
                Captured(self._learn),
            )

    def _build_critic(self) -> AttentionCritic | StateCritic:
        config = self.config
        if config.critic == "state":
            return StateCritic(self.spec, hidden=config.hidden)
        return AttentionCritic(
            self.spec, hidden=config.hidden, heads=config.heads, fused=self.members == 1
        )

    def _rate(self, name: str) -> float:
        return self.config.lr_critic if name == "critic" else self.config.lr_actor

    def _per_member(self, value: float) -> Tensor:
        return torch.full((self.members,), value, dtype=self.dtype, device=self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.config.precision == "bf16"
        )

    # Acting

    def rollout(self) -> Rollout:
        """Storage for `steps` of every member's `lanes`."""
        critic: AttentionCritic | StateCritic = self.critic.module  # type: ignore[assignment]
        return allocate(
            self.spec,
            steps=self.config.steps,
            lanes=self.members * self.config.lanes,
            device=self.device,
            critic=critic.inputs,
            memory={name: self.memory(name).shape[-1] for name in self.policies},
            dtype=self.dtype,
        )

    def memory(self, role: str) -> Tensor:
        """Zeros `[L, A, Z]`."""
        policy: Policy = self.policies[role].module  # type: ignore[assignment]
        lanes, agents = self.members * self.config.lanes, self.spec.role(role).agents
        return torch.zeros(lanes, agents, policy.memory_size, dtype=self.dtype, device=self.device)

    def _parameters(
        self, role: str, obs: Observation, memory: Tensor, starts: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Distribution parameters for `[P, T, N, A, ...]`; acting, audit and loss all come here."""
        with self._precision():
            params, memory = self.policies[role](obs.features, obs.entities, memory, starts)
        return params, memory

    def _joint(self, role: str, params: dict[str, Tensor], obs: Observation) -> Joint:
        return joint(self.spec.role(role), params, obs, self.config.unit_head)

    @torch.no_grad()
    def act(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        streams: Streams,
        *,
        deterministic: bool = False,
    ) -> Decision:
        """Decides for `[L, A, ...]`, each lane with its own member's weights."""
        draw = streams.draw(f"act/{role}")
        return self._act(role, observation, memory, starts, draw, deterministic)

    def _act(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        draw: Draw,
        deterministic: bool,
    ) -> Decision:
        P = self.members
        N = starts.shape[0] // P

        def members(x: Tensor) -> Tensor:
            return x.reshape(P, N, *x.shape[1:])

        def lanes(x: Tensor) -> Tensor:
            return x.expand(P, 1, N, *x.shape[3:]).flatten(0, 2)  # [L, ...]

        obs = observation.map(lambda x: members(x).unsqueeze(1))  # [P, 1, N, A, ...]
        params, memory = self._parameters(role, obs, members(memory), members(starts).unsqueeze(1))
        choice = self._joint(role, {name: lanes(x) for name, x in params.items()}, observation)
        action = choice.mode() if deterministic else choice.sample(draw)
        log_prob, entropy = choice.log_prob_and_entropy(action)
        return Decision(
            action=action, log_prob=log_prob, entropy=entropy, memory=memory.flatten(0, 1)
        )

    @torch.no_grad()
    def value(self, state: CriticInput) -> dict[str, Tensor]:
        """Values `[..., L, A]` of critic inputs `[..., L, ...]` with any one or no leading dim."""
        P = self.members
        first = next(iter(state.values()))
        name = next(iter(state))
        lead = first.ndim - len(self.spec.critic[name].shape) - 1  # 0 or 1 dims before L
        value = self._values(
            {k: x.unflatten(lead, (P, -1)).movedim(lead, 0) for k, x in state.items()}
        )
        return {k: v.movedim(0, lead).flatten(lead, lead + 1) for k, v in value.items()}

    def _values(self, state: CriticInput) -> dict[str, Tensor]:
        with self._precision():
            value: dict[str, Tensor] = self.critic(state)
        return {name: v.to(self.dtype) for name, v in value.items()}

    # Learning

    def update(self, rollout: Rollout) -> UpdateStats:
        """Advantages, audit, epochs of minibatches; statistics by member."""
        config = self.config
        batch = self._batch(rollout)
        stats: Stats = {"train/explained_variance": _explained_variance(batch)}
        first: Forward | None = None
        if config.audit or config.precision != "fp32":
            if self._graphs or config.minibatches > 1 or config.precision != "fp32":
                replayed, batch = self._replay(batch)
            else:  # the first minibatch is the whole batch: its forward pass is the replay
                first = self._loss(batch)
                replayed = first.replayed
            worst = audit(self.spec, rollout, replayed, self.version, precision=config.precision)
            stats |= {name: gap.expand(self.members) for name, gap in worst.items()}
        stats |= self._learn(batch) if first is None else self._learn(batch, first)
        self.version += 1
        return UpdateStats(scalars=read_stats(stats))

    def _batch(self, rollout: Rollout) -> Batch:
        """Members first, with advantages of normalised rewards."""
        flags = {
            "terminated": rollout.terminated.unsqueeze(-1),
            "truncated": rollout.truncated.unsqueeze(-1),
        }
        advantage = {}
        for role in self.spec.roles:
            rows = rollout.roles[role.name]
            reward = rows.reward
            if self.config.reward_norm == "running":
                reward = self.rewards[role.name].normalise(reward)
            timing: dict[str, Tensor] = {}
            if not self.spec.every_step:
                elapsed = rollout.elapsed.unsqueeze(-1).expand_as(reward)
                timing = {"elapsed": elapsed, "acts": rows.obs.acts}
            advantage[role.name] = gae(
                reward,
                rows.value,
                rows.next_value,
                **{name: flag.expand_as(reward) for name, flag in flags.items()},
                gamma=role.discount,
                lam=self.config.decay(role.name),
                **timing,
            )
        return make_batch(rollout, self.members, advantage, rollout.memory)

    @torch.no_grad()
    def _replay(self, batch: Batch) -> tuple[Replayed, Batch]:
        """Every decision and value rebuilt from what was stored, as `[T, L, A]`.

        In other precisions than fp32 the batch that comes back judges steps by these log-probs, the
        learner's own, rather than by those that acted.
        """
        pairs = {
            name: self._log_prob(name, role, batch.starts) for name, role in batch.roles.items()
        }
        replayed = _replayed(pairs, self._values(batch.state))
        if self.config.precision != "fp32":
            batch = batch.with_log_prob({name: log_prob for name, (log_prob, _) in pairs.items()})
        return replayed, batch

    def _log_prob(self, name: str, role: RoleBatch, starts: Tensor) -> tuple[Tensor, Tensor]:
        params, _ = self._parameters(name, role.obs, role.memory, starts)
        return self._joint(name, params, role.obs).log_prob_and_entropy(role.action)

    def _learn(self, batch: Batch, forward: Forward | None = None) -> Stats:
        """Epochs of minibatches; `forward` is the first minibatch's pass if it was made already."""
        config = self.config
        total: Stats = {}
        first: Stats = {}
        taken = self._per_member(0.0)
        learning = torch.ones(self.members, dtype=torch.bool, device=self.device)
        for _ in range(config.epochs):
            in_epoch, epoch_kl, epoch_taken = learning, self._per_member(0.0), 0
            for part in self._minibatches(batch):
                forward = forward or self._loss(part)
                loss, stats, forward = forward.loss, forward.stats, None
                kl = torch.stack([stats[f"train/{name}/approx_kl"] for name in part.roles]).amax(
                    dim=0
                )
                if config.kl_stop_minibatch is not None:
                    in_epoch = in_epoch & (kl <= config.kl_stop_minibatch)
                stats |= self._step(loss, in_epoch)
                if not total:
                    total = {name: torch.zeros_like(value) for name, value in stats.items()}
                    first = _first_minibatch(stats)
                for name, value in stats.items():
                    total[name] += torch.where(in_epoch, value, 0.0)
                taken += in_epoch
                epoch_kl, epoch_taken = epoch_kl + kl, epoch_taken + 1
            if config.kl_stop_update is not None:
                learning = learning & (epoch_kl / epoch_taken <= config.kl_stop_update)
        mean = {name: value / taken.clamp(min=1) for name, value in total.items()}
        return mean | first | {"train/minibatches": taken}

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
            pairs[name] = self._log_prob(name, role, batch.starts)
            loss = loss + self._policy_loss(name, role, *pairs[name], stats)
        return Forward(loss=loss.sum(), stats=stats, replayed=_replayed(pairs, value))

    def _policy_loss(
        self, name: str, role: RoleBatch, log_prob: Tensor, entropy: Tensor, stats: Stats
    ) -> Tensor:
        config = self.config
        log_ratio = log_prob - role.log_prob
        # A wrong shape here would broadcast every row against every advantage and learn nothing.
        assert log_ratio.shape == role.advantage.shape
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
        surrogate = torch.minimum(ratio * role.advantage, clipped * role.advantage)
        policy_loss = -weighted_mean(surrogate, role.weight)
        mean_entropy = weighted_mean(entropy, role.weight)
        if config.entropy_per == "dimension":
            mean_entropy = mean_entropy / action_dims(self.spec.role(name).action)
        with torch.no_grad():
            outside = ((ratio - 1).abs() > config.clip_ratio).to(ratio.dtype)
            stats[f"train/{name}/policy_loss"] = policy_loss.detach()
            stats[f"train/{name}/entropy"] = mean_entropy.detach()
            stats[f"train/{name}/approx_kl"] = weighted_mean(ratio - 1 - log_ratio, role.weight)
            stats[f"train/{name}/clip_fraction"] = weighted_mean(outside, role.weight)
        return policy_loss - config.entropy_weight * mean_entropy

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
        loss = 0.5 * error / count
        stats["train/value_loss"] = loss.detach()
        return loss

    def _step(self, loss: Tensor, active: Tensor) -> Stats:
        """One clipped Adam step of every network for the members in `active`."""
        gradients = torch.autograd.grad(loss, [p.weights for p in self.packs.values()])
        limit = self._per_member(self.config.max_grad_norm)
        stats = {}
        for (name, optimizer), gradient in zip(self.optimizers.items(), gradients, strict=True):
            clipped, norm = clip_by_norm(gradient, limit)
            optimizer.step(clipped, active)
            stats[f"train/{name}/grad_norm"] = norm
        return stats

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers, reward statistics, minibatch streams and the version."""
        return {
            "weights": {name: p.weights.detach().clone() for name, p in self.packs.items()},
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "rewards": {name: r.state_dict() for name, r in self.rewards.items()},
            "streams": self.streams.state_dict(),
            "version": self.version.clone(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes all of it up again in place."""
        for name, saved in state["weights"].items():
            self.packs[name].weights.copy_(saved)
        for name, saved in state["optimizers"].items():
            self.optimizers[name].load_state_dict(saved)
        for name, saved in state["rewards"].items():
            self.rewards[name].load_state_dict(saved)
        self.streams.load_state_dict(state["streams"])
        self.version.copy_(state["version"])


def _replayed(pairs: dict[str, tuple[Tensor, Tensor]], value: dict[str, Tensor]) -> Replayed:
    """Log-probs, entropies and values `[P, T, N, A]` as the audit compares them, `[T, L, A]`."""

    def lanes(x: Tensor) -> Tensor:
        return x.detach().movedim(0, 1).flatten(1, 2)

    return Replayed(
        log_prob={name: lanes(log_prob) for name, (log_prob, _) in pairs.items()},
        entropy={name: lanes(entropy) for name, (_, entropy) in pairs.items()},
        value={name: lanes(v) for name, v in value.items()},
    )


def _first_minibatch(stats: Stats) -> Stats:
    """What the loss itself saw before any step; `read_stats` demands that it is nothing."""
    return {
        name.replace("train/", "audit/first/"): value
        for name, value in stats.items()
        if name.endswith(("/approx_kl", "/clip_fraction"))
    }


def _explained_variance(batch: Batch) -> Tensor:
    """Share of the targets' variance that the collected values explain, by member."""
    target = torch.cat([role.target.flatten(1) for role in batch.roles.values()], dim=1)
    value = torch.cat([role.value.flatten(1) for role in batch.roles.values()], dim=1)
    return 1 - (target - value).var(dim=1) / target.var(dim=1).clamp(min=1e-12)
