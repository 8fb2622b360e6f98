"""Several picks in one turn: which entries each pick leaves open, and the law of the sequence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lockstep.core.actions import Candidates, Categorical as CategoricalPart, Picks
from lockstep.core.distributions import (
    AS_IT_IS,
    Categorical,
    Discrete,
    Exploration,
    at_least_float32,
)
from lockstep.core.streams import Draw

PerRow = Float[Tensor, "*batch"]
Sequence = Int64[Tensor, "*batch k"]

_NO_RESOURCE = -2  # equal to no id, nor to the -1 of a row that occupies nothing


class Open(NamedTuple):
    """What the next pick may choose from."""

    entries: Tensor  # [*batch, n] bool
    funds: Tensor | None  # [*batch], what is left of the budget; None where nothing costs


@dataclass(frozen=True, kw_only=True)
class PickSet:
    """The choice set of one turn. Its first `extras` entries are no rows; entry 0 is the stop."""

    legal: Tensor  # [*batch, n] bool
    picks: int
    extras: int = 1
    resource: Tensor | None = None  # [*batch, n - extras, R] int64
    cost: Tensor | None = None  # [*batch, n - extras]
    budget: Tensor | None = None  # [*batch]

    @classmethod
    def of(cls, part: Picks, legal: Tensor, features: Mapping[str, Tensor]) -> "PickSet":
        """The choice set of `part` in an observation."""
        resource, cost, budget = (
            features.get(f"{part.over}/{what}") for what in ("resource", "cost", "budget")
        )
        return cls(
            legal=legal,
            picks=part.max,
            extras=len(part.extra),
            resource=resource,
            cost=cost,
            budget=budget,
        )

    def first(self) -> Open:
        """Everything legal that the whole budget can pay."""
        if self.cost is None or self.budget is None:
            return Open(self.legal, None)
        return Open(self.legal & ~self._as_entries(self._too_dear(self.budget)), self.budget)

    def after(self, now: Open, index: Int64[Tensor, "*batch"]) -> Open:
        """What is left once `index` was picked: after a stop the stop alone, which costs nothing.

        With nothing but one entry open every later factor of the sequence is 1, so what follows a
        stop needs no case of its own.
        """
        entry = torch.arange(self.legal.shape[-1], device=index.device)
        stop = entry == 0
        closed = entry == index.unsqueeze(-1)  # [*batch, n]
        row = (index - self.extras).clamp(min=0).unsqueeze(-1)  # [*batch, 1]
        is_row = (index >= self.extras).unsqueeze(-1)
        if self.resource is not None:
            closed = closed | self._as_entries(self._clashes(row, is_row))
        funds = now.funds
        if self.cost is not None and funds is not None:
            paid = torch.where(is_row, self.cost.gather(-1, row), 0.0)
            funds = funds - paid.squeeze(-1)
            closed = closed | self._as_entries(self._too_dear(funds))
        stopped = (index == 0).unsqueeze(-1)
        return Open(torch.where(stopped, stop, (now.entries & ~closed) | stop), funds)

    def supports(self, x: Sequence) -> Bool[Tensor, "*batch"]:
        """Whether each pick was open when it was made, and nothing but 0 follows a stop."""
        n = self.legal.shape[-1]
        now, fine = self.first(), torch.ones_like(x[..., 0], dtype=torch.bool)
        for j in range(self.picks):
            index = x[..., j].clamp(0, n - 1)
            fine = fine & (index == x[..., j])
            fine = fine & now.entries.gather(-1, index.unsqueeze(-1)).squeeze(-1)
            now = self.after(now, index)
        return fine

    def _too_dear(self, funds: Tensor) -> Tensor:
        assert self.cost is not None
        return self.cost > funds.unsqueeze(-1)  # [*batch, n - extras]

    def _clashes(self, row: Tensor, is_row: Tensor) -> Tensor:
        """Rows `[*batch, n - extras]` that occupy something the picked row occupies."""
        assert self.resource is not None
        R = self.resource.shape[-1]
        at = row.unsqueeze(-1).expand(*row.shape, R)  # [*batch, 1, R]
        taken = self.resource.gather(-2, at)
        taken = torch.where(is_row.unsqueeze(-1) & (taken >= 0), taken, _NO_RESOURCE)
        shares = torch.zeros_like(self.resource, dtype=torch.bool)
        for one in taken.unbind(dim=-1):  # [*batch, 1]; all at once took twice as long
            shares = shares | (self.resource == one.unsqueeze(-1))
        return shares.any(dim=-1)

    def _as_entries(self, rows: Tensor) -> Tensor:
        """A flag of the rows as one of all entries; the extras are not flagged."""
        return torch.nn.functional.pad(rows, (self.extras, 0))


class PickSequence:
    """Picks one after another without replacement, from one score for each entry.

    Pick j is a softmax over what picks before it left open; the log-prob is the sum over the picks
    and the stop (after the last possible pick there is none to make). The whole law is a pure
    function of scores and choice set, so the first set and the picks are all that must be stored.

    Its exact entropy and divergence are sums over every possible sequence. `log_prob_and_entropy`
    therefore gives the entropies of the sets that x visited, added up: a function of the action
    whose mean over actions is the entropy. `entropy` and `kl` follow the most probable picks.
    """

    def __init__(
        self,
        logits: Float[Tensor, "*batch n"],
        options: PickSet,
        explore: Exploration = AS_IT_IS,
    ) -> None:
        self.logits = at_least_float32(logits)
        self.options, self.explore = options, explore

    def _pick(self, now: Open) -> Categorical:
        return Categorical(self.logits, now.entries, self.explore)

    def _follow(self, choose: Callable[[Categorical], Tensor]) -> Sequence:
        now, x = self.options.first(), []
        for _ in range(self.options.picks):
            x.append(choose(self._pick(now)))
            now = self.options.after(now, x[-1])
        return torch.stack(x, dim=-1)

    def _sets(self, x: Sequence) -> list[Open]:
        """What was open at each pick of x."""
        visited = [self.options.first()]
        for j in range(self.options.picks - 1):
            visited.append(self.options.after(visited[-1], x[..., j]))
        return visited

    def sample(self, draw: Draw) -> Sequence:
        """Picks by Gumbel noise, fresh for each pick; zeros after a stop."""
        return self._follow(lambda pick: pick.sample(draw))

    def mode(self) -> Sequence:
        """The most probable pick of each set in turn; the sequence as a whole may not be it."""
        return self._follow(lambda pick: pick.mode())

    def log_prob(self, x: Sequence) -> PerRow:
        """Log-probability of the sequence; -inf for one that breaks a rule."""
        return self.log_prob_and_entropy(x)[0]

    def entropy(self) -> PerRow:
        """Entropies of the sets along the most probable picks, added up."""
        return self.log_prob_and_entropy(self.mode())[1]

    def log_prob_and_entropy(self, x: Sequence) -> tuple[PerRow, PerRow]:
        """Log-probability of x, and the entropies of the sets it visited, added up."""
        log_prob = torch.zeros_like(self.logits[..., 0])
        entropy = log_prob
        for j, now in enumerate(self._sets(x)):
            pick = self._pick(now)
            log_prob = log_prob + pick.log_prob(x[..., j])
            entropy = entropy + pick.entropy()
        return log_prob, entropy

    def kl(self, other: "PickSequence") -> PerRow:
        """Divergences of the picks from the other's along the most probable picks, added up."""
        total = torch.zeros_like(self.logits[..., 0])
        for now in self._sets(self.mode()):
            total = total + self._pick(now).kl(other._pick(now))
        return total

    def choices(self) -> Int64[Tensor, "*batch"]:
        """How many entries the first pick could choose from."""
        return self.options.first().entries.sum(dim=-1)

    def entropy_share(self) -> PerRow:
        """Entropy of the first pick as a share of its maximum: 0 sure to 1 uniform."""
        return self._pick(self.options.first()).entropy_share()

    def most_entropy(self, x: Sequence) -> PerRow:
        """What the entropy of x would be if every set it visited were chosen from uniformly."""
        total = torch.zeros_like(self.logits[..., 0])
        for now in self._sets(x):
            total = total + now.entries.sum(dim=-1).to(total.dtype).log()
        return total


def choice(
    part: CategoricalPart | Candidates | Picks,
    logits: Float[Tensor, "*batch n"],
    legal: Bool[Tensor, "*batch n"] | None,
    features: Mapping[str, Tensor],
    explore: Exploration = AS_IT_IS,
) -> Discrete:
    """The law of a discrete part from its scores and what the observation says of its choices."""
    if not isinstance(part, Picks):
        return Categorical(logits, legal, explore)
    if legal is None:
        raise ValueError(f"Picks over {part.over} need their legal entries in the observation")
    return PickSequence(logits, PickSet.of(part, legal, features), explore)
