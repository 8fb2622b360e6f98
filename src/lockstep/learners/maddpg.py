"""Multi-agent deterministic policy gradients (Lowe et al. 2017) for a pack of members.

It is off-policy: a rollout is only how transitions arrive. What is learned from are draws from the
replay, whose decisions were audited once, when they entered it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Observation, write
from lockstep.core.learner import Decision, UpdateStats
from lockstep.core.programs import Captured
from lockstep.core.rollout import Rollout, allocate
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.trees import mapped
from lockstep.core.world import Views, WorldSpec
from lockstep.errors import AuditFailure
from lockstep.learners.actor_critic import CRITIC, sliced
from lockstep.learners.audit import Replayed, audit, fetch
from lockstep.learners.batch import members_first, split_lanes
from lockstep.learners.config import MADDPGConfig
from lockstep.learners.deterministic import check, chosen, explored, for_critic, gap
from lockstep.learners.joint_q import JointQ
from lockstep.learners.replay import Past, Replay, unique_share
from lockstep.nets.packing import Adam, clip_by_norm

ACTION_LIMIT = {"fp32": 2e-5, "tf32": 2e-2}
"""Largest difference between a stored action in [0, 1] and the one rebuilt for the audit."""


class MADDPG:
    """P members: one deterministic policy for each role, a central critic, and targets of both."""

    def __init__(
        self,
        config: MADDPGConfig,
        spec: WorldSpec,
        *,
        seeds: Sequence[int],
        vary: Mapping[str, Sequence[float]] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        graphs: bool = False,
    ) -> None:
        check(spec)
        self.config, self.spec, self.seeds = config, spec, tuple(seeds)
        self.members = len(seeds)
        self.device, self.dtype = torch.device(device), dtype
        self.vary = {name: tuple(values) for name, values in (vary or {}).items()}
        self.version = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams(lane_keys(seeds, lanes=1, device=device))  # for draws from replay
        self._keys = lane_keys(seeds, lanes=config.lanes, device=device)  # of the lanes' noise
        self.nets = JointQ(config, spec, seeds=seeds, device=self.device, dtype=dtype)
        self.optimizers = {
            name: Adam(pack.weights, lr=self._per_member(_rate(name)))
            for name, pack in self.nets.packs.items()
        }
        self.sigma = self._per_member("sigma")  # [P], as of the rollout that is collected now
        self.replay = Replay(
            spec,
            members=self.members,
            lanes=config.lanes,
            rows=config.rows,
            device=device,
            dtype=dtype,
            rewards=self.nets.n_values,
        )
        self._numbers = {name: self._per_member(name) for name in config.variable}
        self._everyone = torch.ones(self.members, dtype=torch.bool, device=device)
        self._sums = torch.zeros(len(self._names), self.members, dtype=dtype, device=device)
        self._rows = 0  # in the replay, as the host knows it without asking the device
        if graphs:
            captured: dict[str, Any] = {
                name: Captured(getattr(self, name)) for name in ("_rebuild", "_push", "_learn_once")
            }
            vars(self).update(captured)

    def _per_member(self, setting: str) -> Tensor:
        """A setting's numbers `[P]`."""
        values = self.vary.get(setting, (getattr(self.config, setting),) * self.members)
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    @property
    def _names(self) -> tuple[str, ...]:
        """What `_learn_once` reports, in order."""
        roles = [role.name for role in self.spec.roles]
        return (
            "train/q_loss",
            "train/q_mean",
            "replay/unique_share",
            *(f"train/{name}/policy_loss" for name in roles),
            *(f"train/{name}/grad_norm" for name in (*roles, CRITIC)),
        )

    def rollout(self) -> Rollout:
        """Storage for `steps` of every member's `lanes`, with the critic's state."""
        return allocate(
            self.spec,
            steps=self.config.steps,
            lanes=self.members * self.config.lanes,
            device=self.device,
            critic=("state",),
            dtype=self.dtype,
        )

    def memory(self, role: str) -> Tensor:
        """Nothing: `[L, A, 0]`."""
        lanes = self.members * self.config.lanes
        agents = self.spec.role(role).agents
        return torch.zeros(lanes, agents, 0, dtype=self.dtype, device=self.device)

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
        """Decides for `[L, A, ...]`, with noise around it unless `deterministic`.

        A decision that is a point has no density: log-prob and entropy are 0, and nothing asks.
        """
        spec = self.spec.role(role)
        rows = observation.map(lambda x: split_lanes(x, self.members).unsqueeze(1))
        mean = self.nets.means(self.nets.packs, role, rows)  # [P, 1, N, A, n]
        decision = {name: x.flatten(0, 2) for name, x in mean.items()}  # [L, A, n]
        if not deterministic:
            sigma = self.sigma.repeat_interleave(len(starts) // self.members)  # [L]
            epsilon = self._numbers["epsilon"].repeat_interleave(len(starts) // self.members)
            draw = streams.draw(f"act/{role}")
            decision = explored(spec, decision, observation, draw, sigma, epsilon)
        none = torch.zeros(observation.acts.shape, dtype=self.dtype, device=self.device)
        action = chosen(spec, decision, observation)
        return Decision(action=action, log_prob=none, entropy=none, memory=memory)

    def value(self, state: Views) -> dict[str, Tensor]:
        """No opinion of a state without decisions: zeros `[L, A]`, or `[T, L, A]` of a rollout."""
        seen = state["all"]["state"]
        lead = seen.shape[: seen.ndim - len(self.spec.critic["state"].shape)]
        return {
            role.name: torch.zeros(*lead, role.agents, dtype=self.dtype, device=self.device)
            for role in self.spec.roles
        }

    def update(self, rollout: Rollout) -> UpdateStats:
        """Audits the rollout, keeps its transitions, and learns from those that are kept."""
        if not rollout.full:
            raise ValueError(
                f"update() needs a full rollout, got {rollout.written} of {rollout.steps} rows; "
                "collect first"
            )
        decided, gaps = self._rebuild(rollout)
        stats = self._audit(rollout, gaps) if self.config.audit else {}
        self._push(rollout, decided)
        self._rows += rollout.steps
        stats |= self._of_rollout(rollout)
        stats |= self._learn()
        self.sigma.mul_(self._numbers["sigma_decay"] ** (self.config.lanes * self.config.steps))
        self.sigma.copy_(torch.maximum(self.sigma, self._numbers["sigma_floor"]))
        self.version += 1
        return UpdateStats(scalars=fetch(stats))

    @torch.no_grad()
    def _rebuild(self, rollout: Rollout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Each role's decisions as a critic reads them, `[P, T, N, A, U]`, and their gaps.

        The weights that acted and the lanes' streams give every decision again, its noise included;
        the gap `[T, L, A]` is its distance from the stored action.
        """
        T, L = rollout.clock.shape
        streams = Streams(self._keys.repeat(T))
        streams.step.copy_(rollout.clock.flatten())
        sigma, epsilon = (
            x.repeat_interleave(self.config.lanes).repeat(T)  # [T * L]
            for x in (self.sigma, self._numbers["epsilon"])
        )
        by_member = members_first(self.members)
        decided, gaps = {}, {}
        for role in self.spec.roles:
            rows = rollout.roles[role.name]
            flat = rows.obs.map(lambda x: x.flatten(0, 1))  # [T * L, A, ...]
            mean = self.nets.means(self.nets.packs, role.name, rows.obs.map(by_member))
            mean = {n: x.movedim(0, 1).flatten(0, 2) for n, x in mean.items()}  # [T * L, A, n]
            noisy = explored(role, mean, flat, streams.draw(f"act/{role.name}"), sigma, epsilon)
            action = {name: x.flatten(0, 1) for name, x in rows.action.items()}
            gaps[role.name] = gap(role, noisy, action, flat).unflatten(0, (T, L))
            together = for_critic(role, noisy, flat.acts).unflatten(0, (T, L))
            decided[role.name] = by_member(together)
        return decided, gaps

    def _audit(self, rollout: Rollout, gaps: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raises AuditFailure, or returns the largest gap of each role's actions."""
        none = {name: rows.log_prob for name, rows in rollout.roles.items()}
        value = {name: rows.value for name, rows in rollout.roles.items()}
        same = Replayed(log_prob=none, entropy=none, value=value)  # a point has no densities
        audit(self.spec, rollout, same, self.version, precision=self.config.precision)
        limit = ACTION_LIMIT[self.config.precision]
        worst = {name: x.max() for name, x in gaps.items()}
        for name, largest in zip(worst, torch.stack(list(worst.values())).tolist(), strict=True):
            if largest > limit:
                t, lane, agent = (
                    int(i) for i in torch.unravel_index(gaps[name].argmax(), gaps[name].shape)
                )
                raise AuditFailure(
                    f"the audit stopped the update before its first gradient step: G4 action "
                    f"({name}): an action differs by {largest:.3g} from the one that policy and "
                    f"noise give for its observation, limit {limit:g}; worst at step {t}, lane "
                    f"{lane}, agent {agent}; look at the weights that acted, at the lanes' streams "
                    "and at what rewrites actions",
                    gates=[f"G4 action ({name})"],
                )
        return {f"audit/{name}/action_gap": x.expand(self.members) for name, x in worst.items()}

    def _push(self, rollout: Rollout, decided: dict[str, Tensor]) -> None:
        """Keeps the rollout's transitions; the last row waits for what follows it."""
        by_member = members_first(self.members)
        self.replay.push(
            Past(
                obs={name: rows.obs.map(by_member) for name, rows in rollout.roles.items()},
                action=decided,
                state=by_member(rollout.critic["all"]["state"]),
                reward=by_member(self.nets.rewards(rollout)),
                elapsed=by_member(rollout.elapsed),
                terminated=by_member(rollout.terminated),
                truncated=by_member(rollout.truncated),
                final=mapped(rollout.final.get("all", {}), by_member),
            )
        )

    def _of_rollout(self, rollout: Rollout) -> dict[str, Tensor]:
        """What was collected, with which noise, and what of it is kept."""
        drawable = min(self._rows - 1, self.config.rows)
        found = {
            "train/sigma": self.sigma.clone(),
            "replay/fill": self._full(drawable / self.config.rows),
            "replay/pushed": self._full(float(self._rows * self.config.lanes)),
            "train/lr_actor": self._numbers["lr_actor"],
            "train/lr_critic": self._numbers["lr_critic"],
        }
        for name, rows in rollout.roles.items():
            reward = members_first(self.members)(rows.reward).flatten(1)  # [P, T * N * A]
            found[f"train/{name}/reward_mean"] = reward.mean(dim=1)
            found[f"train/{name}/reward_std"] = reward.std(dim=1, correction=0)
        return found

    def _full(self, value: float) -> Tensor:
        return torch.full((self.members,), value, dtype=torch.float64, device=self.device)

    def _learn(self) -> dict[str, Tensor]:
        """The gradient steps that are due, and their means; during the warm-up there are none."""
        warm = min(self._rows - 1, self.config.rows) * self.config.lanes >= self.config.warm_up
        due = self.config.gradient_steps if warm else 0
        made = {"train/gradient_steps": self._full(float(due))}
        if not due:
            return made
        self._sums.zero_()
        for _ in range(due):
            self._learn_once()
        return made | dict(zip(self._names, self._sums / due, strict=True))

    def _learn_once(self) -> None:
        """One gradient step of Q and of every policy, and of the targets after them."""
        nets, discount = self.nets, self._numbers["discount"]
        place = self.replay.draw(self.streams.draw("replay"), self.config.batch)
        self.streams.tick()
        drawn = self.replay.read(place)
        loss, value = nets.q_loss(drawn, discount)
        (gradient,) = torch.autograd.grad(loss.sum(), [nets.packs[CRITIC].weights])
        norms = {CRITIC: self._step(CRITIC, gradient)}

        losses = {role.name: nets.policy_loss(role.name, drawn.past) for role in self.spec.roles}
        weights = [nets.packs[name].weights for name in losses]
        # Each role's weights are in its own loss alone, so one pass serves them all.
        gradients = torch.autograd.grad(torch.stack(list(losses.values())).sum(), weights)
        for name, gradient in zip(losses, gradients, strict=True):
            norms[name] = self._step(name, gradient)
        nets.follow(self._numbers["tau"])

        seen = (loss, value, unique_share(place), *losses.values())
        lengths = (norms[name] for name in (*losses, CRITIC))
        self._sums += torch.stack([x.detach().to(self.dtype) for x in (*seen, *lengths)])

    def _step(self, name: str, gradient: Tensor) -> Tensor:
        """One clipped Adam step; the gradient's norm `[P]` before clipping."""
        clipped, norm = clip_by_norm(gradient, self._numbers["max_grad_norm"])
        self.optimizers[name].step(clipped, self._everyone)
        return norm

    def member(self, index: int) -> "MADDPG":
        """One member as a learner of its own, with copies of its weights and its replay."""
        own: dict[str, Any] = {name: x[index] for name, x in self.vary.items()}
        config = replace(self.config, **own)
        seeds, device = [self.seeds[index]], self.device
        one = MADDPG(config, self.spec, seeds=seeds, device=device, dtype=self.dtype)
        one.load_state_dict(sliced(self._state(), index))
        return one

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimizers, noise, streams, the version, and the whole replay."""
        copied: dict[str, Any] = mapped(self._state(), lambda x: x.detach().clone())
        return copied

    def _state(self) -> dict[str, Any]:
        """The same as it lies here."""
        return {
            "weights": {name: pack.weights for name, pack in self.nets.packs.items()},
            "targets": {name: pack.weights for name, pack in self.nets.targets.items()},
            "optimizers": {name: adam.state_dict() for name, adam in self.optimizers.items()},
            "sigma": self.sigma,
            "streams": self.streams.state_dict(),
            "replay": self.replay.state(),
            "version": self.version,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes all of it up again in place."""
        for kind, packs in (("weights", self.nets.packs), ("targets", self.nets.targets)):
            for name, pack in packs.items():
                write(pack.weights, state[kind][name], f"the {kind} of {name}")
        for name, adam in self.optimizers.items():
            adam.load_state_dict(state["optimizers"][name])
        write(self.sigma, state["sigma"], "sigma")
        self.streams.load_state_dict(state["streams"])
        self.replay.load_state_dict(state["replay"])
        self.version.copy_(state["version"])
        self._rows = int(state["replay"]["written"])


def _rate(network: str) -> str:
    """The setting that is the step size of a network."""
    return "lr_critic" if network == CRITIC else "lr_actor"
