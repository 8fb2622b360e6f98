"""What MADDPG learns by: policies and one central Q, the targets of both, and their losses."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn

from lockstep.core.actions import Observation
from lockstep.core.world import WorldSpec
from lockstep.learners.actor_critic import CRITIC
from lockstep.learners.config import MADDPGConfig
from lockstep.learners.deterministic import NUMBERS, Means, for_critic, means
from lockstep.learners.replay import Past, Transitions
from lockstep.nets.joint_critic import JointCritic
from lockstep.nets.packing import Pack
from lockstep.nets.policy import Policy, joint

Packs = Mapping[str, Pack]
"""Role to its policy, and the critic."""


class JointQ:
    """One deterministic policy for each role, one Q of all decisions, and copies that lag behind.

    Agents of a role share its policy, so a role's loss moves all of its agents at once.
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
        builds[CRITIC] = partial(JointCritic, self.spec, hidden=self.config.hidden_critic)
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

    def _q(self, packs: Packs, state: Tensor, action: Mapping[str, Tensor]) -> Tensor:
        """Q of `[P, B, ...]`, as `[P, B]`."""
        value: Tensor = packs[CRITIC](state, tuple(action[role.name] for role in self.spec.roles))
        return value

    def q_loss(self, drawn: Transitions, discount: Tensor) -> tuple[Tensor, Tensor]:
        """Half the squared temporal-difference error, and the mean of Q; each `[P]`."""
        past = drawn.past
        value = self._q(self.packs, past.state, past.action)  # [P, B]
        assert value.shape == past.reward.shape
        miss = (value - self.bellman_target(drawn, discount)) ** 2
        return 0.5 * miss.mean(dim=1), value.mean(dim=1)

    @torch.no_grad()
    def bellman_target(self, drawn: Transitions, discount: Tensor) -> Tensor:
        """What Q should have said, `[P, B]`: the reward and what the targets promise after it.

        A terminated row promises nothing; a truncated one what its state before the reset does.
        """
        past = drawn.past
        action = {
            name: self._decided(self.targets, name, obs) for name, obs in drawn.next_obs.items()
        }
        promised = self._q(self.targets, drawn.next_state, action)
        later = discount.unsqueeze(-1) ** past.elapsed  # [P, B]
        return past.reward + later * torch.where(past.terminated, 0.0, promised)

    def policy_loss(self, role: str, past: Past) -> Tensor:
        """How little Q makes of the role's own decisions beside the others' stored ones, `[P]`."""
        own = self._decided(self.packs, role, past.obs[role])
        return -self._q(self.packs, past.state, past.action | {role: own}).mean(dim=1)

    @torch.no_grad()
    def follow(self, tau: Tensor) -> None:
        """Moves every target a share `tau [P]` of the way to the weights it follows."""
        for name, target in self.targets.items():
            target.weights.lerp_(self.packs[name].weights, tau.unsqueeze(-1))
