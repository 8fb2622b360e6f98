"""Scores of entity rows by weights that all rows share: any order, any number of them."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lockstep.core import fused
from lockstep.core.actions import Rows
from lockstep.nets.layers import Dense, mlp

POLICY_GAIN = 0.01  # near-uniform first decisions
_WIDTH = 64
_HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How parts that are tied to an entity set get their numbers."""

    candidates: Literal["scorer", "positional", "identity"] = "scorer"
    """Candidates by their features, or, as baselines, by position or by global id."""
    set_context: Literal["none", "pooled", "attention"] = "none"
    """What a row's score knows of the other rows that exist."""
    ragged: bool = False
    """Evaluate only rows that exist, in a list. Its length depends on data, so a pack loops over
    its members and no graph can hold it; where a compiler traces, rows stay padded. Rows under
    attention are always padded."""


class RowScorer(nn.Module):
    """The numbers of an action part that is tied to an entity set, by weights shared over rows."""

    def __init__(
        self, rows: Rows, n_features: int, n_params: int, n_context: int, scoring: Scoring
    ) -> None:
        super().__init__()
        self.per_row, self.n_params, self.scoring = rows.per_row, n_params, scoring
        self.ragged = scoring.ragged and scoring.set_context != "attention"
        self.from_row = Dense(n_features, _WIDTH)
        self.from_context = Dense(n_context, _WIDTH, bias=False) if rows.context else None
        self.body = mlp(_WIDTH, _WIDTH)
        self.head = Dense(_WIDTH, rows.per_row * n_params, gain=POLICY_GAIN)
        self.alone = not rows.context and scoring.set_context == "none"  # a row knows of no other
        if scoring.set_context == "pooled":
            self.from_set = Dense(2 * _WIDTH, _WIDTH, bias=False)
        elif scoring.set_context == "attention":
            self.query_key_value = Dense(_WIDTH, 3 * _WIDTH, gain=1.0, bias=False)

    def forward(self, rows: Tensor, context: Tensor, exists: Tensor | None) -> Tensor:
        """Rows `[..., E, F]` and context `[..., Z]` to `[..., n_params, per_row * E]`, by block.

        Numbers of rows that do not exist (`exists [..., E]`) are finite and mean nothing.
        """
        if exists is not None and self.ragged and not torch.compiler.is_compiling():
            score = self._ragged(rows, context, exists)
        else:
            score = self._padded(rows, context, exists)  # [..., E, n_params * per_row]
        score = score.view(*score.shape[:-1], self.n_params, self.per_row)
        return score.movedim(-3, -1).flatten(-2)  # [..., n_params, per_row * E]

    def _padded(self, rows: Tensor, context: Tensor, exists: Tensor | None) -> Tensor:
        if self.alone and fused.scores(rows):
            return self._at_once(rows)
        x = self.from_row(rows)  # [..., E, width]
        if self.from_context is not None:
            x = x + self.from_context(context).unsqueeze(-2)
        x = x.relu()
        if self.scoring.set_context == "pooled":
            x = x + self.from_set(_pooled(x, exists)).unsqueeze(-2)
        elif self.scoring.set_context == "attention":
            x = x + self._attend(x, exists)
        score: Tensor = self.head(self.body(x))
        return score

    def _at_once(self, rows: Tensor) -> Tensor:
        """All layers by one kernel: what is between them is most of what a policy would store."""
        second = self.body[0]
        assert isinstance(second, Dense)
        layers = (self.from_row, second, self.head)
        flat = torch.cat([x.flatten() for layer in layers for x in (layer.weight, layer.bias)])
        listed = rows.flatten(0, -2).unsqueeze(0)  # [1, M, F]
        score: Tensor = fused.score_rows(listed, flat.unsqueeze(0), _WIDTH, self.head.out_features)
        return score.view(*rows.shape[:-1], -1)

    def _attend(self, x: Tensor, exists: Tensor | None) -> Tensor:
        """What each row gathers from those that exist; written out, since members map over it."""
        qkv = self.query_key_value(x).unflatten(-1, (3, _HEADS, -1))
        q, k, v = qkv.movedim(-3, 0).transpose(-3, -2).unbind(dim=0)  # [..., heads, E, d]
        logits = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.shape[-1])
        if exists is not None:
            # Finite, so that a set without rows stays a number; nobody reads its scores.
            least = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(~exists.unsqueeze(-2).unsqueeze(-2), least)
        out: Tensor = torch.softmax(logits, dim=-1).to(v.dtype) @ v
        return out.transpose(-3, -2).flatten(-2)  # [..., E, width]

    def _ragged(self, rows: Tensor, context: Tensor, exists: Tensor) -> Tensor:
        """The same as `_padded` with the padding left out: rows `[M, F]` of all sets in a list."""
        flat = exists.flatten()
        at = flat.nonzero().squeeze(-1)  # [M]
        owner = at // exists.shape[-1]  # the set each row belongs to
        n_sets = flat.numel() // exists.shape[-1]
        x = self.from_row(rows.flatten(0, -2).index_select(0, at))  # [M, width]
        if self.from_context is not None:
            x = x + self.from_context(context).flatten(0, -2).index_select(0, owner)
        x = x.relu()
        if self.scoring.set_context == "pooled":
            pooled = self.from_set(_pooled_lists(x, owner, n_sets))  # [sets, width]
            x = x + pooled.index_select(0, owner)
        score: Tensor = self.head(self.body(x))
        padded = score.new_zeros(flat.numel(), score.shape[-1]).index_copy(0, at, score)
        return padded.view(*exists.shape, -1)


def _pooled(x: Tensor, exists: Tensor | None) -> Tensor:
    """Mean and maximum `[..., 2 * width]` over the rows that exist of x `[..., E, width]`.

    x is not negative, so a 0 in place of a missing row changes no maximum.
    """
    if exists is None:
        return torch.cat((x.mean(dim=-2), x.amax(dim=-2)), dim=-1)
    kept = torch.where(exists.unsqueeze(-1), x, 0.0)
    count = exists.sum(dim=-1, keepdim=True).clamp(min=1).to(x.dtype)
    return torch.cat((kept.sum(dim=-2) / count, kept.amax(dim=-2)), dim=-1)


def _pooled_lists(x: Tensor, owner: Tensor, n_sets: int) -> Tensor:
    """The same over rows `[M, width]` in a list."""
    blank = x.new_zeros(n_sets, x.shape[-1])
    count = torch.bincount(owner, minlength=n_sets).clamp(min=1).to(x.dtype).unsqueeze(-1)
    total = blank.index_add(0, owner, x)
    largest = blank.scatter_reduce(0, owner.unsqueeze(-1).expand_as(x), x, "amax")
    return torch.cat((total / count, largest), dim=-1)
