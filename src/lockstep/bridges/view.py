"""What one agent sees at one moment, and its decision checked on the way into the world."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.bridges.spaces import array, mask_key
from lockstep.core.actions import Observation, Part, Picks, Unit
from lockstep.core.picks import PickSet
from lockstep.core.world import RoleSpec

Seen: TypeAlias = dict[str, Any]
"""An agent's observation: arrays by name, and masks."""
Decision: TypeAlias = dict[str, Tensor]
"""Part to what one agent decided, without the dimensions of lane and agent."""
Numbers: TypeAlias = npt.NDArray[Any]


class View:
    """What one agent sees at one moment, and what it may decide."""

    def __init__(self, role: RoleSpec, observation: Observation, index: int) -> None:
        self.role = role
        self.acts = bool(observation.acts[0, index])
        self._features = {k: x[0, index].detach().cpu() for k, x in observation.features.items()}
        self._entities = {k: x[0, index].detach().cpu() for k, x in observation.entities.items()}
        self._legal = {
            name: self._allowed(part, observation.legal[name][0, index].detach().cpu())
            for name, part in role.action.items()
            if part.masked
        }

    def _allowed(self, part: Part, legal: Tensor) -> Tensor:
        """Entries `[n]` open to the first pick; out of turn only the first of them, the no-op."""
        if isinstance(part, Picks):
            legal = PickSet.of(part, legal, self._features).first().entries
        if self.acts:
            return legal
        only = torch.zeros_like(legal)
        only[int(legal.int().argmax())] = True
        return only

    def observation(self, *, masks: bool = True) -> Seen:
        """A fresh copy of the whole, in the role's observation space."""
        role = self.role
        seen: Seen = {name: array(self._features[name], f) for name, f in role.features.items()}
        seen |= {name: array(self._entities[name], f) for name, f in role.entities.items()}
        if masks:
            seen |= {mask_key(role, name): self._mask(name) for name in self._legal}
        return seen

    def mask(self) -> Any:
        """What `action_space.sample(mask=...)` takes; None where nothing is masked."""
        if not self._legal:
            return None
        masks = {name: self._mask(name) if name in self._legal else None for name in self._parts}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def flat_mask(self) -> npt.NDArray[np.bool_]:
        """The masks of every choice and pick one after another; True where allowed."""
        rows: list[npt.NDArray[np.bool_]] = []
        for name, part in self._parts.items():
            if isinstance(part, Unit):
                raise ValueError(
                    f"a flat mask is for choices alone, but {name} of {self.role.name} is numbers; "
                    'use info["action_mask"]'
                )
            legal = self._legal[name].numpy() if name in self._legal else np.ones(part.n, np.bool_)
            rows += [legal.copy()] * (part.max if isinstance(part, Picks) else 1)
        return np.concatenate(rows)

    @property
    def _parts(self) -> Mapping[str, Part]:
        return self.role.action

    def _mask(self, name: str) -> Any:
        part, legal = self._parts[name], self._legal[name].numpy()
        if isinstance(part, Picks):
            return tuple(legal.astype(np.int8) for _ in range(part.max))
        return legal.astype(np.int8)

    def nothing(self) -> Decision:
        """The decision of an agent that is not asked: a stop, the first allowed entry, 0.5."""
        return {name: self._nothing(name, part) for name, part in self._parts.items()}

    def _nothing(self, name: str, part: Part) -> Tensor:
        if isinstance(part, Unit):
            return torch.full((part.n,), 0.5)
        if isinstance(part, Picks) or name not in self._legal:
            return torch.zeros(part.field.shape, dtype=torch.int64)
        return self._legal[name].int().argmax()

    def decision(self, agent: str, action: Any, *, skip_illegal: bool) -> tuple[Decision, int]:
        """The action as the world takes it, and how many of its choices were not followed."""
        parts = self._parts
        if len(parts) == 1:
            action = {next(iter(parts)): action}
        if not isinstance(action, Mapping) or set(action) != set(parts):
            raise ValueError(
                f"the action of {agent} must be a dict with {', '.join(parts)}, got "
                f"{sorted(action) if isinstance(action, Mapping) else action!r}"
            )
        taken: Decision = {}
        ignored = 0
        for name, part in parts.items():
            label = f"{name} of {agent}"
            if isinstance(part, Unit):
                taken[name] = _unit(label, part, action[name])
                continue
            chosen = _integers(label, part, action[name])
            if isinstance(part, Picks):
                taken[name], lost = self._picked(label, name, chosen.tolist(), skip_illegal)
            else:
                taken[name], lost = self._chosen(label, name, int(chosen), skip_illegal)
            ignored += lost
        return taken, ignored

    def _chosen(self, label: str, name: str, entry: int, skip_illegal: bool) -> tuple[Tensor, int]:
        legal = self._legal.get(name)
        if legal is None or bool(legal[entry]):
            return torch.tensor(entry), 0
        if not skip_illegal:
            raise _forbidden(label, entry, legal)
        return legal.int().argmax(), 1

    def _picked(
        self, label: str, name: str, chosen: list[int], skip_illegal: bool
    ) -> tuple[Tensor, int]:
        legal = self._legal[name]
        counted = chosen[: chosen.index(0)] if 0 in chosen else chosen
        for entry in counted:
            if not skip_illegal and not bool(legal[entry]):
                raise _forbidden(label, entry, legal)
        return self.picked(name, counted)

    def picked(self, name: str, entries: Iterable[int | None]) -> tuple[Tensor, int]:
        """Those picks that are open when their turn comes, `[k]`, and how many are not.

        A pick that is missing, forbidden by the mask or ruled out by one before it is left out;
        those after it still count.
        """
        part = self._parts[name]
        assert isinstance(part, Picks)
        options = PickSet.of(part, self._legal[name], self._features)
        now, kept, lost = options.first(), list[int](), 0
        for entry in entries:
            if entry is None or not bool(now.entries[entry]):
                lost += 1
                continue
            kept.append(entry)
            now = options.after(now, torch.tensor(entry))
        return torch.tensor(kept + [0] * (part.max - len(kept))), lost

    def row_ids(self, over: str) -> Tensor:
        """Identities `[C]` of the rows of an entity set, -1 in padded ones."""
        return self._features[f"{over}/id"]


def _forbidden(label: str, entry: int, legal: Tensor) -> ValueError:
    return ValueError(
        f"{label} must be one of the {int(legal.sum())} entries (of {len(legal)}) that its action "
        f"mask allows, got {entry}; choose by the mask, or pass skip_illegal=True"
    )


def _unit(label: str, part: Unit, value: Any) -> Tensor:
    numbers = np.asarray(value, dtype=np.float32)
    fits = numbers.shape == (part.n,)
    if not fits or not bool(np.all((numbers >= 0.0) & (numbers <= 1.0))):
        what = numbers.tolist() if fits else f"an array of shape {numbers.shape}"
        raise ValueError(f"{label} must be {part.n} numbers in [0, 1], got {what}")
    return torch.from_numpy(numbers.copy())


def _integers(label: str, part: Part, value: Any) -> Numbers:
    """One entry, or as many as there are picks, each within the padded set."""
    entries = np.asarray(value)
    shape = part.field.shape
    whole = np.issubdtype(entries.dtype, np.integer) and entries.shape == shape
    if not whole or bool(np.any((entries < 0) | (entries >= part.n))):
        count = f"{shape[0]} integers" if shape else "an integer"
        raise ValueError(f"{label} must be {count} in 0..{part.n - 1}, got {entries.tolist()}")
    return entries
