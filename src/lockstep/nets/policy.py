"""One role's policy: features and entity rows in, the parameters of a Joint out."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lockstep.core.actions import Candidates, Observation, Part, Picks, Rows, Unit
from lockstep.core.distributions import (
    AS_IT_IS,
    Beta,
    ClippedGaussian,
    Distribution,
    Exploration,
    Joint,
    SigmoidGaussian,
    at_least_float32,
)
from lockstep.core.picks import choice
from lockstep.core.world import RoleSpec
from lockstep.nets.encoders import FeatureEncoder
from lockstep.nets.layers import Dense, GatedMemory
from lockstep.nets.rows import POLICY_GAIN, RowScorer, Scoring

UnitHead: TypeAlias = Literal["beta", "gaussian_clip", "gaussian_sigmoid"]
Parameters: TypeAlias = dict[str, Tensor]

_LOG_STD_RANGE = (-5.0, 2.0)
_FIRST_LOG_STD = {"gaussian_clip": math.log(0.5), "gaussian_sigmoid": 0.0}
_FIRST_MEAN = {"gaussian_clip": 0.5, "gaussian_sigmoid": 0.0}


def _key(part: str) -> str:
    """A part's name as a module's; plain names may collide with attributes (`cpu`)."""
    return f"part_{part}"


class Policy(nn.Module):
    """Encoder, optional memory, one linear head for all parts, and row scorers.

    A part with `k` parameters for each of its `n` entries (Beta: alpha and beta) takes `k * n`
    outputs of the head. Where it is tied to an entity set, the scorer's numbers are added to them
    (`Rows.base` positional) or stand for the rows alone (none; then any number of rows will do, and
    the weights of a policy for narrow sets fit one for wide sets).
    """

    def __init__(
        self,
        role: RoleSpec,
        *,
        unit_head: UnitHead,
        hidden: int,
        scorer: bool,
        memory: bool = False,
        scoring: Scoring | None = None,
    ) -> None:
        super().__init__()
        self.role, self.unit_head = role, unit_head
        self.scoring = scoring or Scoring()
        fields = {name: role.features[name] for name in role.encoded}
        self.encoder = FeatureEncoder(fields, hidden)
        self.batchable = self.encoder.batchable
        self.memory = GatedMemory(hidden) if memory else None
        self.memory_size = hidden if memory else 0

        self.scorers = nn.ModuleDict()
        self.widths: dict[str, tuple[int, int]] = {}  # part -> (k, head outputs / k)
        self.log_std = nn.ParameterDict()
        for name, part in role.action.items():
            k = 2 if isinstance(part, Unit) and unit_head == "beta" else 1
            width = part.n
            if self._by_identity(part):
                assert isinstance(part, Candidates | Picks)
                width = len(part.extra) + part.ids
            elif part.rows is not None and scorer and self._by_rows(part):
                n_features = role.entities[part.rows.over].shape[-1]
                made = RowScorer(part.rows, n_features, k, hidden, self.scoring)
                self.scorers[_key(name)] = made
                self.batchable = self.batchable and not (made.ragged and part.masked)
                width = len(part.rows.extra) if part.rows.base == "none" else part.n
            self.widths[name] = (k, width)
            if isinstance(part, Unit) and unit_head != "beta":
                first = torch.full((part.n,), _FIRST_LOG_STD[unit_head])
                self.log_std[_key(name)] = nn.Parameter(first)
        n_outputs = sum(k * n for k, n in self.widths.values())
        self.head = Dense(hidden, n_outputs, gain=POLICY_GAIN) if n_outputs else None

    def _by_rows(self, part: Part) -> bool:
        """Whether rows are scored by their features."""
        return not isinstance(part, Candidates | Picks) or self.scoring.candidates == "scorer"

    def _by_identity(self, part: Part) -> bool:
        """Whether candidates are scored by one output for each global id."""
        if not isinstance(part, Candidates | Picks) or self.scoring.candidates != "identity":
            return False
        if part.ids < 1 or f"{part.over}/id" not in self.role.features:
            raise ValueError(
                f"candidate_head 'identity' needs a world that numbers its candidates: the feature "
                f"{part.over}/id and the part's ids; role {self.role.name} has none, try 'scorer'"
            )
        return True

    def forward(
        self,
        features: Mapping[str, Tensor],
        entities: Mapping[str, Tensor],
        legal: Mapping[str, Tensor],
        memory: Tensor,
        starts: Tensor,
    ) -> tuple[Parameters, Tensor]:
        """Parameters `[T, N, A, k, n]` by part, and the memory after the last step."""
        dtype = next(self.parameters()).dtype
        context = self.encoder(features, dtype)  # [T, N, A, hidden]
        if self.memory is not None:
            context, memory = self.memory(context, memory, starts)
        numbers = context[..., :0] if self.head is None else self.head(context)
        widths = [k * n for k, n in self.widths.values()]
        # The gradient of a split is a copy of all its parts, also where there is one.
        outputs = numbers.split(widths, dim=-1) if len(widths) > 1 else (numbers,)
        params: Parameters = {}
        for (name, (k, n)), output in zip(self.widths.items(), outputs, strict=True):
            params[name] = output.unflatten(-1, (k, n))  # [T, N, A, k, n]
            part = self.role.action[name]
            if _key(name) in self.scorers and part.rows is not None:
                rows = entities[part.rows.over].to(dtype)
                exists = _exists(part.rows, legal[name], rows) if part.masked else None
                score = self.scorers[_key(name)](rows, context, exists)
                params[name] = _join(params[name], score, part.rows)
            elif self._by_identity(part) and part.rows is not None:
                ids = features[f"{part.rows.over}/id"]
                params[name] = _by_id(params[name], ids, len(part.rows.extra))
            if _key(name) in self.log_std:
                params[name + "/log_std"] = self.log_std[_key(name)].view(1, 1, 1, -1)
        return params, memory


def _exists(tie: Rows, legal: Tensor, rows: Tensor) -> Tensor:
    """Which rows `[..., E]` have an entry that may be chosen."""
    entries: Tensor = legal[..., len(tie.extra) :].unflatten(-1, (tie.per_row, rows.shape[-2]))
    return entries.any(dim=-2)


def _by_id(own: Tensor, ids: Tensor, extras: int) -> Tensor:
    """The head's numbers for the extras, then for each row the number of its id."""
    chosen = own[..., extras:].gather(-1, ids.clamp(min=0).unsqueeze(-2))
    return torch.cat((own[..., :extras], chosen), dim=-1)


