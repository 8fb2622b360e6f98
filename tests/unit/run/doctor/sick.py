"""A healthy log with every number that a rule reads, and ways to make it sick."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lockstep.run.doctor import Facts, Log
from lockstep.run.doctor.log import Array, score_start

UPDATES, MEMBERS = 120, 2
Columns = dict[str, Array]


def healthy(updates: int = UPDATES, members: int = MEMBERS) -> Log:
    """A training that improves, in every key; noise is drawn once and for all."""
    random = np.random.default_rng(0)
    t = np.linspace(0, 1, updates)

    def noisy(level: float | Array, spread: float) -> Array:
        return level + spread * random.standard_normal((members, updates))

    columns: Columns = {
        "step": np.tile(300.0 * np.arange(1, updates + 1), (members, 1)),
        "world/cost": noisy(2 - t, 0.05),
        "world/delay": noisy(1 - 0.5 * t, 0.02),
        "train/value_loss": noisy(1.0, 0.05),
        "train/minibatches": np.full((members, updates), 20.0),
        "train/n_updates": np.tile(4.0 * np.arange(updates), (members, 1)),
        "train/lr_actor": np.tile(3e-4 * (1 - 0.9 * t), (members, 1)),
        "train/lr_critic": np.full((members, updates), 3e-4),
        "episode/finished": np.tile(5.0 * np.arange(1, updates + 1), (members, 1)),
        "replay/fill": np.tile(np.minimum(1, 0.01 + t), (members, 1)),
    }
    levels = {
        "approx_kl": (0.012, 0.002),
        "clip_fraction": (0.12, 0.02),
        "entropy": (2.5 - 1.2 * t, 0.01),
        "entropy_share": (0.8 - 0.4 * t, 0.01),
        "ratio_mean": (1.0, 0.005),
        "ratio_max": (2.5, 0.3),
        "k1": (0.012, 0.002),
        "choices": (29.0, 0.5),
        "forced_share": (0.02, 0.002),
        "concentration": (5 + 20 * t, 0.2),
        "concentration_max": (30 + 90 * t, 1.0),
        "behaviour_shift": (0.05, 0.005),
        "advantage_corr": (0.2, 0.02),
        "explained_variance": (0.1 + 0.6 * t, 0.03),
        "reward_std": (1.0, 0.05),
        "value_mean": (-2 + t, 0.05),
        "return_mean": (-2 + t, 0.05),
        "return_std": (0.8, 0.02),
    }
    columns |= {f"train/agent/{name}": noisy(*level) for name, level in levels.items()}
    return Log(
        source="healthy",
        update=np.arange(1.0, updates + 1),
        columns=columns,
        perf={
            "perf/update_s": np.full(updates, 1.0),
            "perf/collect_s": np.full(updates, 0.5),
            "perf/learn_s": np.full(updates, 0.4),
            "perf/env_s": np.full(updates, 0.3),
            "res/gpu_percent": np.full(updates, 60.0),
        },
        score="world/cost",
        score_start=score_start(columns, "world/cost"),
        facts=Facts(updates=updates, minibatches=20, device="cuda"),
    )


def sick(**changes: float | Array | Callable[[Array], Array] | None) -> Log:
    """The healthy log with some columns changed; None takes one out.

    A name stands for `train/agent/<name>` unless it holds two underscores for a slash.
    """
    log = healthy()
    columns, perf = dict(log.columns), dict(log.perf)
    for name, change in changes.items():
        key = name.replace("__", "/") if "__" in name else f"train/agent/{name}"
        table = perf if key in perf else columns
        if change is None:
            del table[key]
        elif callable(change):
            table[key] = change(table[key].copy())
        else:
            table[key] = np.zeros_like(table[key]) + change
    return replace(log, columns=columns, perf=perf, score_start=score_start(columns, "world/cost"))


def from_update(first: int, value: float) -> Callable[[Array], Array]:
    """Sets a column to `value` from an update on."""

    def change(column: Array) -> Array:
        column[..., first - 1 :] = value
        return column

    return change
