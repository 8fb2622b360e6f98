"""Proximal policy optimisation for a pack of members; with several roles it is MAPPO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Observation
from lockstep.core.company import ALONE, Company
from lockstep.core.distributions import Joint
from lockstep.core.learner import UpdateStats
from lockstep.core.programs import Captured, compiled, compiled_method, plain
from lockstep.core.returns import gae
from lockstep.core.rollout import Rollout
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.learners import health
from lockstep.learners.actor_critic import CRITIC, ActorCritic, sliced
from lockstep.learners.audit import Replayed, audit, fetch
from lockstep.learners.batch import Batch, RoleBatch, counted, make_batch, members_first
from lockstep.learners.config import PPOConfig
from lockstep.learners.health import Seen, Stats, Tally
from lockstep.learners.loss import critic_loss, entropy_bonus, imitation_loss, policy_loss
from lockstep.learners.normalise import RunningReward
from lockstep.learners.probe import ROWS, Probe
from lockstep.nets.packing import clipped_step


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One pass over a minibatch or a part of it, before its gradients."""

    loss: Tensor  # []
    seen: Seen
    rebuilt: Replayed  # [P, T, N, A]


class PPO(ActorCritic):
    """P members, each with its own weights, optimizer state and statistics.

    A minibatch is learned from in `accumulate` parts of its lanes, whose gradients are summed: the
    step is the same but for rounding, and takes less memory. So it is with several processes, each
    of which learns from its own lanes of a minibatch: gradients are summed over them, and whatever
    is decided by a statistic is decided by that of all lanes.
    """

    def __init__(
        self,
        config: PPOConfig,
        spec: WorldSpec,
        *,
        seeds: Sequence[int],
        vary: Mapping[str, Sequence[float]] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        compile: bool = False,
        graphs: bool = False,
        accumulate: int = 1,
        company: Company = ALONE,
    ) -> None:
        _check_parts(config, accumulate)
        pack: dict[str, Any] = {"seeds": seeds, "vary": vary, "company": company}
        super().__init__(config, spec, **pack, device=device, dtype=dtype, compile=compile)
        self.accumulate = accumulate
        if accumulate > 1:  # no more rows at once than a step learns from
            self.parts = accumulate * config.minibatches
        centre = config.reward_norm == "running"
        self.rewards = {
            role.name: RunningReward(self.members, device, centre=centre) for role in spec.roles
        }
        self.probe = Probe(self._blank(ROWS), self._afresh, self._joint)
        self._updates = 0  # the version, as the host knows it without asking the device
        # Where one minibatch is the whole batch, its forward pass is the audit's replay, which
        # saves 5 % of an update on one CPU thread. A graph cannot be left half-way for a check.
        self._audits_first_pass = (
            config.minibatches * accumulate == 1 and config.precision == "fp32" and not graphs
        )
        self._clipped_step = clipped_step
        self._compiled = compile
        if compile:
            self._clipped_step = compiled(clipped_step)
            for name in ("_loss", "_rebuilt"):
                setattr(self, name, compiled_method(self, name))
        if graphs:
            for name in ("_batch", "_replay", "_learn"):
                setattr(self, name, Captured(getattr(self, name)))

    def update(self, rollout: Rollout) -> UpdateStats:
        """Advantages, audit, epochs of minibatches; statistics by member."""
        if not rollout.full:
            raise ValueError(
                f"update() needs a full rollout, got {rollout.written} of {rollout.steps} rows; "
                "collect first"
            )
        stages = self._batch, self._replay, self._learn
        if rollout.scripted:  # there are few of these, and graphs hold the other kind
            stages = plain(self._batch), plain(self._replay), plain(self._learn)
        prepare, replay, learn = stages
        batch = prepare(rollout)
        stats = dict(batch.stats)
        first: Forward | None = None
        if self.config.audit or self.config.precision != "fp32":
            if self._audits_first_pass:
                first = self._loss(batch, count=True)
                replayed = _by_lane([first.rebuilt])
            else:
                replayed, batch = replay(batch)
            precision = self.config.precision
            worst = audit(self.spec, rollout, replayed, self.version, precision=precision)
            gaps = self.company.max(torch.stack(list(worst.values())))
            stats |= {name: gap.expand(self.members) for name, gap in zip(worst, gaps, strict=True)}
        for name, moments in batch.rewards.items():
            self.rewards[name].take(moments)  # a refused rollout leaves no trace
        stats |= learn(batch) if first is None else learn(batch, first)
        stats |= self.probe.look(self._updates, self._seen(batch))
        self.version += 1
        self._updates += 1
        return UpdateStats(scalars=fetch(stats))

    def _seen(self, batch: Batch) -> dict[str, Observation]:
        """Each role's observations, in the first update those of all lanes: it keeps some."""
        obs = {name: role.obs for name, role in batch.roles.items()}
        if self._updates:
            return obs
        return {
            name: seen.map(lambda x: self.company.joined(x, dim=2)) for name, seen in obs.items()
        }

    def _batch(self, rollout: Rollout) -> Batch:
        """Members first, with advantages of normalised rewards."""
        every_step = self.spec.every_step
        estimates, rewards = {}, {}
        for role in self.spec.roles:
            rows = rollout.roles[role.name]
            reward = rows.reward
            if self.config.reward_norm != "none":
                running = self.rewards[role.name]
                reward, rewards[role.name] = running.normalise(reward, self.company)

            def of_agents(x: Tensor, like: Tensor = reward) -> Tensor:
                return x.unsqueeze(-1).expand_as(like)  # [T, L, A]

            estimates[role.name] = gae(
                reward,
                rows.value,
                rows.next_value,
                of_agents(rollout.terminated),
                of_agents(rollout.truncated),
                gamma=self._discount(role, reward.shape[1]),
                lam=self._decay(role, reward.shape[1]),
                elapsed=None if every_step else of_agents(rollout.elapsed),
                acts=None if every_step else rows.obs.acts,
            )
        batch = make_batch(rollout, self.members, estimates, every_step=every_step)
        (batch,) = counted([batch], self.company)
        stats: Stats = {}
        for name, mine in batch.roles.items():
            stats |= health.of_rollout(name, mine, rollout.roles[name].reward, self.company)
        return replace(batch.standardised(self.company), stats=stats, rewards=rewards)

    def _discount(self, role: RoleSpec, lanes: int) -> Any:
        """One number, or `[L, 1]` where members differ."""
        own = self._by_lane("discount", lanes)
        return role.discount if own is None else own

    def _decay(self, role: RoleSpec, lanes: int) -> Any:
        """One number, or `[L, 1]` where members differ."""
        if "gae_lambda" in self._varied:
            return self._by_lane("gae_lambda", lanes)
        return self.config.decay(role.name)

    @torch.no_grad()
    def _replay(self, batch: Batch) -> tuple[Replayed, Batch]:
        """Every decision and value rebuilt from what was stored, as `[T, L, A]`.

        In other precisions than fp32 the batch that comes back judges steps by these log-probs, the
        learner's own, rather than by those that acted.
        """
        if self._compiled and self.parts * self.config.minibatches == 1:
            with torch.enable_grad():  # the program that learning needs too, so none is made anew
                parts = [self._loss(batch, count=True).rebuilt]
        else:
            parts = [self._rebuilt(part) for part in batch.parts(self.parts)]
        replayed = _by_lane(parts)
        if self.config.precision != "fp32":
            turn = members_first(self.members)
            batch = batch.with_log_prob({name: turn(x) for name, x in replayed.log_prob.items()})
        return replayed, batch

    def _rebuilt(self, batch: Batch) -> Replayed:
        both = {name: self._rebuild(name, role, batch) for name, role in batch.roles.items()}
        return _replayed(both, self._values(batch.state))

    def _rebuild(self, name: str, role: RoleBatch, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy `[P, T, N, A]` of stored decisions."""
        return self._law(name, role, batch).log_prob_and_entropy(role.action)

    def _law(self, name: str, role: RoleBatch, batch: Batch) -> Joint:
        return self.policy(name, role.obs, role.memory, batch.starts)[0]

    def _learn(self, batch: Batch, forward: Forward | None = None) -> Stats:
        """Epochs of minibatches; `forward` is the first minibatch's pass if it was made already."""
        config = self.config
        tally, stopped = Tally(), self._full(0.0)
        learning = torch.ones(self.members, dtype=torch.bool, device=self.device)
        for epoch in range(config.epochs):
            in_epoch, epoch_kl, epoch_taken = learning, self._full(0.0), self._full(0.0)
            for minibatch in self._minibatches(batch):
                gradients, seen = self._gradients(minibatch, forward, count=epoch == 0)
                forward = None
                roles = minibatch.roles
                kl = torch.stack([seen.means[f"train/{name}/approx_kl"] for name in roles]).amax(0)
                seen.peaks["train/max_kl"] = kl
                if self._limited("kl_stop_minibatch"):
                    in_epoch = in_epoch & (kl <= self._per_member("kl_stop_minibatch"))
                seen.means |= self._step(gradients, in_epoch)
                tally.add(seen, in_epoch)
                epoch_kl += torch.where(in_epoch, kl, 0.0)
                epoch_taken += in_epoch
            stopped += epoch_taken < config.minibatches
            if self._limited("kl_stop_update"):
                limit = self._per_member("kl_stop_update")
                learning = learning & (epoch_kl <= limit * epoch_taken.clamp(min=1))
        return {
            **tally.stats(),
            **_before_any_step(tally.first.means),
            "train/stopped_epochs": stopped,
            "train/lr_actor": self.optimizers[self.spec.roles[0].name].lr,
            "train/lr_critic": self.optimizers[CRITIC].lr,
        }

    def _limited(self, setting: str) -> bool:
        """Whether a limit is set, for all members or for each its own."""
        return setting in self._varied or getattr(self.config, setting) is not None

    def _minibatches(self, batch: Batch) -> list[Batch]:
        n = self.config.minibatches
        if n == 1:
            return [batch]
        order = self.streams.draw("minibatches").uniform(self.config.lanes).argsort(dim=-1)
        self.streams.tick()
        parts = order.chunk(n, dim=-1)
        return counted([batch.share(index, self.company) for index in parts], self.company)

    def _gradients(
        self, minibatch: Batch, forward: Forward | None, *, count: bool
    ) -> tuple[Sequence[Tensor], Seen]:
        """Gradients of every network, summed over the minibatch's parts and over processes.

        `forward` as above.
        """
        weights = [pack.weights for pack in self.packs.values()]
        total: Sequence[Tensor] = ()
        seen = Seen()
        for part in minibatch.parts(self.accumulate):
            # One compiled program serves all epochs; what it counts too often is left out.
            forward = forward or self._loss(part, count=count or self._compiled)
            gradients = torch.autograd.grad(forward.loss, weights)
            if total:
                gradients = tuple(a + b for a, b in zip(total, gradients, strict=True))
            total, seen, forward = gradients, seen + forward.seen, None
        seen = seen if count else seen.uncounted()
        return self.company.sums(total), seen.over(self.company)

    def _loss(self, batch: Batch, *, count: bool) -> Forward:
        """One forward pass over all networks; members' gradients do not meet in the sum.

        With `count` it also takes stock of what policies may choose from.
        """
        config, seen = self.config, Seen()
        value = self._values(batch.state)
        loss = critic_loss(batch.roles, value, value_clip=self._by_row("value_clip"), seen=seen)
        both = {}
        for name, role in batch.roles.items():
            law = self._law(name, role, batch)
            both[name] = log_prob, entropy = law.log_prob_and_entropy(role.action)
            if batch.scripted:
                loss = loss + imitation_loss(name, role, log_prob, seen=seen)
            else:
                clip_ratio = self._by_row("clip_ratio")
                loss = loss + policy_loss(name, role, log_prob, clip_ratio=clip_ratio, seen=seen)
            parts, per = self.spec.role(name).action, config.entropy_per
            bonus = entropy_bonus(name, role, law, entropy, parts=parts, per=per, seen=seen)
            loss = loss - self._per_member("entropy_weight") * bonus
            if count:
                seen.count(name, law, role)
        return Forward(loss=loss.sum(), seen=seen, rebuilt=_replayed(both, value))

    def _step(self, gradients: Sequence[Tensor], active: Tensor) -> Stats:
        """One clipped Adam step of every network for the members in `active`."""
        limit = self._per_member("max_grad_norm")
        stats = {}
        for (name, optimizer), gradient in zip(self.optimizers.items(), gradients, strict=True):
            norm = self._clipped_step(optimizer, gradient, limit, active)
            stats[f"train/{name}/grad_norm"] = norm
        return stats

    def member(self, index: int) -> "PPO":
        """One member as a learner of its own, with copies of its weights and statistics."""
        seeds, device = [self.seeds[index]], self.device
        one = PPO(self._alone(index), self.spec, seeds=seeds, device=device, dtype=self.dtype)
        one.load_state_dict(sliced(self.state_dict(), index))
        return one

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future or is reported in it."""
        rewards = {name: running.state_dict() for name, running in self.rewards.items()}
        return super().state_dict() | {"rewards": rewards, "probe": self.probe.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes all of it up again in place."""
        super().load_state_dict(state)
        for name, running in self.rewards.items():
            running.load_state_dict(state["rewards"][name])
        self.probe.load_state_dict(state["probe"])
        self._updates = int(state["version"])


def _replayed(both: dict[str, tuple[Tensor, Tensor]], value: dict[str, Tensor]) -> Replayed:
    return Replayed(
        log_prob={name: log_prob for name, (log_prob, _) in both.items()},
        entropy={name: entropy for name, (_, entropy) in both.items()},
        value=value,
    )


def _by_lane(parts: Sequence[Replayed]) -> Replayed:
    """Lanes in parts of `[P, T, N, A]` as the audit compares them, `[T, L, A]`."""

    def joined(what: str) -> dict[str, Tensor]:
        by_role: list[dict[str, Tensor]] = [getattr(part, what) for part in parts]
        return {
            name: torch.cat([x[name].detach() for x in by_role], dim=2).movedim(0, 1).flatten(1, 2)
            for name in by_role[0]
        }

    return Replayed(**{what: joined(what) for what in ("log_prob", "entropy", "value")})


def _check_parts(config: PPOConfig, accumulate: int) -> None:
    lanes = config.lanes // config.minibatches
    if accumulate < 1 or lanes % accumulate:
        fits = max(n for n in range(1, lanes + 1) if lanes % n == 0 and n <= max(accumulate, 1))
        raise ValueError(
            f"accumulate ({accumulate}) must divide the lanes of a minibatch ({config.lanes} / "
            f"{config.minibatches} = {lanes}), since it splits lanes and never time; try {fits}"
        )


def _before_any_step(stats: Stats) -> Stats:
    """What the loss saw in the first minibatch; `fetch` demands that it is nothing."""
    return {
        name.replace("train/", "audit/first/"): value
        for name, value in stats.items()
        if name.endswith(("/approx_kl", "/clip_fraction"))
    }
