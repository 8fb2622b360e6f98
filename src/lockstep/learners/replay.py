"""Transitions of the recent past, kept on the device and drawn from at random."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.core.actions import Observation, write
from lockstep.core.rollout import allocate
from lockstep.core.streams import Draw
from lockstep.core.trees import mapped
from lockstep.core.world import WorldSpec

_BITS = 31  # of the whole number that is scaled to the transitions there are


@dataclass(frozen=True, kw_only=True)
class Past:
    """What is kept of a step of a lane; tensors lead with `[P, R, N]`, and in a batch `[P, B]`."""

    obs: dict[str, Observation]  # role -> [..., A, ...]
    action: dict[str, Tensor]  # role -> [..., A, U], as the critic reads it
    state: Tensor  # [..., S]
    reward: Tensor  # [..., Q], what the critic is to foretell
    elapsed: Tensor
    terminated: Tensor  # bool
    truncated: Tensor  # bool
    final: dict[str, Tensor]  # "state" -> [..., S] before a reset; empty unless the world truncates

    def map(self, change: Callable[[Tensor], Tensor]) -> "Past":
        """The same with `change` applied to every tensor."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        obs = {role: seen.map(change) for role, seen in self.obs.items()}
        return Past(obs=obs, **mapped(plain, change))

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        seen = {f"obs/{r}/{n}": x for r, obs in self.obs.items() for n, x in obs.tensors().items()}
        done = {f"action/{role}": x for role, x in self.action.items()}
        plain = {field.name: getattr(self, field.name) for field in fields(self)[2:-1]}
        return seen | done | plain | {f"final/{name}": x for name, x in self.final.items()}


class Transitions(NamedTuple):
    """A batch of steps and what each led to; tensors lead with `[P, B]`.

    After a terminated step it is of another episode and means nothing. Of a lane that was cut off
    the world tells the state before the reset and not what agents would have seen there: what they
    saw last stands for it.
    """

    past: Past
    next_obs: dict[str, Observation]
    next_state: Tensor


class Replay:
    """A ring of `rows + 1` rows of every lane, of which the newest waits for its successor.

    A row is kept once: what it led to is the row after it. Pushing and drawing do not wait for the
    host, so they can be captured.
    """

    def __init__(
        self,
        spec: WorldSpec,
        *,
        members: int,
        lanes: int,
        rows: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        rewards: int = 1,
    ) -> None:
        self.rows, self.lanes = rows, lanes
        one = allocate(spec, steps=1, lanes=1, device=device, critic=("state",), dtype=dtype)

        def ring(x: Tensor) -> Tensor:
            return x.new_zeros(members, rows + 1, lanes, *x.shape[2:])

        def width(role: str) -> int:
            return sum(part.n for part in spec.role(role).action.values())

        self.kept = Past(
            obs={name: role.obs.map(ring) for name, role in one.roles.items()},
            action={
                name: ring(role.value.unsqueeze(-1).expand(-1, -1, -1, width(name)))
                for name, role in one.roles.items()
            },
            state=ring(one.critic["all"]["state"]),
            reward=ring(one.elapsed.unsqueeze(-1).expand(-1, -1, rewards)),
            elapsed=ring(one.elapsed),
            terminated=ring(one.terminated),
            truncated=ring(one.truncated),
            final=mapped(one.final.get("all", {}), ring),
        )
        self.written = torch.zeros((), dtype=torch.int64, device=device)  # rows, ever

    def push(self, past: Past) -> None:
        """Adds rows `[P, T, N, ...]`, which follow those of the last push without a gap."""
        fresh = past.tensors()
        T = past.reward.shape[1]
        place = self.written + torch.arange(T, device=self.written.device)
        place = place % (self.rows + 1)
        for name, stored in self.kept.tensors().items():
            stored.index_copy_(1, place, fresh[name].to(stored.dtype))
        self.written += T

    @property
    def drawable(self) -> Tensor:
        """Rows that can be drawn, `[]` int64: all that are kept but the newest."""
        return (self.written - 1).clamp(min=0, max=self.rows)

    def draw(self, draw: Draw, n: int) -> Tensor:
        """`n` transitions of each member, each as likely as any: places `[P, n]`, newest last.

        A place counts lane by lane from the oldest row that can be drawn.
        """
        return (draw.integers(2**_BITS, n) * (self.drawable * self.lanes)) >> _BITS

    def read(self, place: Tensor) -> Transitions:
        """The transitions at places `[P, B]`."""
        N, R = self.lanes, self.rows + 1
        oldest = self.written - 1 - self.drawable
        row, lane = (oldest + place // N) % R, place % N
        here, later = row * N + lane, (row + 1) % R * N + lane
        member = torch.arange(len(place), device=place.device).unsqueeze(-1)  # [P, 1]

        def at(x: Tensor, index: Tensor) -> Tensor:
            return x.flatten(1, 2)[member, index]

        past = self.kept.map(lambda x: at(x, here))
        seen = torch.where(past.truncated, here, later)
        state = at(self.kept.state, later)
        if past.final:
            cut = past.truncated.view(*place.shape, *(1 for _ in state.shape[2:]))
            state = torch.where(cut, past.final["state"], state)
        return Transitions(
            past=past,
            next_obs={name: obs.map(lambda x: at(x, seen)) for name, obs in self.kept.obs.items()},
            next_state=state,
        )

    def state(self) -> dict[str, Any]:
        """The rows that are filled, and how many were ever written, as they lie here."""
        return {"rows": self._filled(self.written), "written": self.written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them up again in place."""
        for name, stored in self._filled(state["written"]).items():
            write(stored, state["rows"][name], f"the replay's {name}")
        write(self.written, state["written"], "the replay's count")

    def _filled(self, written: Tensor) -> dict[str, Tensor]:
        """Where rows lie after so many were written; the ring fills from its beginning."""
        count = min(int(written), self.rows + 1)
        return {name: stored[:, :count] for name, stored in self.kept.tensors().items()}


def unique_share(place: Tensor) -> Tensor:
    """Share of the places `[P, B]` that differ from each other, `[P]`."""
    ordered = place.sort(dim=-1).values
    fresh = (ordered[:, 1:] != ordered[:, :-1]).sum(dim=-1) + 1
    return fresh / place.shape[-1]
