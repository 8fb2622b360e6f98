"""Numbers that may change only on purpose: estimators, streams, worlds, a few updates."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.returns import gae, vtrace
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import LEARNERS
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.heuristics import random_actions
from tests.helpers import assemble, train
from tests.unit.worlds.uav_mec.helpers import made, slot

Check = Callable[[str, dict[str, Any]], None]


def transitions() -> list[Tensor]:
    """Reward, value, next value, terminated, truncated: 7 rows of 3 lanes."""
    wave = torch.arange(21.0, dtype=torch.float64).view(7, 3)
    ends = torch.zeros(2, 7, 3, dtype=torch.bool)
    ends[0, 2, 0] = ends[0, 6, 1] = ends[0, 4, 2] = True
    ends[1, 4, 0] = ends[1, 3, 1] = ends[1, 4, 2] = ends[1, 6, 2] = True
    return [wave.sin(), (wave * 1.3).cos(), (wave * 0.7 + 1).cos(), ends[0], ends[1]]


def test_advantages_and_targets(golden: Check) -> None:
    rows = transitions()
    elapsed = 1.0 + torch.arange(21.0, dtype=torch.float64).view(7, 3) % 3
    acts = torch.arange(21).view(7, 3) % 4 != 2
    off_policy = vtrace((rows[0] * 0.5).sin(), *rows, gamma=0.9, lam=0.95, rho_bar=1.2, c_bar=0.9)
    by_decision = gae(*rows, gamma=0.9, lam=0.95, elapsed=elapsed, acts=acts)
    found = {
        "gae": gae(*rows, gamma=0.9, lam=0.95).advantage,
        "gae by decision": by_decision.advantage,
        "vtrace target": off_policy.target,
        "vtrace advantage": off_policy.advantage,
    }
    golden("returns", {name: x.flatten().tolist() for name, x in found.items()})


def test_streams(golden: Check) -> None:
    streams = Streams(lane_keys([0, 7], lanes=2))
    found = {}
    for step in range(2):
        for kind, sample in {
            "uniform": lambda draw: draw.uniform(3),
            "normal": lambda draw: draw.normal(3),
            "integers": lambda draw: draw.integers(1000, 3),
            "gamma": lambda draw: draw.gamma(torch.full((4, 3), 1.7)),
            "beta": lambda draw: draw.beta(torch.full((4, 3), 1.2), torch.full((4, 3), 3.4)),
        }.items():
            found[f"{kind} at step {step}"] = sample(streams.draw("golden")).flatten().tolist()
        streams.tick()
    golden("streams", found)


@pytest.mark.parametrize("scenario", ["paper", "reference"])
def test_three_slots_of_the_uav_world(golden: Check, scenario: str) -> None:
    world = made(SCENARIOS[scenario], lanes=2, seed=5)
    fixed = random_actions(world)
    found: dict[str, list[float]] = {}
    for number in range(3):
        step = slot(world, fixed)
        for name, value in step.metrics.items():
            found[f"{name} in slot {number}"] = value.tolist()
        for role, reward in step.reward.items():
            found[f"reward of {role} in slot {number}"] = reward[:, :4].flatten().tolist()
    golden(f"uav-mec-{scenario}", found)


@pytest.mark.parametrize("name", ["ab-mappo", "b-mappo", "ag-mappo", "g-mappo"])
def test_three_updates_of_a_learner(golden: Check, name: str) -> None:
    scene = replace(SCENARIOS["demo"], n_users=6, n_uavs=2, n_slots=5)
    config = replace(LEARNERS[name], lanes=2, steps=8, hidden=16, epochs=2, minibatches=2)
    learner, collector, rollout = assemble(
        partial(registry.build, scene), config, [0, 1], dtype=torch.float64
    )
    found: dict[str, list[float]] = {}
    for number in range(3):
        (stats,) = train(learner, collector, rollout, 1)
        for key, value in stats.items():
            if not key.startswith("audit/"):  # what is left of rounding
                found[f"{key} of update {number}"] = value.tolist()
        energy = rollout.metrics[collector.world.spec.objective].unflatten(1, (2, -1))
        found[f"energy of update {number}"] = energy.mean(dim=(0, 2)).tolist()
    for part, pack in learner.packs.items():
        found[f"weights of {part}"] = pack.weights.detach().norm(dim=1).tolist()
    golden(name, found)
