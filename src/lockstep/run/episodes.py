"""What finished episodes came to, kept over rollouts and on their device."""

from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import write
from lockstep.core.rollout import Rollout
from lockstep.core.world import WorldSpec
from lockstep.run.metrics import FOLDS, Fold

WINDOW = 100
"""Finished episodes of a member that are remembered."""
QUANTILES = {"return_p10": 0.1, "return_p50": 0.5, "return_p90": 0.9, "return_p99": 0.99}


class Episodes:
    """A window of each member's last finished episodes, and what runs in each lane.

    World metrics that are not means over steps are numbers of episodes too: they are reported over
    those that ended in the rollout, and not kept.

    A role's return is the sum over an episode of the mean reward of its agents, undiscounted.
    Sums are taken in float64, and nothing waits for the device or has a shape that depends on
    data. What leads with L in the state is by lane, what leads with P by member.
    """

    def __init__(
        self, spec: WorldSpec, *, members: int, lanes: int, device: torch.device | str = "cpu"
    ) -> None:
        names = [*(f"return/{role.name}" for role in spec.roles), "length"]
        blank = torch.full((members, WINDOW), torch.nan, dtype=torch.float64, device=device)
        nothing = torch.zeros(members * lanes, dtype=torch.float64, device=device)
        self._folds = {m.name: FOLDS[m.over] for m in spec.metrics if m.over != "mean"}
        self._running = {name: nothing.clone() for name in names}  # [L]
        self._running |= {
            f"metric/{name}": torch.full_like(nothing, fold.start)
            for name, fold in self._folds.items()
        }
        self._window = {name: blank.clone() for name in names}  # [P, WINDOW]
        self._finished = torch.zeros(members, dtype=torch.int64, device=device)
        self._asked = torch.tensor(list(QUANTILES.values()), dtype=torch.float64, device=device)
        self._roles = [role.name for role in spec.roles]

    @torch.no_grad()
    def add(self, rollout: Rollout) -> dict[str, Tensor]:
        """Counts a full rollout in; `episode/...` to `[P]`, NaN for a member without an end yet.

        `world/<name>` of metrics that are not means come beside them, NaN for a member whose lanes
        saw no end in this rollout.
        """
        ends = rollout.terminated | rollout.truncated  # [T, L]
        earned = {
            f"return/{name}": rows.reward.double().mean(dim=-1)  # [T, L]
            for name, rows in rollout.roles.items()
        }
        earned["length"] = torch.ones_like(ends, dtype=torch.float64)
        before = _last_end_before(ends)
        newest, some = self._places(ends)
        for name, x in earned.items():
            total = _running_sum(x) + self._running[name]  # [T, L], as if no episode ever ended
            start = torch.where(before < 0, 0.0, total.gather(0, before.clamp(min=0)))
            self._running[name].copy_(torch.where(ends[-1], 0.0, total[-1] - start[-1]))
            candidates = torch.cat((self._window[name], self._by_member(total - start)), dim=1)
            self._window[name].copy_(torch.where(some, candidates.gather(1, newest), torch.nan))
        count = self._by_member(ends).sum(dim=1)
        self._finished += count
        found = self.stats()
        for name, fold in self._folds.items():
            through = self._fold(name, fold, rollout.metrics[name], ends)
            total = self._by_member(torch.where(ends, through, 0.0)).sum(dim=1)
            found[f"world/{name}"] = total / count
        return found

    def _fold(self, name: str, fold: Fold, x: Tensor, ends: Tensor) -> Tensor:
        """The metric of each running episode up to each row, `[T, L]`; what runs on is kept."""
        running = self._running[f"metric/{name}"]
        first = fold.join(running, x[0].double()).unsqueeze(0)
        begins = torch.cat((torch.zeros_like(ends[:1]), ends[:-1]))
        through = _running_fold(torch.cat((first, x[1:].double())), begins, fold)
        running.copy_(torch.where(ends[-1], fold.start, through[-1]))
        return through

    def stats(self) -> dict[str, Tensor]:
        """Means and quantiles over the window, and how many episodes have ended so far."""
        found: dict[str, Tensor] = {}
        for name in self._roles:
            window = self._window[f"return/{name}"]
            found[f"episode/{name}/return_mean"] = window.nanmean(dim=1)
            for what, x in zip(QUANTILES, _quantiles(window, self._asked), strict=True):
                found[f"episode/{name}/{what}"] = x
        found["episode/length_mean"] = self._window["length"].nanmean(dim=1)
        found["episode/finished"] = self._finished.double()
        return found

    def _by_member(self, x: Tensor) -> Tensor:
        """`[T, L]` as `[P, T * N]`, in the order things happened."""
        return x.view(len(x), len(self._finished), -1).movedim(1, 0).flatten(1)

    def _places(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Where the newest episodes stand among window and rollout, `[P, WINDOW]`, and if any does.

        The oldest comes first; places that no episode fills come before it.
        """
        kept = ~self._window["length"].isnan()
        order = torch.cat((kept, self._by_member(ends)), dim=1).cumsum(dim=1)  # [P, WINDOW + T * N]
        wanted = order[:, -1:] - torch.arange(WINDOW - 1, -1, -1, device=ends.device)
        place = torch.searchsorted(order, wanted.clamp(min=1))
        return place.clamp(max=order.shape[1] - 1), wanted >= 1

    def state_dict(self) -> dict[str, Any]:
        """What has been earned in each lane, the windows and the count."""
        return {
            "running": {name: x.clone() for name, x in self._running.items()},
            "window": {name: x.clone() for name, x in self._window.items()},
            "finished": self._finished.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them up again in place."""
        for name, x in self._running.items():
            write(x, state["running"][name], f"the episodes' running {name}")
        for name, x in self._window.items():
            write(x, state["window"][name], f"the episodes' window of {name}")
        write(self._finished, state["finished"], "the count of episodes")


def _last_end_before(ends: Tensor) -> Tensor:
    """For each row of `[T, L]` the last earlier row that ended an episode, -1 where none did."""
    T = len(ends)
    row = torch.arange(T, device=ends.device).unsqueeze(-1)
    upto = torch.where(ends, row, -1).cummax(dim=0).values
    return torch.cat((torch.full_like(upto[:1], -1), upto[:-1]))


def _running_sum(x: Tensor) -> Tensor:
    """Sums of `[T, ...]` up to each row, in an order that is the same on every device.

    Torch promises no equal bits for `cumsum` of reals on a GPU.
    """
    reach = 1
    while reach < len(x):
        x = torch.cat((x[:reach], x[reach:] + x[:-reach]))
        reach *= 2
    return x


def _running_fold(x: Tensor, begins: Tensor, fold: Fold) -> Tensor:
    """`fold` of `[T, L]` up to each row, afresh at rows where an episode `begins`; see above."""
    reach = 1
    while reach < len(x):
        joined = fold.join(x[:-reach], x[reach:])
        x = torch.cat((x[:reach], torch.where(begins[reach:], x[reach:], joined)))
        begins = torch.cat((begins[:reach], begins[reach:] | begins[:-reach]))
        reach *= 2
    return x


def _quantiles(window: Tensor, q: Tensor) -> Tensor:
    """Quantiles `[len(q), P]` of the numbers in each row of `[P, n]`, interpolated; NaN of none."""
    ordered = window.sort(dim=1).values  # NaN goes last
    last = (~window.isnan()).sum(dim=1).sub(1).clamp(min=0)  # [P]
    place = q.unsqueeze(-1) * last  # [q, P]
    low = place.floor().long()
    high = torch.minimum(low + 1, last)
    below, above = (ordered.gather(1, at.T).T for at in (low, high))
    return torch.lerp(below, above, place - low)
