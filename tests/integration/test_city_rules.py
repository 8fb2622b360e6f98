"""Learners go through every schedule and rule of the city: audited, and credited by agent."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.rollout import Rollout
from lockstep.learners.config import PPOConfig
from lockstep.worlds.city_growth.config import CityConfig, PhaseConfig
from lockstep.worlds.city_growth.world import CityGrowth
from tests.helpers import assemble, train
from tests.unit.worlds.city_growth.helpers import PLAIN, SMALL, builder, grid

LEARNER = PPOConfig(
    lanes=4, steps=11, hidden=16, minibatches=2, epochs=1, critic="state", set_context="pooled"
)
"""Eleven months of episodes of eight: some decisions are open where the rollout stops."""
AT_ONCE = (
    PhaseConfig(agents=("edu", "council"), concurrent=True),
    PhaseConfig(agents=("ind",)),
)
PAIR = replace(PLAIN, name="D", cost=150, revenue=120, footprint="pair")
CITIES: dict[str, CityConfig] = {
    "turns": replace(SMALL, schedule="turns", phases=()),
    "month": replace(SMALL, schedule="month", phases=()),
    "phases in sequence": SMALL,
    "phases of two months": replace(SMALL, period=2),
    "phases at once": replace(SMALL, phases=AT_ONCE),
    "hard budget": replace(SMALL, debt="hard", credit=500, start_share=0.4),
    "one purse": replace(
        SMALL, agents=tuple(replace(agent, pool="purse") for agent in SMALL.agents)
    ),
    "anchor": replace(SMALL, expansion="nearest"),
    "cluster": replace(SMALL, expansion="cluster"),
    "cash": replace(SMALL, reward=replace(SMALL.reward, kind="cash")),
    "bankruptcy": replace(SMALL, bankruptcy="terminate", bankrupt_at=200, start_share=0.1),
    "ring and caps": replace(SMALL, reach="ring", max_candidates=9),
    "raster": replace(SMALL, raster=True, horizon=3),
    "pairs": grid(builder(types=(PLAIN, PAIR), start_money=400), debt="hard", horizon=8),
}


def check_updates(city: CityConfig, config: PPOConfig) -> Rollout:
    """Two audited updates; the last rollout."""
    learner, collector, rollout = assemble(partial(CityGrowth, city), config, [0])
    for stats in train(learner, collector, rollout, 2):
        gaps = [x for name, x in stats.items() if name.endswith("_gap")]
        assert len(gaps) == 3 * len(city.agents)
        assert all(torch.isfinite(x).all() for x in stats.values())
    # What the learner may pick is what the world builds.
    assert not rollout.metrics["refused"].any()
    return rollout


@pytest.mark.parametrize("name", CITIES)
def test_every_rule_of_the_city_is_learned_under_and_passes_the_audit(name: str) -> None:
    rollout = check_updates(CITIES[name], LEARNER)
    lost, ends = bool(rollout.metrics["conflicts"].any()), int(rollout.terminated.sum())
    assert lost == (name == "phases at once")  # nobody else is in an agent's way
    if name == "bankruptcy":
        assert ends > LEARNER.lanes  # episodes that end early are learned from too


@pytest.mark.parametrize(
    "changes",
    [
        {"candidate_head": "positional", "set_context": "none"},
        {"candidate_head": "identity", "set_context": "none"},
        {"set_context": "none"},
        {"set_context": "attention"},
        {"temperature": 2.0, "epsilon": 0.1},
        {"critic": "attention"},
        {"actor": "mlp", "set_context": "none"},
        {"memory": "gru"},
    ],
    ids=lambda changes: " ".join(f"{name}={x}" for name, x in changes.items()),
)
def test_every_head_and_context_is_learned_with_and_passes_the_audit(
    changes: dict[str, Any],
) -> None:
    check_updates(SMALL, replace(LEARNER, **changes))


def credited(
    rollout: Rollout, role: str, lane: int, *, gamma: float, lam: float
) -> dict[int, float]:
    """By decision of one agent: what the critic should have said of it, followed month by month."""
    rows = rollout.roles[role]
    acts, reward, value, after = (
        x[:, lane, 0].tolist()
        for x in (
            rows.obs.acts,
            rows.reward.double(),
            rows.value.double(),
            rows.next_value.double(),
        )
    )
    ended = rollout.terminated[:, lane].tolist()
    advantage: dict[int, float] = {}
    for start in reversed([month for month, here in enumerate(acts) if here]):
        month, total, factor = start, 0.0, 1.0
        while True:
            total += factor * reward[month]
            factor *= gamma
            if ended[month]:
                break  # nothing is promised beyond
            if month + 1 == len(acts):
                total += factor * after[month]  # still open: what the critic expects
                break
            month += 1
            if acts[month]:
                total += factor * (value[month] + lam * advantage[month])
                break
        advantage[start] = total - value[start]
    return {start: found + value[start] for start, found in advantage.items()}


@pytest.mark.parametrize("name", ["turns", "month", "phases of two months", "phases at once"])
def test_rewards_between_two_decisions_of_an_agent_belong_to_the_first(name: str) -> None:
    reward = replace(SMALL.reward, kind="cash", scale=1_000.0)  # so that every month pays
    agents = tuple(
        replace(agent, discount=discount)
        for agent, discount in zip(SMALL.agents, (0.9, 0.8, 0.7), strict=True)
    )
    city = replace(CITIES[name], agents=agents, reward=reward)
    learner, collector, rollout = assemble(partial(CityGrowth, city), LEARNER, [0])
    collector.collect(rollout)
    batch = learner._batch(rollout)
    for agent in agents:
        found: Tensor = batch.roles[agent.name].target[0, :, :, 0]  # [T, N]
        for lane in range(LEARNER.lanes):
            expected = credited(
                rollout, agent.name, lane, gamma=agent.discount, lam=LEARNER.decay(agent.name)
            )
            assert len(expected) > 1
            assert [found[t, lane].item() for t in expected] == pytest.approx(
                list(expected.values()), rel=1e-4, abs=1e-4
            )


def test_advantages_are_standardised_for_each_agent_over_the_whole_rollout() -> None:
    learner, collector, rollout = assemble(partial(CityGrowth, SMALL), LEARNER, [0, 1])
    collector.collect(rollout)
    for role in learner._batch(rollout).roles.values():
        for member in range(2):
            mine = role.advantage[member][role.decided[member] > 0]
            assert mine.mean().item() == pytest.approx(0.0, abs=1e-5)
            assert mine.std(correction=0).item() == pytest.approx(1.0, abs=1e-3)
