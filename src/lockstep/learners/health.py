"""Health numbers of an update: what tells learning from going through its motions.

All are by member, `[P]`, and stay on the device; nothing here waits for the host or has a shape
that depends on data, so an update can be captured whole.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lockstep.core import fused
from lockstep.core.company import ALONE, Company
from lockstep.core.distributions import (
    Beta,
    ClippedGaussian,
    Discrete,
    Distribution,
    Joint,
    SigmoidGaussian,
)
from lockstep.learners.batch import RoleBatch, split_lanes, weighted_mean

Stats = dict[str, Tensor]

_ONE, _LOG_RATIO, _RATIO, _ADVANTAGE = range(4)  # rows of a gram
_CONCENTRATION = "/concentration_max"
_FLAT = 1e-12  # a variance below this is none, or rounding


def of_rollout(name: str, role: RoleBatch, reward: Tensor, company: Company = ALONE) -> Stats:
    """Moments of what was collected in all processes, before anything is normalised.

    `reward [T, L, A]` counts at every step, values and returns where the critic learns from them,
    advantages where an agent decided.
    """
    steps = split_lanes(reward, len(role.value), dim=1).movedim(1, 0).flatten(1)  # [P, T * N * A]
    rewards = company.pooled(steps.mean(dim=1), steps.std(dim=1, correction=0))
    value, target = (
        _mean_and_deviation(x, role.judged, role.n_judged, company)
        for x in (role.value, role.target)
    )
    _, advantage_std = _mean_and_deviation(role.advantage, role.decided, role.n_decided, company)
    found = {
        "explained_variance": explained_variance(role, company),
        "reward_mean": rewards[0],
        "reward_std": rewards[1],
        "value_mean": value[0],
        "value_std": value[1],
        "return_mean": target[0],
        "return_std": target[1],
        "advantage_std": advantage_std,
    }
    return {f"train/{name}/{what}": x for what, x in found.items()}


def explained_variance(role: RoleBatch, company: Company = ALONE) -> Tensor:
    """Share of the targets' variance that the collected values explain, by member `[P]`.

    Only rows count from which the critic learns; it is 0 where the targets do not vary.
    """
    where, miss = (role.judged, role.n_judged, company), role.target - role.value
    spread = _variance(role.target, *where)
    share = 1 - _variance(miss, *where) / spread.clamp(min=_FLAT)
    return torch.where(spread > _FLAT, share, 0.0)


def _mean_and_deviation(
    x: Tensor, weight: Tensor, count: Tensor, company: Company
) -> tuple[Tensor, Tensor]:
    mean = company.sum(weighted_mean(x, weight, count))
    return mean, _variance(x, weight, count, company).sqrt()


def _variance(x: Tensor, weight: Tensor, count: Tensor, company: Company) -> Tensor:
    centre = company.sum(weighted_mean(x, weight, count)).view(-1, *(1 for _ in x.shape[1:]))
    return company.sum(weighted_mean((x - centre) ** 2, weight, count))


@dataclass(kw_only=True)
class Seen:
    """What one pass tells of a minibatch, or of a part of it; parts add up to the whole."""

    means: Stats = field(default_factory=dict)  # key -> [P], a part's share of the mean
    grams: Stats = field(default_factory=dict)  # role -> [P, 4, 4], see `judge`
    sums: Stats = field(default_factory=dict)  # key -> [P] float64, see `count`
    peaks: Stats = field(default_factory=dict)  # key -> [P]

    def judge(self, name: str, role: RoleBatch, log_ratio: Tensor, ratio: Tensor) -> None:
        """Keeps how far the policy has moved, as mean products of pairs of columns.

        The columns are 1, log ratio, ratio and advantage, all 0 where the agent only waited.
        """
        here, log_ratio, ratio = role.decided, log_ratio.detach(), ratio.detach()
        columns = torch.stack((here, log_ratio, ratio * here, role.advantage), dim=1)
        columns = columns.flatten(2).double()  # [P, 4, T * N * A]
        total = by_pairs(columns) if fused.fits(ratio) else columns @ columns.mT
        self.grams[name] = total / role.n_decided.clamp(min=1.0).view(-1, 1, 1)
        self.peaks[f"train/{name}/ratio_max"] = _largest(ratio, role.decided)

    def count(self, name: str, law: Joint, role: RoleBatch) -> None:
        """Keeps how sure the policy is and how much it may choose from."""
        with torch.no_grad():
            for part in law.parts.values():
                for what, x in _census(part, role.decided).items():
                    key = f"{name}/{what}"
                    sums = x.flatten(1).sum(dim=1, dtype=torch.float64)
                    self.sums[key] = self.sums[key] + sums if key in self.sums else sums
                if isinstance(part, Beta):
                    key = f"train/{name}{_CONCENTRATION}"
                    peak = _largest((part.alpha + part.beta).amax(dim=-1), role.decided)
                    self.peaks[key] = torch.maximum(self.peaks.get(key, peak), peak)

    def uncounted(self) -> "Seen":
        """The same without what `count` keeps."""
        peaks = {name: x for name, x in self.peaks.items() if not name.endswith(_CONCENTRATION)}
        return replace(self, sums={}, peaks=peaks)

    def __add__(self, other: "Seen") -> "Seen":
        return Seen(
            means=_sum(self.means, other.means),
            grams=_sum(self.grams, other.grams),
            sums=_sum(self.sums, other.sums),
            peaks=_max(self.peaks, other.peaks),
        )

    def over(self, company: Company) -> "Seen":
        """What all processes saw, each of which has a part of the minibatch."""
        if company.size == 1:
            return self
        added = (self.means, self.grams, self.sums)
        total = iter(company.sums([x for stats in added for x in stats.values()]))
        means, grams, sums = ({name: next(total) for name in stats} for stats in added)
        peaks = company.max(torch.stack(list(self.peaks.values())))
        return Seen(
            means=means, grams=grams, sums=sums, peaks=dict(zip(self.peaks, peaks, strict=True))
        )


def by_pairs(columns: Tensor) -> Tensor:
    """`columns @ columns.mT` `[P, 4, 4]` as one sum for each pair of columns `[P, 4, n]`.

    Of so narrow a product a GPU may leave all n rows of a member to one multiprocessor.
    """
    return (columns.unsqueeze(1) * columns.unsqueeze(2)).sum(dim=-1)


def _census(part: Distribution, weight: Tensor) -> Stats:
    """What is added up over rows `[P, T, N, A]`: of choices, or of numbers."""
    if isinstance(part, Discrete):
        choices = part.choices()
        free = weight * (choices > 1)
        return {
            "choosing": weight,
            "choices": weight * choices,
            "free": free,
            "share": free * part.entropy_share(),
        }
    if isinstance(part, Beta):
        total = part.alpha + part.beta  # [P, T, N, A, n]
        return {"numbers": weight * total.shape[-1], "concentration": weight * total.sum(dim=-1)}
    assert isinstance(part, ClippedGaussian | SigmoidGaussian)
    deviation = part.log_std.exp()
    return {"numbers": weight * deviation.shape[-1], "std": weight * deviation.sum(dim=-1)}


class Tally:
    """What the minibatches of an update add up to.

    Means are over the minibatches a member took part in, peaks over all of them, and what policies
    may choose from over the first epoch, which covers every row once.
    """

    def __init__(self) -> None:
        self.first = Seen()
        self._last = Seen()
        self._names: tuple[str, ...] = ()
        self._taken = self._means = torch.zeros(())
        self._grams: Stats = {}
        self._sums: Stats = {}
        self._peaks: Stats = {}

    def add(self, seen: Seen, active: Tensor) -> None:
        """One more minibatch, which the members in `active [P]` learned from."""
        means = torch.stack(list(seen.means.values()))  # [names, P]
        if not self._names:
            self.first, self._names = seen, tuple(seen.means)
            self._taken = torch.zeros_like(means[0])
            self._means = torch.zeros_like(means)
            self._grams = {name: torch.zeros_like(x) for name, x in seen.grams.items()}
        self._last = seen
        self._taken = self._taken + active
        self._means = self._means + torch.where(active, means, 0.0)
        mine = active.view(-1, 1, 1)
        for name, gram in seen.grams.items():
            self._grams[name] = self._grams[name] + torch.where(mine, gram, 0.0)
        self._sums = _sum(self._sums, seen.sums)
        self._peaks = _max(self._peaks, seen.peaks)

    def stats(self) -> Stats:
        """Every number, by metric key."""
        taken = self._taken.clamp(min=1)
        found = dict(zip(self._names, self._means / taken, strict=True))
        for name, gram in self._grams.items():
            moved = _of_ratios(gram / taken.view(-1, 1, 1), self._last.grams[name])
            chose = _of_census(self._sums, name)
            found |= {f"train/{name}/{what}": x for what, x in (moved | chose).items()}
        return found | self._peaks | {"train/minibatches": self._taken}


def _of_ratios(gram: Tensor, last: Tensor) -> Stats:
    """Estimators of how far the policy moved, from mean products `[P, 4, 4]`.

    The correlation is that of the last pass, which saw all steps but the last one: an update that
    works raises what had a positive advantage, so it is above 0 (and 0 before any step).
    """
    log_ratio, advantage = last[:, _ONE, _LOG_RATIO], last[:, _ONE, _ADVANTAGE]
    together = last[:, _LOG_RATIO, _ADVANTAGE] - log_ratio * advantage
    moved = last[:, _LOG_RATIO, _LOG_RATIO] - log_ratio**2
    varied = last[:, _ADVANTAGE, _ADVANTAGE] - advantage**2
    correlation = together / (moved.clamp(min=_FLAT) * varied.clamp(min=_FLAT)).sqrt()
    return {
        "ratio_mean": gram[:, _ONE, _RATIO],
        "effective_share": 1 / gram[:, _RATIO, _RATIO].clamp(min=_FLAT),
        "k1": -gram[:, _ONE, _LOG_RATIO],
        "k2": gram[:, _LOG_RATIO, _LOG_RATIO] / 2,
        "advantage_corr": torch.where((moved > _FLAT) & (varied > _FLAT), correlation, 0.0),
    }


def _of_census(sums: Stats, role: str) -> Stats:
    """Means over the rows that were counted; a role without such a part has no such number."""

    def mean(what: str, over: str) -> Tensor:
        return sums[f"{role}/{what}"] / sums[f"{role}/{over}"].clamp(min=1.0)

    found: Stats = {}
    if f"{role}/choosing" in sums:
        found["entropy_share"] = mean("share", "free")
        found["choices"] = mean("choices", "choosing")
        forced = sums[f"{role}/choosing"] - sums[f"{role}/free"]
        found["forced_share"] = forced / sums[f"{role}/choosing"].clamp(min=1.0)
    for what in ("concentration", "std"):
        if f"{role}/{what}" in sums:
            found[what] = mean(what, "numbers")
    return found


def _largest(x: Tensor, weight: Tensor) -> Tensor:
    """The largest x >= 0 among the rows with a decision, `[P]`."""
    return torch.where(weight > 0, x, 0.0).flatten(1).amax(dim=1)


def _sum(one: Stats, other: Stats) -> Stats:
    return one | {name: one[name] + x if name in one else x for name, x in other.items()}


def _max(one: Stats, other: Stats) -> Stats:
    return one | {
        name: torch.maximum(one[name], x) if name in one else x for name, x in other.items()
    }
