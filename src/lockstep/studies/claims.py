"""What a faithful reproduction of the UAV paper must show, claim by claim."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.run.jsonable import Json
from lockstep.studies import paper
from lockstep.studies.aggregate import Mark
from lockstep.studies.checks import (
    BySeed,
    Checks,
    Measured,
    below,
    by_seed,
    known,
    orders,
    relative,
    trends,
    within,
)
from lockstep.studies.paper import AB, AG, FIRST, MADDPG, TAIL, B, Place
from lockstep.studies.stats import smoothed

Verdict: TypeAlias = Literal[
    "holds", "holds so far", "mostly holds", "not separated", "fails", "left out"
]

_AVERAGE, _TOTAL = "world/weighted_energy_mu_avg", "world/weighted_energy_mu_total"
FIG3A: Place = ("fig3", "world/mu_reward", "")
FIG3B: Place = ("fig3", "world/uav_reward", "")
FIG4: Place = ("fig4", _AVERAGE, "")
FIG5: Place = ("fig5", "world/jain_fairness", "")
FIG6: Place = ("fig6", _TOTAL, "")
FIG7: Place = ("fig7", _AVERAGE, "")
FIG8: Place = ("fig8", _AVERAGE, "")
FIG9A: Place = ("fig9", "world/mu_energy_avg", "")
FIG9B: Place = ("fig9", "world/uav_energy_avg", "")
FIG10A: Place = ("fig10", _AVERAGE, "MU CPU")
FIG10B: Place = ("fig10", _AVERAGE, "UAV CPU")
FIG11: Place = ("fig11", _AVERAGE, "")
FIG12: Place = ("fig12", _AVERAGE, "")

CONVERGED = 0.95
"""Share of the way from its first value to its last at which a curve counts as converged."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper and what the results say about it."""

    text: str
    strong: bool
    """Whether it should hold at every point; a weak one is a trend."""
    checks: Checks

    def count(self, outcome: str) -> int:
        """How many of its checks came out so."""
        return sum(check.outcome == outcome for check in known(self.checks))

    @property
    def left_out(self) -> int:
        """How many of its checks lack results."""
        return sum(check is None for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """What its checks come to.

        holds: every check does; holds so far: every one whose results are there; mostly holds: more
        than half of them; fails: more fail than are open; not separated: the seeds leave it open.
        """
        held, failed = self.count("holds"), self.count("fails")
        of = len(known(self.checks))
        if not of:
            return "left out"
        if held == of:
            return "holds so far" if self.left_out else "holds"
        if 2 * held > of:
            return "mostly holds"
        return "fails" if failed > self.count("not separated") else "not separated"

    def to_json(self) -> Json:
        """Everything."""
        return {
            "text": self.text,
            "strong": self.strong,
            "verdict": self.verdict,
            "holds": self.count("holds"),
            "not_separated": self.count("not separated"),
            "fails": self.count("fails"),
            "left_out": self.left_out,
            "checks": [check.to_json() for check in known(self.checks)],
        }


def claims(measured: Measured) -> list[Claim]:
    """Every claim, the strong ones first; those about what the study does not ask for are empty."""
    m = measured
    strong = {
        "Fig. 3a, 4: at the end AB is ahead of B, B of AG, AG of MADDPG": [
            *orders(m, FIG3A),
            *orders(m, FIG4),
        ],
        "Fig. 3b: AB and B end ahead of AG, AG of MADDPG": orders(m, FIG3B),
        "Fig. 3a, 4: AB makes half of its drop in 6k steps; its users' reward halves": _fast(m),
        "Fig. 5: fairness dips in 3k steps, then rises; AB ends above AG": [
            *trends(m, FIG5),
            *orders(m, FIG5),
        ],
        "Fig. 6: energy rises with K; all learners in order": [*trends(m, FIG6), *orders(m, FIG6)],
        "Fig. 7: energy falls with M; all learners in order": [*trends(m, FIG7), *orders(m, FIG7)],
        "Fig. 8: energy falls with bandwidth; all learners in order": [
            *trends(m, FIG8),
            *orders(m, FIG8),
        ],
        "Fig. 9: users' energy rises with the weight, steepest at its end; UAVs' falls": [
            *trends(m, FIG9A),
            *trends(m, FIG9B),
            *_steepest_at_the_end(m),
        ],
        "Fig. 10: energy falls with CPU limits, then is flat; more users are higher": [
            check for place in (FIG10A, FIG10B) for check in (*trends(m, place), *orders(m, place))
        ],
        "Fig. 11: energy rises with deviation, by 10-15 %; more users are higher": [
            *trends(m, FIG11),
            *_rises(m),
            *orders(m, FIG11),
        ],
        "Fig. 12: energy rises with task size; less bandwidth is higher; no twin 15-20 % higher": [
            *trends(m, FIG12),
            *orders(m, FIG12, only=_differ_in_one),
            *_twin_gaps(m),
        ],
    }
    weak = {
        "Fig. 4: AB is the first to converge": _first_to_converge(m),
        "Fig. 6: AB's lead over the other learners widens with K": _lead(m, FIG6, wider=True),
        "Fig. 8: AB's lead over the other learners narrows with bandwidth": _lead(
            m, FIG8, wider=False
        ),
        "Fig. 6: attention matters more for larger K": _attention(m),
        "Fig. 4: AB is smoother than B and AG": _smoother(m),
    }
    return [
        Claim(text=text, strong=group is strong, checks=list(checks))
        for group in (strong, weak)
        for text, checks in group.items()
    ]


def _fast(m: Measured) -> Checks:
    first, early, last = (m.landmark(FIG4, AB, at) for at in (FIRST, "5-7k", TAIL))
    start, end = (m.landmark(FIG3A, AB, at) for at in (FIRST, TAIL))
    found: Checks = [None, None]
    if first is not None and early is not None and last is not None:
        half = {seed: 0.5 * (first[seed] - last[seed]) for seed in first}
        made = {seed: first[seed] - early[seed] for seed in first}
        found[0] = below("AB has made more than half of its drop at 6k steps", half, made)
    if start is not None and end is not None:
        twice, whole = (
            {s: k * abs(y) for s, y in row.items()} for k, row in ((2, end), (1, start))
        )
        found[1] = below("AB's users' reward is at least halved in magnitude", twice, whole)
    return found


def _steepest_at_the_end(m: Measured) -> Checks:
    """The last slope against the steepest of the others."""
    axis = m.axis(FIG9A, AB)
    values = [m.at(FIG9A, AB, x) for x in axis]
    held = [value for value in values if value is not None]
    what = "the last step of the users' energy is its steepest"
    if len(axis) < 3:
        return []
    if len(held) < len(axis):
        return [None]
    slopes = [
        {seed: (high[seed] - low[seed]) / (b - a) for seed in high}
        for (a, low), (b, high) in pairwise(zip(axis, held, strict=True))
    ]
    return [below(what, max(slopes[:-1], key=_mean), slopes[-1])]


def _rises(m: Measured) -> Checks:
    """The whole rise of each series of figure 11."""
    found: Checks = []
    for name in paper.MARKS[FIG11]:
        axis = m.axis(FIG11, name)
        if len(axis) < 2 or axis[-1] < max(paper.MARKS[FIG11][name]):
            continue
        first, last = (m.at(FIG11, name, x) for x in (axis[0], axis[-1]))
        rise = None if first is None or last is None else relative(last, first)
        found.append(within(f"{name} rises by 10 to 15 % in all", rise, 0.10, 0.15))
    return found


def _twin_gaps(m: Measured) -> Checks:
    """How far the series without twin stand above those with, on average over task sizes."""
    found: Checks = []
    for name in paper.MARKS[FIG12]:
        band, _, kind = name.partition(" ")
        other = f"{band} w/o DT"
        axis = m.axis(FIG12, name)
        if kind != "with DT" or not axis:
            continue
        pairs = [(m.at(FIG12, other, x), m.at(FIG12, name, x)) for x in axis]
        gaps = [relative(a, b) for a, b in pairs if a is not None and b is not None]
        mean = _average(gaps) if len(gaps) == len(axis) else None
        found.append(within(f"{band}: 15 to 20 % higher without twin", mean, 0.15, 0.20))
    return found


def _differ_in_one(one: str, other: str) -> bool:
    """Whether two series of figure 12 differ in bandwidth or in their twin, and not in both."""
    (band, _, kind), (other_band, _, other_kind) = one.partition(" "), other.partition(" ")
    return (band == other_band) != (kind == other_kind)


def _first_to_converge(m: Measured) -> Checks:
    def steps(name: str) -> BySeed | None:
        mark = m.mark(FIG4, name)
        return None if mark is None else by_seed(mark, lambda curve: _converged(mark, curve))

    others = [name for name in (B, AG, MADDPG) if m.has(FIG4, name)]
    return [below(f"AB converges before {name}", steps(AB), steps(name)) for name in others]


def _converged(mark: Mark, curve: NDArray[np.float64]) -> float:
    """Steps after which a curve has made nearly all of its way."""
    smooth = smoothed(curve[None])[0]
    end = float(np.mean(curve[-20:]))
    way = (smooth - smooth[0]) / (end - smooth[0]) if end != smooth[0] else np.ones_like(smooth)
    return float(mark.steps[np.argmax(way >= CONVERGED)])


def _lead(m: Measured, place: Place, *, wider: bool) -> Checks:
    """The mean distance of the other learners from AB, at both ends of the axis."""
    others = (B, AG, MADDPG)
    axis = m.axis(place, AB)
    if len(axis) < 2:
        return []
    first, last = (_distance(m, place, others, x) for x in (axis[0], axis[-1]))
    what = f"the others' mean distance from AB {'grows' if wider else 'shrinks'}"
    return [below(what, first, last) if wider else below(what, last, first)]


def _attention(m: Measured) -> Checks:
    axis = m.axis(FIG6, AB)
    if len(axis) < 2:
        return []
    first, last = (_distance(m, FIG6, (B,), x) for x in (axis[0], axis[-1]))
    return [below("the distance between B and AB grows", first, last)]


def _distance(m: Measured, place: Place, others: tuple[str, ...], x: float) -> BySeed | None:
    """How far others are above AB on average, by seed."""
    base = m.at(place, AB, x)
    held = [value for name in others if (value := m.at(place, name, x)) is not None]
    if base is None or len(held) < len(others):
        return None
    return _average([{s: value[s] - base[s] for s in base if s in value} for value in held])


def _smoother(m: Measured) -> Checks:
    def rough(name: str) -> BySeed | None:
        mark = m.mark(FIG4, name)
        return None if mark is None else by_seed(mark, _roughness)

    others = [name for name in (B, AG) if m.has(FIG4, name)]
    return [below(f"AB is smoother than {name}", rough(AB), rough(name)) for name in others]


def _roughness(curve: NDArray[np.float64]) -> float:
    """Mean size of the steps between updates in the second half."""
    return float(np.abs(np.diff(curve[len(curve) // 2 :])).mean()) if len(curve) > 2 else 0.0


def _average(values: list[BySeed]) -> BySeed:
    """Means by seed, of the seeds that all have."""
    common = set.intersection(*(set(value) for value in values))
    return {seed: float(np.mean([value[seed] for value in values])) for seed in sorted(common)}


def _mean(value: BySeed) -> float:
    return float(np.mean(list(value.values())))
