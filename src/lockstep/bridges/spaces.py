"""What a role sees and decides, as Gymnasium spaces.

Masks have the form that `action_space.sample(mask=...)` takes: int8, 1 where allowed, `[n]` for a
choice and a tuple of `k` such arrays for k picks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.core.actions import Field, Part, Picks, Unit
from lockstep.core.world import RoleSpec, WorldSpec

# Any: numpy and Box name no common type for these.
_NUMPY: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.int8,
}


def box(field: Field) -> spaces.Box:
    """All values of a tensor of this shape and type; True and False become 1 and 0.

    A single number is an array of one: encoders of other libraries expect a dimension.
    """
    shape, dtype = field.shape or (1,), _NUMPY[field.dtype]
    if issubclass(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    if field.dtype == torch.bool:
        return spaces.Box(0, 1, shape, dtype)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, dtype)


def array(x: Tensor, field: Field) -> npt.NDArray[Any]:
    """A copy of x, in its box, that later steps do not touch."""
    numbers = x.detach().cpu().numpy().astype(_NUMPY[field.dtype], copy=True)
    return numbers.reshape(field.shape or (1,))


def mask_key(role: RoleSpec, part: str) -> str:
    """Where an observation holds the mask of a part: one part alone needs no name."""
    return "action_mask" if len(role.action) == 1 else f"action_mask/{part}"


def observation_space(role: RoleSpec, *, masks: bool = True) -> spaces.Space[Any]:
    """Features, entity rows and, if asked for, the mask of each masked part, by name."""
    named: dict[str, spaces.Space[Any]] = {}
    for name, field in [*role.features.items(), *role.entities.items()]:
        if name in named or name.startswith("action_mask"):
            raise ValueError(
                f"{name} of role {role.name} must be the name of one feature or entity set, and "
                "not begin with action_mask; rename it in the world's spec"
            )
        named[name] = box(field)
    if masks:
        for name, part in role.action.items():
            if part.masked:
                named[mask_key(role, name)] = _mask_space(part)
    return spaces.Dict(named)


def _mask_space(part: Part) -> spaces.Space[Any]:
    if isinstance(part, Picks):
        return spaces.Tuple([spaces.MultiBinary(part.n) for _ in range(part.max)])
    return spaces.MultiBinary(part.n)


def action_space(role: RoleSpec) -> spaces.Space[Any]:
    """The space of a single part, or a Dict of several by name."""
    parts = {name: _part_space(part) for name, part in role.action.items()}
    return spaces.Dict(parts) if len(parts) > 1 else next(iter(parts.values()))


def _part_space(part: Part) -> spaces.Space[Any]:
    if isinstance(part, Unit):
        return spaces.Box(0.0, 1.0, (part.n,), np.float32)
    if isinstance(part, Picks):
        return spaces.MultiDiscrete([part.n] * part.max)
    return spaces.Discrete(part.n)


def state_space(spec: WorldSpec) -> spaces.Box:
    """The critic's input as one vector."""
    size = sum(int(np.prod(field.shape)) for field in spec.critic.values())
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def flat_state(spec: WorldSpec, seen: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
    """The critic's input of lane 0, its tensors one after another in the order of the spec."""
    rows = [seen[name][0].detach().cpu().numpy().ravel() for name in spec.critic]
    return np.concatenate(rows).astype(np.float32, copy=False)
