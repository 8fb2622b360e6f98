from typing import Any

import pytest
import torch

from lockstep.core.actions import Field, Observation, Picks
from lockstep.core.world import Metric, RoleSpec, WorldSpec


def role(**features: Field) -> RoleSpec:
    named = {name.replace("__", "/"): field for name, field in features.items()}
    return RoleSpec(
        name="builder",
        agents=1,
        features={"obs": Field(shape=(3,)), **named},
        entities={"site": Field(shape=(4, 2))},
        action={"build": Picks(max=2, over="site", width=4)},
        discount=0.9,
    )


def spec(better: Any) -> WorldSpec:
    return WorldSpec(
        name="city",
        roles=(role(),),
        phases=(("builder",),),
        critic={},
        horizon=1,
        metrics=(
            Metric(name="months", unit="month", meaning="time"),
            Metric(name="npv", unit="1", meaning="value", better=better),
        ),
        objective="npv",
    )


def test_the_objective_says_which_way_is_better():
    assert spec("lower").objective_sign == 1
    assert spec("higher").objective_sign == -1
    assert spec("higher").metric("months").better == "none"
    with pytest.raises(ValueError, match="objective npv must say which way is better: set better="):
        spec("none")


def test_features_named_after_an_entity_set_are_not_encoded():
    made = role(
        site__resource=Field(shape=(4, 2), dtype=torch.int64),
        site__cost=Field(shape=(4,)),
        site__budget=Field(shape=()),
        site__id=Field(shape=(4,), dtype=torch.int64),
        city__month=Field(shape=(1,)),
    )
    assert made.encoded == ("obs", "city/month")


@pytest.mark.parametrize(
    ("name", "field", "wanted"),
    [
        ("site__resource", Field(shape=(4, 2)), "int64 of shape (4, 2), got torch.float32"),
        ("site__resource", Field(shape=(4,), dtype=torch.int64), "of shape (4, 1), got"),
        ("site__resource", Field(shape=(5, 1), dtype=torch.int64), "of shape (4, 1), got"),
        ("site__id", Field(shape=(4,)), "int64 of shape (4,), got torch.float32"),
        ("site__cost", Field(shape=(4, 1)), "float32 of shape (4,), got"),
        ("site__budget", Field(shape=(1,)), "float32 of shape (), got"),
    ],
)
def test_what_describes_candidate_rows_must_have_their_shape(name, field, wanted):
    with pytest.raises(ValueError, match="of role builder must be") as refusal:
        role(**{name: field})
    assert wanted in str(refusal.value)


def test_a_cost_without_a_budget_is_refused():
    with pytest.raises(ValueError, match="site/cost and site/budget of role builder must come"):
        role(site__cost=Field(shape=(4,)))


def test_resources_are_part_of_the_fingerprint():
    def seen(resource: int) -> Observation:
        return Observation(
            features={
                "obs": torch.zeros(1, 1, 3),
                "site/resource": torch.full((1, 1, 4, 2), resource),
                "site/budget": torch.zeros(1, 1),
            },
            acts=torch.ones(1, 1, dtype=torch.bool),
        )

    assert torch.equal(seen(1).fingerprint(), seen(1).fingerprint())
    assert not torch.equal(seen(1).fingerprint(), seen(2).fingerprint())
