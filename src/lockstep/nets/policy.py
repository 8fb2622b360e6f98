"""One role's policy: features and entity rows in, the parameters of a Joint out."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lockstep.core.actions import Observation, Part, Rows, Unit
from lockstep.core.distributions import (
    Beta,
    Categorical,
    ClippedGaussian,
    Distribution,
    Joint,
    SigmoidGaussian,
)
from lockstep.core.world import RoleSpec
from lockstep.nets.layers import Dense, GatedMemory, mlp

UnitHead: TypeAlias = Literal["beta", "gaussian_clip", "gaussian_sigmoid"]
Parameters: TypeAlias = dict[str, Tensor]

_SCORER_WIDTH = 64
_POLICY_GAIN = 0.01  # near-uniform first decisions
_LOG_STD_RANGE = (-5.0, 2.0)
_FIRST_LOG_STD = {"gaussian_clip": math.log(0.5), "gaussian_sigmoid": 0.0}
_FIRST_MEAN = {"gaussian_clip": 0.5, "gaussian_sigmoid": 0.0}


def _key(part: str) -> str:
    """A part's name as a module's; plain names may collide with attributes (`cpu`)."""
    return f"part_{part}"


def flat_features(features: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Named features `[T, N, A, ...]` side by side as one vector `[T, N, A, D]`."""
    rows = [x.to(dtype).flatten(3) for x in features.values()]
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)


class RowScorer(nn.Module):
    """The numbers of an action part that is tied to an entity set, by weights shared over rows."""

    def __init__(self, rows: Rows, n_features: int, n_params: int, n_context: int) -> None:
        super().__init__()
        self.per_row, self.n_params = rows.per_row, n_params
        self.from_row = Dense(n_features, _SCORER_WIDTH)
        self.from_context = Dense(n_context, _SCORER_WIDTH, bias=False) if rows.context else None
        self.body = mlp(_SCORER_WIDTH, _SCORER_WIDTH)
        self.head = Dense(_SCORER_WIDTH, rows.per_row * n_params, gain=_POLICY_GAIN)

    def forward(self, rows: Tensor, context: Tensor) -> Tensor:
        """Rows `[..., E, F]` and context `[..., Z]` to `[..., n_params, per_row * E]`, by block."""
        x = self.from_row(rows)  # [..., E, width]
        if self.from_context is not None:
            x = x + self.from_context(context).unsqueeze(-2)
        score: Tensor = self.head(self.body(x.relu()))  # [..., E, n_params * per_row]
        score = score.view(*score.shape[:-1], self.n_params, self.per_row)
        return score.movedim(-3, -1).flatten(-2)  # [..., n_params, per_row * E]


class Policy(nn.Module):
    """Encoder, optional memory, one linear head for all parts, and row scorers.

    A part with `k` parameters for each of its `n` entries (Beta: alpha and beta) takes `k * n`
    outputs of the head. Where it is tied to an entity set, the scorer's numbers are added to them
    (`Rows.base` positional) or stand for the rows alone (none; then any number of rows will do).
    """

    def __init__(
        self,
        role: RoleSpec,
        *,
        unit_head: UnitHead,
        hidden: int,
        scorer: bool,
        memory: bool = False,
    ) -> None:
        super().__init__()
        self.role, self.unit_head = role, unit_head
        n_features = sum(math.prod(f.shape) for f in role.features.values())
        self.encoder = mlp(n_features, hidden, hidden)
        self.memory = GatedMemory(hidden) if memory else None
        self.memory_size = hidden if memory else 0

        self.scorers = nn.ModuleDict()
        self.widths: dict[str, tuple[int, int]] = {}  # part -> (k, head outputs / k)
        self.log_std = nn.ParameterDict()
        for name, part in role.action.items():
            k = 2 if isinstance(part, Unit) and unit_head == "beta" else 1
            width = part.n
            if scorer and part.rows is not None:
                n_row_features = role.entities[part.rows.over].shape[-1]
                self.scorers[_key(name)] = RowScorer(part.rows, n_row_features, k, hidden)
                width = len(part.rows.extra) if part.rows.base == "none" else part.n
            self.widths[name] = (k, width)
            if isinstance(part, Unit) and unit_head != "beta":
                first = torch.full((part.n,), _FIRST_LOG_STD[unit_head])
                self.log_std[_key(name)] = nn.Parameter(first)
        n_outputs = sum(k * n for k, n in self.widths.values())
        self.head = Dense(hidden, n_outputs, gain=_POLICY_GAIN) if n_outputs else None

    def forward(
        self,
        features: Mapping[str, Tensor],
        entities: Mapping[str, Tensor],
        memory: Tensor,
        starts: Tensor,
    ) -> tuple[Parameters, Tensor]:
        """Parameters `[T, N, A, k, n]` by part, and the memory after the last step."""
        dtype = next(self.parameters()).dtype
        context = self.encoder(flat_features(features, dtype))  # [T, N, A, hidden]
        if self.memory is not None:
            context, memory = self.memory(context, memory, starts)
        numbers = context[..., :0] if self.head is None else self.head(context)
        outputs = numbers.split([k * n for k, n in self.widths.values()], dim=-1)
        params: Parameters = {}
        for (name, (k, n)), output in zip(self.widths.items(), outputs, strict=True):
            params[name] = output.unflatten(-1, (k, n))  # [T, N, A, k, n]
            part = self.role.action[name]
            if _key(name) in self.scorers and part.rows is not None:
                score = self.scorers[_key(name)](entities[part.rows.over].to(dtype), context)
                params[name] = _join(params[name], score, part.rows)
            if _key(name) in self.log_std:
                params[name + "/log_std"] = self.log_std[_key(name)].view(1, 1, 1, -1)
        return params, memory


def _join(own: Tensor, score: Tensor, rows: Rows) -> Tensor:
    """The head's numbers and the scorer's as one `[..., k, n]`."""
    if rows.base == "none":
        return torch.cat((own, score.to(own.dtype)), dim=-1)
    return own + nn.functional.pad(score, (len(rows.extra), 0)).to(own.dtype)


def joint(role: RoleSpec, params: Parameters, obs: Observation, unit_head: UnitHead) -> Joint:
    """The joint distribution of one decision; the only place where one is built."""
    return Joint(
        {
            name: _distribution(part, name, params, obs.legal.get(name), unit_head)
            for name, part in role.action.items()
        }
    )


def _distribution(
    part: Part, name: str, params: Parameters, legal: Tensor | None, unit_head: UnitHead
) -> Distribution:
    number = params[name].float() if params[name].dtype == torch.bfloat16 else params[name]
    if not isinstance(part, Unit):
        return Categorical(number.squeeze(-2), legal)
    if unit_head == "beta":
        alpha, beta = (softplus(number) + 1.0).unbind(dim=-2)
        return Beta(alpha, beta)
    mean = number.squeeze(-2) + _FIRST_MEAN[unit_head]
    log_std = params[name + "/log_std"].clamp(*_LOG_STD_RANGE)
    gaussian: Callable[[Tensor, Tensor], Distribution] = (
        ClippedGaussian if unit_head == "gaussian_clip" else SigmoidGaussian
    )
    return gaussian(mean, log_std)
