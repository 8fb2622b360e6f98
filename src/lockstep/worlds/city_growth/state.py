"""The tensors of the world that change from month to month, and the numbers of each lane."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lockstep.worlds.city_growth.config import SETTABLE, CityConfig
from lockstep.worlds.city_growth.tables import Tensors

FREE = -1
NEVER = -1_000


@dataclass(frozen=True, kw_only=True)
class State(Tensors):
    """Persistent, written in place. N slots, A agents, E points, B ledgers, Y types."""

    month: Tensor  # [L] int64, 0 at the start
    map: Tensor  # [L] int64: the city of the lane
    owner: Tensor  # [L, N] int64: agent, FREE where nothing stands
    kind: Tensor  # [L, N] int64: type of the building, FREE where nothing stands
    paid: Tensor  # [L, N] cost of the building, on the first slot of its footprint
    near_px: Tensor  # [L, A, N] distance to the agent's nearest building, infinite without one
    near_px2: Tensor  # [L, E] squared distance of each point to the nearest building of anybody
    free_neighbours: Tensor  # [L, N]
    field: Tensor  # [L, E] land price
    balance: Tensor  # [L, B] float64, thousand GBP, whole
    income: Tensor  # [L, A] float64, a month
    prestige: Tensor  # [L, A] float64
    count: Tensor  # [L, A, Y] int64 buildings
    last_built: Tensor  # [L, A, Y] int64 month, NEVER; kept where diversity is rewarded
    tally: Tensor  # [L, A, len(TALLY)] float64: what episode metrics are made of
    ledger: Tensor  # [L, B, len(LEDGER)] float64: the same for balances

    def copy_(self, source: "State") -> None:
        """Takes over the values of `source` in place."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(source, field.name))

    def replaced_where(self, ended: Tensor, fresh: "State") -> "State":
        """`fresh` in the lanes `ended` `[L]`, this state in the others."""
        return State(
            **{
                name: torch.where(ended.view(-1, *(1,) * (old.ndim - 1)), getattr(fresh, name), old)
                for name, old in self.tensors().items()
            }
        )


TALLY = ("decisions", "candidates", "dropped", "skipped", "conflicts", "refused", "most", "return")
"""Running totals of an agent's episode; `most` is the largest candidate set."""
LEDGER = ("lowest", "debt_months")
"""Running numbers of a balance's episode."""


@dataclass(frozen=True, kw_only=True)
class Numbers(Tensors):
    """Scenario numbers `[L]`, float32."""

    start_share: Tensor
    debt_penalty: Tensor
    interest: Tensor
    grant: Tensor

    @classmethod
    def of(cls, config: CityConfig, *, lanes: int, device: torch.device) -> "Numbers":
        """The config's numbers, the same in every lane."""
        return cls(
            **{
                name: torch.full((lanes,), float(getattr(config, name)), device=device)
                for name in SETTABLE
            }
        )

    def copy_(self, source: "Numbers") -> None:
        """Takes over the values of `source` in place."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(source, field.name))
