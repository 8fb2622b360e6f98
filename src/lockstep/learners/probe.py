"""Whether behaviour moves: the policy on a few fixed observations, now and some updates ago."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Observation, write
from lockstep.core.distributions import Joint
from lockstep.nets.policy import Parameters

EVERY = 20
"""Updates between two looks."""
ROWS = 64
"""Observations of a role and member, at most."""


class Probe:
    """Rows of the first rollout, and what the policies made of them at the last look.

    `ask(role, obs)` gives the parameters of a policy's distribution on observations `[P, 1, n, 1,
    ...]`, and `law(role, params, obs)` the distribution. Everything is allocated here, so that a
    saved probe has the same tensors whenever it is saved; all of them lead with P.
    """

    def __init__(
        self,
        blank: Mapping[str, Observation],
        ask: Callable[[str, Observation], Parameters],
        law: Callable[[str, Parameters, Observation], Joint],
    ) -> None:
        self._ask, self._law = ask, law
        self._obs = dict(blank)
        self._params = {role: _copied(ask(role, obs)) for role, obs in blank.items()}
        members = {role: len(obs.acts) for role, obs in blank.items()}
        self._shift = {
            role: torch.zeros(members[role], dtype=torch.float64, device=obs.acts.device)
            for role, obs in blank.items()
        }

    def look(self, updates: int, seen: Mapping[str, Observation]) -> dict[str, Tensor]:
        """`train/<role>/behaviour_shift` after an update that `updates` others came before.

        It is sqrt(KL / 2), at least the total variation distance (Pinsker), between the policy of
        the last look and that of the one before; there is none before the second look. `seen` are
        the update's observations `[P, T, N, A, ...]`, of which the first update's are kept.
        """
        if updates == 0:
            self._keep(seen)
        if updates % EVERY == 0:
            self._compare()
        if updates < EVERY:
            return {}
        return {f"train/{role}/behaviour_shift": x for role, x in self._shift.items()}

    def _keep(self, seen: Mapping[str, Observation]) -> None:
        for role, kept in self._obs.items():
            rows = _spread(seen[role].acts.flatten(1), kept.acts.shape[2])  # [P, n]
            member = torch.arange(len(rows), device=rows.device).unsqueeze(-1)
            found = seen[role].tensors()
            for name, stored in kept.tensors().items():
                stored.copy_(found[name].flatten(1, 3)[member, rows].view_as(stored))

    @torch.no_grad()
    def _compare(self) -> None:
        for role, obs in self._obs.items():
            now, then = self._ask(role, obs), self._params[role]
            divergence = self._law(role, now, obs).kl(self._law(role, then, obs))  # [P, 1, n, 1]
            mean = divergence.double().flatten(1).mean(dim=1).clamp(min=0.0)
            self._shift[role].copy_((mean / 2).sqrt())
            for name, stored in then.items():
                stored.copy_(now[name])

    def state_dict(self) -> dict[str, Any]:
        """Observations, parameters and the last shift of each role."""
        return {
            role: {
                "obs": _copied(obs.tensors()),
                "params": _copied(self._params[role]),
                "shift": self._shift[role].clone(),
            }
            for role, obs in self._obs.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them up again in place."""
        for role, obs in self._obs.items():
            for name, stored in obs.tensors().items():
                write(stored, state[role]["obs"][name], f"the probe's {name} of {role}")
            for name, stored in self._params[role].items():
                write(stored, state[role]["params"][name], f"the probe's {name} of {role}")
            write(self._shift[role], state[role]["shift"], f"the probe's shift of {role}")


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in tensors.items()}


def _spread(acts: Tensor, n: int) -> Tensor:
    """`n` of each member's rows `[P, rows]` with a decision, evenly spread; `[P, n]`.

    A row comes twice where there are too few, and any row will do where there is none.
    """
    acting_first = (~acts).to(torch.uint8).argsort(dim=1, stable=True)
    found = acts.sum(dim=1, keepdim=True)
    count = torch.where(found > 0, found, acts.shape[1])  # [P, 1]
    return acting_first.gather(1, torch.arange(n, device=acts.device) * count // n)
