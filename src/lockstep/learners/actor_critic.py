"""What every learner with policies and a central critic shares: packs, acting, valuing, saving."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from lockstep.core.actions import Action, Observation, write
from lockstep.core.company import ALONE, Company
from lockstep.core.distributions import Exploration, Joint
from lockstep.core.learner import Decision
from lockstep.core.programs import compiled_method
from lockstep.core.rollout import Rollout, allocate
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.trees import mapped
from lockstep.core.world import Views, WorldSpec
from lockstep.learners.batch import split_lanes
from lockstep.learners.config import PPOConfig
from lockstep.nets.critics import AttentionCritic, StateCritic
from lockstep.nets.packing import Adam, Pack
from lockstep.nets.policy import Parameters, Policy, joint
from lockstep.nets.rows import Scoring

CRITIC = "critic"


class ActorCritic:
    """P members: one policy for each role, one critic for all, and their optimizers."""

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
        company: Company = ALONE,
    ) -> None:
        self.config, self.spec, self.seeds = config, spec, tuple(seeds)
        self.members = len(seeds)
        self.company, self.lanes = company, config.lanes // company.size  # of a member, in here
        self.device, self.dtype = torch.device(device), dtype
        self.vary = {name: tuple(values) for name, values in (vary or {}).items()}
        self._varied = {
            name: torch.tensor(values, dtype=dtype, device=device)  # [P]
            for name, values in self.vary.items()
        }
        self.parts = 1  # of all lanes, one after the other through a network where memory is short
        self.version = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams(lane_keys(seeds, lanes=1, device=device))  # for minibatches
        self.policies = {
            role.name: self._pack(role.name, partial(self._build_policy, role.name))
            for role in spec.roles
        }
        self.critic = self._pack(CRITIC, self._build_critic)
        self.packs = {**self.policies, CRITIC: self.critic}
        self.optimizers = {
            name: Adam(pack.weights, lr=self._per_member(_rate(name)))
            for name, pack in self.packs.items()
        }
        self._compiled_values: Callable[[Views], dict[str, Tensor]] | None = None
        if compile:
            self._act = compiled_method(self, "_act")  # type: ignore[method-assign]
            self._compiled_values = compiled_method(self, "_values")

    def _pack(self, name: str, build: Callable[[], nn.Module]) -> Pack:
        # Members of neighbouring seeds, and networks of one member, must not start alike.
        seeds = [(seed * 0x9E3779B97F4A7C15 + crc32(name.encode())) % 2**63 for seed in self.seeds]
        return Pack(build, seeds, device=self.device, dtype=self.dtype)

    def _build_policy(self, role: str) -> Policy:
        config = self.config
        return Policy(
            self.spec.role(role),
            unit_head=config.unit_head,
            hidden=config.hidden,
            scorer=config.actor == "scorer",
            memory=config.memory == "gru",
            scoring=Scoring(
                candidates=config.candidate_head,
                set_context=config.set_context,
                ragged=self.device.type == "cpu",  # faster there, and graphs cannot have it
            ),
        )

    def _build_critic(self) -> AttentionCritic | StateCritic:
        config = self.config
        if config.critic == "state":
            return StateCritic(self.spec, hidden=config.hidden)
        fused = self.members == 1  # the fused primitive does not map over members
        return AttentionCritic(self.spec, hidden=config.hidden, heads=config.heads, fused=fused)

    def _per_member(self, setting: str) -> Tensor:
        """A setting's numbers `[P]`."""
        if setting in self._varied:
            return self._varied[setting].clone()
        return self._full(float(getattr(self.config, setting)))

    def _full(self, value: float) -> Tensor:
        return torch.full((self.members,), value, dtype=self.dtype, device=self.device)

    def _by_row(self, setting: str) -> Any:
        """A setting as the config has it, or where members differ `[P, 1, 1, 1]`."""
        varied = self._varied.get(setting)
        return getattr(self.config, setting) if varied is None else varied.view(-1, 1, 1, 1)

    def _by_lane(self, setting: str, lanes: int) -> Any:
        """A setting as the config has it, or where members differ `[L, 1]`."""
        varied = self._varied.get(setting)
        if varied is None:
            return getattr(self.config, setting)
        return varied.repeat_interleave(lanes // self.members).unsqueeze(-1)

    def _alone(self, index: int) -> PPOConfig:
        """The settings of one member."""
        own: dict[str, Any] = {name: x[index] for name, x in self.vary.items()}
        return replace(self.config, **own)

    def _precision(self) -> AbstractContextManager[Any]:
        half = self.config.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def rollout(self) -> Rollout:
        """Storage for `steps` of every member's `lanes`."""
        critic: AttentionCritic | StateCritic = self.critic.module  # type: ignore[assignment]
        return allocate(
            self.spec,
            steps=self.config.steps,
            lanes=self.members * self.lanes,
            device=self.device,
            critic=critic.inputs,
            memory={name: self.memory(name).shape[-1] for name in self.policies},
            dtype=self.dtype,
        )

    def memory(self, role: str) -> Tensor:
        """Zeros `[L, A, Z]`."""
        policy: Policy = self.policies[role].module  # type: ignore[assignment]
        lanes, agents = self.members * self.lanes, self.spec.role(role).agents
        return torch.zeros(lanes, agents, policy.memory_size, dtype=self.dtype, device=self.device)

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
        return self._act(role, observation, memory, starts, streams, deterministic)

    def _act(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        streams: Streams,
        deterministic: bool,
    ) -> Decision:
        law, memory = self.policy(role, observation, memory, starts)
        action = law.mode() if deterministic else law.sample(streams.draw(f"act/{role}"))
        log_prob, entropy = law.log_prob_and_entropy(action)
        return Decision(action=action, log_prob=log_prob, entropy=entropy, memory=memory)

    @torch.no_grad()
    def judge(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        action: Action,
    ) -> Decision:
        """What somebody else decided for `[L, A, ...]`, as the policy sees it."""
        law, memory = self.policy(role, observation, memory, starts)
        log_prob, entropy = law.log_prob_and_entropy(action)
        return Decision(action=action, log_prob=log_prob, entropy=entropy, memory=memory)

    def policy(
        self, role: str, obs: Observation, memory: Tensor, starts: Tensor
    ) -> tuple[Joint, Tensor]:
        """The distribution of decisions, and the memory after them: the only way to build one.

        It is for the lanes of one step, `[L, A, ...]` with memory `[L, A, Z]` and starts `[L]`, as
        acting has them; or for the rows of a rollout, `[P, T, N, A, ...]` with memory `[P, N, A,
        Z]` and starts `[P, T, N]`, as audit and loss have them.
        """
        if starts.ndim == 3:
            params, memory = self._parameters(role, obs, memory, starts)
            return self._joint(role, params, obs), memory
        P = self.members
        N = starts.shape[0] // P

        def rows(x: Tensor) -> Tensor:
            return split_lanes(x, P).unsqueeze(1)  # [P, 1, N, ...]

        def lanes(x: Tensor) -> Tensor:
            return x.expand(P, 1, N, *x.shape[3:]).flatten(0, 2)  # [L, ...]

        params, memory = self._parameters(role, obs.map(rows), split_lanes(memory, P), rows(starts))
        law = self._joint(role, {name: lanes(x) for name, x in params.items()}, obs)
        return law, memory.flatten(0, 1)

    def _parameters(
        self, role: str, obs: Observation, memory: Tensor, starts: Tensor
    ) -> tuple[Parameters, Tensor]:
        """The first half of `policy`, for `[P, T, N, A, ...]`: what the network makes of it."""
        with self._precision():
            params, memory = self.policies[role](
                obs.features, obs.entities, obs.legal, memory, starts
            )
        return params, memory

    def _joint(self, role: str, params: Parameters, obs: Observation) -> Joint:
        """The second half of `policy`; apart only for the probe, which keeps what is between."""
        lanes = obs.acts.shape[0] if obs.acts.ndim == 2 else 0  # [L, A], or rows [P, T, N, A]
        temperature, epsilon = (
            self._by_lane(name, lanes) if lanes else self._by_row(name)
            for name in ("temperature", "epsilon")
        )
        explore = Exploration(temperature=temperature, epsilon=epsilon)
        return joint(self.spec.role(role), params, obs, self.config.unit_head, explore)

    def _blank(self, most: int) -> dict[str, Observation]:
        """For each role observations `[P, 1, n, 1, ...]` of nothing, `most` or a rollout's rows."""
        one = allocate(self.spec, steps=1, lanes=1, device=self.device, critic=(), dtype=self.dtype)
        samples = self.config.steps * self.config.lanes

        def rows(x: Tensor, n: int) -> Tensor:
            flag = x.dtype == torch.bool  # every row decides and every choice is legal
            return x.new_full((self.members, 1, n, 1, *x.shape[3:]), flag)

        return {
            role.name: one.roles[role.name].obs.map(
                partial(rows, n=min(most, samples * role.agents))
            )
            for role in self.spec.roles
        }

    def _afresh(self, role: str, obs: Observation) -> Parameters:
        """Distribution parameters for `[P, 1, n, 1, ...]` of agents that remember nothing.

        Of one type, whichever the networks' products come out in: a pack's may be another than a
        member's alone.
        """
        policy: Policy = self.policies[role].module  # type: ignore[assignment]
        P, _, n, A = obs.acts.shape
        memory = torch.zeros(P, n, A, policy.memory_size, dtype=self.dtype, device=self.device)
        starts = torch.ones(P, 1, n, dtype=torch.bool, device=self.device)
        params, _ = self._parameters(role, obs, memory, starts)
        return {name: x.to(self.dtype) for name, x in params.items()}

    @torch.no_grad()
    def value(self, state: Views) -> dict[str, Tensor]:
        """Values `[L, A]` of inputs `[L, ...]`, or `[T, L, A]` of a rollout's `[T, L, ...]`."""
        name, first = next((n, x) for seen in state.values() for n, x in seen.items())
        lead = first.ndim - len(self.spec.critic[name].shape) - 1  # dims before L: 0 or 1

        def members(x: Tensor) -> Sequence[Tensor]:
            split = split_lanes(x, self.members, dim=lead).movedim(lead, 0)
            return split.chunk(self.parts, dim=lead + 1)  # each [P, (T,) N / parts, ...]

        def piece(i: int) -> Views:
            found: Views = mapped(state, lambda x: members(x)[i])
            return found

        # A program for the rows of a rollout; a single step is not worth one of its own.
        values = (self._compiled_values if lead else None) or self._values
        pieces = [values(piece(i)) for i in range(len(members(first)))]
        value = {role: torch.cat([p[role] for p in pieces], dim=lead + 1) for role in pieces[0]}
        return {role: v.movedim(0, lead).flatten(lead, lead + 1) for role, v in value.items()}

    def _values(self, state: Views) -> dict[str, Tensor]:
        """Role to `[P, ..., A]`; a role that is looked for by itself is valued by that view."""
        values: dict[str, Tensor] = {}
        for view, seen in state.items():
            with self._precision():
                value: dict[str, Tensor] = self.critic(seen)
            wanted = value if view == "all" else {view: value[view]}
            values |= {role: v.to(self.dtype) for role, v in wanted.items()}
        return values

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers, minibatch streams and the version."""
        return {
            "weights": {name: pack.weights.detach().clone() for name, pack in self.packs.items()},
            "optimizers": {name: adam.state_dict() for name, adam in self.optimizers.items()},
            "streams": self.streams.state_dict(),
            "version": self.version.clone(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes all of it up again in place."""
        for name, pack in self.packs.items():
            write(pack.weights, state["weights"][name], f"the weights of {name}")
            self.optimizers[name].load_state_dict(state["optimizers"][name])
        self.streams.load_state_dict(state["streams"])
        self.version.copy_(state["version"])


def _rate(network: str) -> str:
    """The setting that is the step size of a network."""
    return "lr_critic" if network == CRITIC else "lr_actor"


def sliced(state: Any, member: int) -> Any:
    """A nested state with every tensor `[P, ...]` cut to one member; scalars stay."""
    return mapped(state, lambda x: x[member : member + 1] if x.ndim else x)
