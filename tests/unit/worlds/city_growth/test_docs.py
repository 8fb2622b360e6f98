"""The world's page names every setting, metric, feature and number that is seen."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.worlds.city_growth.catalogue import DEFAULT, SCENARIOS
from lockstep.worlds.city_growth.config import (
    SETTABLE,
    AgentConfig,
    BuildingType,
    CityConfig,
    Hub,
    LandConfig,
    MapConfig,
    PhaseConfig,
    RewardConfig,
)
from lockstep.worlds.city_growth.document import load_scenario
from lockstep.worlds.city_growth.metrics import world_metrics
from lockstep.worlds.city_growth.month import active_terms
from lockstep.worlds.city_growth.observe import own_names, shared_names
from lockstep.worlds.city_growth.tables import DYNAMIC, POOLED, STATIC

PAGE = (Path(__file__).parents[4] / "docs/worlds/city_growth.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "kind",
    [AgentConfig, BuildingType, CityConfig, Hub, LandConfig, MapConfig, PhaseConfig, RewardConfig],
)
def test_the_page_names_every_setting(kind: Any) -> None:
    assert [f.name for f in fields(kind) if f"`{f.name}`" not in PAGE] == []


def test_the_page_names_every_metric_and_term() -> None:
    on = replace(DEFAULT.reward, kind="cash", tail_months=1.0, prestige=1.0, diversity=1.0,
                 cooperation=1.0, shaping=1.0)  # fmt: skip
    config = replace(DEFAULT, reward=on, rent_share=0.1)
    for metric in world_metrics(config):
        name = metric.name
        for agent in config.agents:
            for kind in agent.types:
                name = name.replace(f"_{agent.name}_{kind.name}", "_<agent>_<type>")
            name = name.removesuffix(f"_{agent.name}") + "_<agent>" * name.endswith(agent.name)
        for term in active_terms(config):
            name = name.replace(f"reward_{term}_", "reward_<term>_")
        assert f"`{name}`" in PAGE, name
    assert [term for term in active_terms(config) if f"`{term}`" not in PAGE] == []


def test_the_page_names_everything_that_is_seen() -> None:
    names = {*STATIC, *DYNAMIC, *SETTABLE, *SCENARIOS, *own_names(DEFAULT), *shared_names(DEFAULT)}
    stems = {"balance_", "income_", "prestige_", "is_", "count_"}
    plain = {
        name
        for name in names
        if not any(name.startswith(s) for s in stems) and not name.startswith("price_above")
    }
    assert sorted(name for name in plain if f"`{name}`" not in PAGE) == []
    assert all(f"`{stem}*" in PAGE for stem in stems)


def test_the_page_says_what_the_critic_sees_of_the_candidates() -> None:
    assert ("share", *(f"{what}_{x}" for what in ("mean", "most") for x in DYNAMIC)) == POOLED
    assert f"ends with {len(POOLED)} numbers" in PAGE
    assert all(f"`{name}`" in PAGE for name in ("share", "mean_*", "most_*"))


def test_the_scenario_on_the_page_loads() -> None:
    text = PAGE.split("```toml\n")[1].split("```")[0]
    assert load_scenario(text).builds == 5
