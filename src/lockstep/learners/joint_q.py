"""What MADDPG learns by: policies and a central critic, the targets of both, and their losses."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn

from lockstep.core.actions import Observation
from lockstep.core.rollout import Rollout
from lockstep.core.world import WorldSpec
from lockstep.learners.actor_critic import CRITIC
from lockstep.learners.config import MADDPGConfig
from lockstep.learners.deterministic import NUMBERS, Means, for_critic, means
from lockstep.learners.replay import Past, Transitions
from lockstep.nets.joint_critic import OwnCritic, TeamCritic
from lockstep.nets.packing import Pack
from lockstep.nets.policy import Policy, joint

Packs = Mapping[str, Pack]
"""Role to its policy, and the critic."""


class JointQ:
    """A deterministic policy for each role, a critic of all decisions, and copies that lag behind.

    Agents of a role share its policy, so a role's loss moves all of its agents at once. The critic
    says `n_values` numbers: a Q for each agent, role by role, or one for the team.
    """

    def __init__(
        self,
        config: MADDPGConfig,
        spec: WorldSpec,
        *,
        seeds: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.spec, self.seeds = config, spec, tuple(seeds)
        self.device, self.dtype = device, dtype
        self.own = config.reward == "own"
        self.n_values = sum(role.agents for role in spec.roles) if self.own else 1
        self.packs, self.targets = self._networks(), self._networks()
        for target in self.targets.values():
            target.weights.requires_grad_(False)

    def _networks(self) -> dict[str, Pack]:
        """Policies by role, then the critic; made twice they are twice the same."""
        builds: dict[str, Callable[[], nn.Module]] = {
            role.name: partial(
                Policy,
                role,
                unit_head=NUMBERS,
                hidden=self.config.hidden,
                scorer=self.config.actor == "scorer",
            )
            for role in self.spec.roles
        }
        critic = OwnCritic if self.own else TeamCritic
        builds[CRITIC] = partial(critic, self.spec, hidden=self.config.hidden_critic)
        return {name: self._pack(name, build) for name, build in builds.items()}

    def _pack(self, name: str, build: Callable[[], nn.Module]) -> Pack:
        # Members of neighbouring seeds, and networks of one member, must not start alike.
        seeds = [(seed * 0x9E3779B97F4A7C15 + crc32(name.encode())) % 2**63 for seed in self.seeds]
        return Pack(build, seeds, device=self.device, dtype=self.dtype)

    def means(self, packs: Packs, role: str, obs: Observation) -> Means:
        """What the policies of `packs` decide for rows `[P, T, N, A, ...]`, without noise."""
        P, T, N, A = obs.acts.shape
        memory = torch.zeros(P, N, A, 0, dtype=self.dtype, device=self.device)
        starts = torch.zeros(P, T, N, dtype=torch.bool, device=self.device)
        params, _ = packs[role](obs.features, obs.entities, obs.legal, memory, starts)
        return means(joint(self.spec.role(role), params, obs, NUMBERS))

    def _decided(self, packs: Packs, role: str, obs: Observation) -> Tensor:
        """Decisions without noise as the critic reads them, `[P, B, A, U]`."""
        mean = self.means(packs, role, obs.map(lambda x: x.unsqueeze(1)))
        flat = {name: x.squeeze(1) for name, x in mean.items()}
        return for_critic(self.spec.role(role), flat, obs.acts)

    def _q(
        self,
        packs: Packs,
        state: Tensor,
        action: Mapping[str, Tensor],
        obs: Mapping[str, Observation],
    ) -> Tensor:
        """Q `[P, B, Q]` of what all agents did."""
        views: tuple[dict[str, Tensor], ...] = ()
        if self.own:
            views = ({name: _flat(obs[name]) for name in self._roles}, {})
        value: Tensor = packs[CRITIC](state, dict(action), *views)
        return value

    @property
    def _roles(self) -> tuple[str, ...]:
        return tuple(role.name for role in self.spec.roles)

    def rewards(self, rollout: Rollout) -> Tensor:
        """What Q is to foretell, `[T, L, Q]`: each agent's reward, or the team's.

        The team's is the mean over roles, of which each is the mean of its agents.
        """
        every = [rollout.roles[name].reward for name in self._roles]  # each [T, L, A]
        if self.own:
            return torch.cat(every, dim=-1)
        return torch.stack([x.mean(dim=-1) for x in every]).mean(dim=0).unsqueeze(-1)

    def q_loss(self, drawn: Transitions, discount: Tensor) -> tuple[Tensor, Tensor]:
        """Half the mean squared temporal-difference error, and the mean of Q; each `[P]`."""
        past = drawn.past
        value = self._q(self.packs, past.state, past.action, past.obs)  # [P, B, Q]
        assert value.shape == past.reward.shape
        miss = (value - self.bellman_target(drawn, discount)) ** 2
        return 0.5 * miss.mean(dim=(1, 2)), value.mean(dim=(1, 2))

    @torch.no_grad()
    def bellman_target(self, drawn: Transitions, discount: Tensor) -> Tensor:
        """What Q should have said, `[P, B, Q]`: the reward and what the targets promise after it.

        A terminated row promises nothing; a truncated one what its state before the reset does.
        """
        past, obs = drawn.past, drawn.next_obs
        action = {name: self._decided(self.targets, name, seen) for name, seen in obs.items()}
        promised = self._q(self.targets, drawn.next_state, action, obs)
        later = (discount.unsqueeze(-1) ** past.elapsed).unsqueeze(-1)  # [P, B, 1]
        return past.reward + later * torch.where(past.terminated.unsqueeze(-1), 0.0, promised)

    def policy_loss(self, role: str, past: Past) -> Tensor:
        """How little Q makes of the role's own decisions beside the others' stored ones, `[P]`.

        Where agents have a Q each, it is asked of each agent's decision beside what all others did:
        what it means for the others' rewards is not its policy's business.
        """
        decided = self._decided(self.packs, role, past.obs[role])
        if not self.own:
            together = past.action | {role: decided}
            return -self._q(self.packs, past.state, together, past.obs).mean(dim=(1, 2))
        seen = {role: _flat(past.obs[role])}
        value: Tensor = self.packs[CRITIC](past.state, past.action, seen, {role: decided})
        return -value.mean(dim=(1, 2))

    @torch.no_grad()
    def follow(self, tau: Tensor) -> None:
        """Moves every target a share `tau [P]` of the way to the weights it follows."""
        for name, target in self.targets.items():
            target.weights.lerp_(self.packs[name].weights, tau.unsqueeze(-1))


def _flat(obs: Observation) -> Tensor:
    """What an agent sees as one vector, `[..., A, O]`."""
    lead = obs.acts.ndim
    seen = (*obs.features.values(), *obs.entities.values())
    return torch.cat([x.unsqueeze(-1).flatten(lead) for x in seen], dim=-1)
