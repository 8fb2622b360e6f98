"""Deterministic decisions as a critic reads them, and the noise that explores around them.

Every part of a decision is `n` numbers in [0, 1]: a Unit part the numbers themselves, a Categorical
one the probabilities of its choices, of which the world takes the largest.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.core.actions import Action, Candidates, Observation, Part, Picks, Unit
from lockstep.core.distributions import Categorical, Joint, SigmoidGaussian
from lockstep.core.streams import Draw
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.nets.policy import UnitHead

NUMBERS: UnitHead = "gaussian_sigmoid"
"""The head whose squashed mean is the decision; its deviation is not used."""
ON_PROBABILITIES = 0.25
"""Noise on probabilities, as a share of that on numbers."""

Means = dict[str, Tensor]
"""Part to `[..., A, n]`."""


def check(spec: WorldSpec) -> None:
    """ValueError unless the world's decisions are numbers and labels, judged from one state."""
    for role in spec.roles:
        for name, part in role.action.items():
            if isinstance(part, Candidates | Picks):
                raise ValueError(
                    f"maddpg must have numbers (Unit) and labels (Categorical) to decide, got "
                    f"{type(part).__name__} in part {name} of role {role.name}, whose choices vary "
                    "in number and meaning; use ppo"
                )
    if spec.critic_at != "step" or "state" not in spec.critic:
        raise ValueError(
            f"maddpg must find one critic input 'state' at each step of the world, got critic_at "
            f"'{spec.critic_at}' and inputs {sorted(spec.critic)} of {spec.name}; use ppo"
        )


def means(law: Joint) -> Means:
    """What the policy decides without noise; gradients flow through it."""
    found: Means = {}
    for name, part in law.parts.items():
        if isinstance(part, SigmoidGaussian):
            found[name] = torch.sigmoid(part.mean)
        else:
            assert isinstance(part, Categorical)
            found[name] = part.log_p.exp()
    return found


def explored(
    role: RoleSpec, mean: Means, obs: Observation, draw: Draw, sigma: Tensor, epsilon: Tensor
) -> Means:
    """Decisions `[L, A, n]` with noise of deviation `sigma [L]` on each number.

    Numbers are clipped to [0, 1]; probabilities of legal choices as well, and then made to add up
    to 1. Where nothing is left of them, they stay what they were. A share `epsilon [L]` of the
    agents decides uniformly at random instead.
    """
    deviation = sigma.view(-1, 1, 1)
    agents = obs.acts.shape[-1]
    astray = (draw.uniform(agents) < epsilon.unsqueeze(-1)).unsqueeze(-1)  # [L, A, 1]
    found: Means = {}
    for name, part in role.action.items():
        shape = mean[name].shape[1:]
        noise, anything = deviation * draw.normal(*shape), draw.uniform(*shape)
        if isinstance(part, Unit):
            found[name] = torch.where(astray, anything, (mean[name] + noise).clamp(0.0, 1.0))
            continue
        moved = (mean[name] + ON_PROBABILITIES * noise).clamp(0.0, 1.0)
        moved = torch.where(astray, anything, moved)
        if name in obs.legal:
            moved = torch.where(obs.legal[name], moved, 0.0)
        total = moved.sum(dim=-1, keepdim=True)
        found[name] = torch.where(total > 0, moved / total.clamp(min=1e-12), mean[name])
    return found


def chosen(role: RoleSpec, decision: Means, obs: Observation) -> Action:
    """What the world is told: the numbers, and the most probable legal choice."""
    return {
        name: decision[name]
        if isinstance(part, Unit)
        else _legal(decision[name], obs.legal.get(name)).argmax(dim=-1)
        for name, part in role.action.items()
    }


def gap(role: RoleSpec, decision: Means, action: Action, obs: Observation) -> Tensor:
    """How far stored actions are from rebuilt decisions, `[..., A]`; 0 where nobody decided.

    It is the largest difference of a number, and what a choice lacks to the largest probability.
    """
    parts = [_part_gap(part, decision[n], action[n]) for n, part in role.action.items()]
    apart = torch.nan_to_num(torch.stack(parts).amax(dim=0), nan=torch.inf)
    return torch.where(obs.acts, apart, 0.0)


def _part_gap(part: Part, decision: Tensor, action: Tensor) -> Tensor:
    if isinstance(part, Unit):
        return (decision - action).abs().amax(dim=-1)
    index = action.clamp(0, part.n - 1).unsqueeze(-1)
    return decision.amax(dim=-1) - decision.gather(-1, index).squeeze(-1)


def _legal(probability: Tensor, legal: Tensor | None) -> Tensor:
    return probability if legal is None else torch.where(legal, probability, -1.0)


def for_critic(role: RoleSpec, decision: Mapping[str, Tensor], acts: Tensor) -> Tensor:
    """All parts side by side, `[..., A, U]`; 0 for agents that do not decide."""
    together = torch.cat([decision[name] for name in role.action], dim=-1)
    return torch.where(acts.unsqueeze(-1), together, 0.0)