def _join(own: Tensor, score: Tensor, rows: Rows) -> Tensor:
    """The head's numbers and the scorer's as one `[..., k, n]`."""
    if rows.base == "none":
        return torch.cat((own, score.to(own.dtype)), dim=-1)
    return own + nn.functional.pad(score, (len(rows.extra), 0)).to(own.dtype)


def joint(
    role: RoleSpec,
    params: Parameters,
    obs: Observation,
    unit_head: UnitHead,
    explore: Exploration = AS_IT_IS,
) -> Joint:
    """The joint distribution of one decision; the only place where one is built."""
    parts: dict[str, Distribution] = {}
    for name, part in role.action.items():
        number = at_least_float32(params[name])
        if isinstance(part, Unit):
            parts[name] = _numbers(number, params.get(name + "/log_std"), unit_head)
        else:
            legal = obs.legal.get(name)
            parts[name] = choice(part, number.squeeze(-2), legal, obs.features, explore)
    return Joint(parts)


def _numbers(number: Tensor, log_std: Tensor | None, unit_head: UnitHead) -> Distribution:
    if unit_head == "beta":
        alpha, beta = (softplus(number) + 1.0).unbind(dim=-2)
        return Beta(alpha, beta)
    assert log_std is not None
    mean = number.squeeze(-2) + _FIRST_MEAN[unit_head]
    gaussian: Callable[[Tensor, Tensor], Distribution] = (
        ClippedGaussian if unit_head == "gaussian_clip" else SigmoidGaussian
    )
    return gaussian(mean, log_std.clamp(*_LOG_STD_RANGE))
