"""Evaluation on fixed episodes: every policy meets the same lanes, so differences are paired."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.core.streams import lane_keys
from lockstep.core.world import Step, World
from lockstep.errors import BadInput
from lockstep.run.jsonable import Json
from lockstep.run.metrics import FOLDS
from lockstep.run.policy import Policy
from lockstep.run.trainer import threads

EVALUATION_SEED = 1_000_003
"""Seed of the evaluation episodes; training seeds are small numbers, so they do not meet."""

# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and the half-width of its 95 % interval (NaN where there is one sample)."""

    mean: float
    half_width: float
    samples: int

    def __str__(self) -> str:
        # Four digits of the mean, and as many places for the interval.
        size = (
            math.floor(math.log10(abs(self.mean))) if self.mean and math.isfinite(self.mean) else 0
        )
        places = min(4, max(0, 3 - size))
        if math.isnan(self.half_width):
            return f"{self.mean:.{places}f}"
        return f"{self.mean:.{places}f} ± {self.half_width:.{places}f}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of each episode: the mean over its steps, or what else the metric says it is."""

    label: str
    episodes: dict[str, NDArray[np.float64]] = field(repr=False)
    """Metric name to `[members, episodes]`."""

    @property
    def over(self) -> str:
        """What the interval is over: members if there are several, otherwise episodes."""
        return "seeds" if next(iter(self.episodes.values())).shape[0] > 1 else "episodes"

    def estimate(self, metric: str) -> Estimate:
        """Mean and interval: over the members' means, or over the episodes of a single one."""
        if metric not in self.episodes:
            raise BadInput(f"there is no metric '{metric}'; there is {', '.join(self.episodes)}")
        values = self.episodes[metric]  # [members, episodes]
        return interval(values.mean(axis=1) if len(values) > 1 else values[0])

    def to_json(self) -> Json:
        """Everything a program would want of it."""
        return {
            "policy": self.label,
            "interval_over": self.over,
            "metrics": {name: _estimate_json(self.estimate(name)) for name in self.episodes},
            "episodes": {name: values.tolist() for name, values in self.episodes.items()},
        }

    def __str__(self) -> str:
        lines = [f"{name:28s} {self.estimate(name)}" for name in self.episodes]
        return "\n".join([f"{self.label} (mean ± 95 % interval over {self.over})", *lines])


def interval(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Mean with Student's 95 % interval."""
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n < 2:
        return Estimate(mean=float(x.mean()), half_width=math.nan, samples=n)
    half = _t95(n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean=float(x.mean()), half_width=half, samples=n)


@torch.no_grad()
def evaluate(
    policy: Policy,
    world: World,
    *,
    episodes: int = 20,
    seed: int = EVALUATION_SEED,
    deterministic: bool = True,
) -> Evaluation:
    """Plays `episodes` fixed episodes with each of the policy's members, as lanes of `world`.

    Episode e is the same whatever the number of lanes. The world is reset and left at the end of
    the last one; lanes beyond `episodes` run and are not counted.
    """
    if episodes < 1:
        raise BadInput(f"episodes must be at least 1, got {episodes}")
    if world.lanes % policy.groups:
        raise BadInput(
            f"the world's lanes ({world.lanes}) must be a multiple of the members "
            f"({policy.groups}) that play in it"
        )
    lanes = world.lanes // policy.groups
    rounds = -(-episodes // lanes)
    keys = lane_keys([seed], lanes=rounds * lanes, device=world.device)
    with threads(1):  # small batches: with more, threads mostly wait for each other
        played = [
            _play(policy, world, keys[i : i + lanes].repeat(policy.groups), deterministic)
            for i in range(0, len(keys), lanes)
        ]
    return Evaluation(
        label=policy.label,
        episodes={
            name: np.concatenate([p[name].reshape(policy.groups, lanes) for p in played], axis=1)[
                :, :episodes
            ]
            for name in played[0]
        },
    )


class Whole:
    """Metrics of the first episode of every lane of a world, folded step by step."""

    def __init__(self, world: World) -> None:
        self._over = {metric.name: metric.over for metric in world.spec.metrics}
        self.running = torch.ones(world.lanes, dtype=torch.bool, device=world.device)
        self._length = torch.zeros(world.lanes, dtype=torch.float64, device=world.device)
        self._total = {
            name: torch.full_like(self._length, FOLDS[way].start)
            for name, way in self._over.items()
        }

    def add(self, step: Step) -> None:
        """One more step of the lanes whose episode is still running."""
        self._length += self.running
        for name, so_far in self._total.items():
            joined = FOLDS[self._over[name]].join(so_far, step.metrics[name].double())
            self._total[name] = torch.where(self.running, joined, so_far)
        self.running = self.running & ~(step.terminated | step.truncated)

    def read(self) -> dict[str, NDArray[np.float64]]:
        """Metric name to its number of the whole episode `[L]`."""
        return {
            name: (x / self._length if self._over[name] == "mean" else x).cpu().numpy()
            for name, x in self._total.items()
        }


def _play(
    policy: Policy, world: World, keys: torch.Tensor, deterministic: bool
) -> dict[str, NDArray[np.float64]]:
    """One episode in every lane: metric name to its number of the whole episode `[L]`."""
    world.reset(keys)
    policy.begin(keys)
    whole = Whole(world)
    for _ in range(world.spec.horizon):
        whole.add(policy.step(world, deterministic=deterministic))
    return whole.read()


def _t95(freedom: int) -> float:
    """Student's t; beyond the table by the Cornish-Fisher expansion, good to four digits."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _estimate_json(estimate: Estimate) -> Json:
    half = None if math.isnan(estimate.half_width) else estimate.half_width
    return {"mean": estimate.mean, "half_width": half, "samples": estimate.samples}
