from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.bridges.pettingzoo import parallel_env
from lockstep.bridges.spaces import action_space, box, observation_space
from lockstep.bridges.view import View
from lockstep.core.actions import Categorical, Field, Observation, Picks, Unit
from lockstep.core.world import RoleSpec
from tests.toys import Masked, Pool, Turn

ROLE = RoleSpec(
    name="shop",
    agents=1,
    features={
        "obs": Field(shape=(2,)),
        "row/resource": Field(shape=(4, 1), dtype=torch.int64),
        "row/cost": Field(shape=(4,)),
        "row/budget": Field(shape=()),
    },
    entities={"row": Field(shape=(4, 3))},
    action={"buy": Picks(max=3, over="row", width=4)},
    discount=0.9,
)


def shop(*, budget: float = 5.0, acts: bool = True) -> View:
    """Rows 1 and 2 share a place, row 3 costs 3, row 4 does not exist."""
    seen = Observation(
        features={
            "obs": torch.zeros(1, 1, 2),
            "row/resource": torch.tensor([7, 7, 8, 9]).view(1, 1, 4, 1),
            "row/cost": torch.tensor([1.0, 1.0, 3.0, 1.0]).view(1, 1, 4),
            "row/budget": torch.full((1, 1), budget),
        },
        entities={"row": torch.zeros(1, 1, 4, 3)},
        acts=torch.full((1, 1), acts),
        legal={"buy": torch.tensor([True, True, True, True, False]).view(1, 1, 5)},
    )
    return View(ROLE, seen, 0)


def bought(view: View, *entries: int, skip_illegal: bool = False) -> tuple[list[int], int]:
    taken, ignored = view.decision("shop_0", np.array(entries), skip_illegal=skip_illegal)
    return taken["buy"].tolist(), ignored


def test_what_follows_a_stop_is_not_looked_at():
    assert bought(shop(), 3, 0, 1) == ([3, 0, 0], 0)
    assert bought(shop(), 0, 4, 4) == ([0, 0, 0], 0)


def test_what_an_earlier_pick_rules_out_is_left_out_and_counted():
    assert bought(shop(), 1, 2, 3) == ([1, 3, 0], 1)  # the same place
    assert bought(shop(), 1, 1, 3) == ([1, 3, 0], 1)  # twice the same
    assert bought(shop(budget=3.0), 3, 1, 2) == ([3, 0, 0], 2)  # no money left


def test_a_forbidden_pick_is_an_error_with_its_entry_and_how_many_there_are():
    message = r"buy of shop_0 must be one of the 4 entries \(of 5\) .* mask allows, got 4;"
    with pytest.raises(ValueError, match=message):
        bought(shop(), 1, 4, 0)
    assert bought(shop(), 4, 1, 0, skip_illegal=True) == ([1, 0, 0], 1)


def test_the_mask_knows_what_is_too_dear_from_the_start():
    first, *others = shop(budget=2.0).mask()
    assert first.tolist() == [1, 1, 1, 0, 0]
    assert first.dtype == np.int8
    assert len(others) == 2
    with pytest.raises(ValueError, match="one of the 3 entries"):
        bought(shop(budget=2.0), 3, 0, 0)


def test_out_of_turn_only_the_stop_is_allowed():
    assert [x.tolist() for x in shop(acts=False).mask()] == [[1, 0, 0, 0, 0]] * 3


def test_picks_are_whole_numbers_within_the_padded_set():
    for wrong in ([5, 0, 0], [-1, 0, 0], [1, 0], [1.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match=r"buy of shop_0 must be 3 integers in 0\.\.4, got "):
            shop().decision("shop_0", wrong, skip_illegal=True)


def test_the_flat_mask_has_one_block_for_each_pick():
    flat = shop().flat_mask()
    assert flat.dtype == np.bool_
    assert flat.tolist() == [True, True, True, True, False] * 3


def mixed() -> View:
    role = replace(
        ROLE,
        entities={},
        features={"obs": Field(shape=(2,))},
        action={"share": Unit(n=2), "door": Categorical(n=3, masked=True), "hat": Categorical(n=2)},
    )
    seen = Observation(
        features={"obs": torch.zeros(1, 1, 2)},
        acts=torch.ones(1, 1, dtype=torch.bool),
        legal={"door": torch.tensor([False, True, True]).view(1, 1, 3)},
    )
    return View(role, seen, 0)


def test_several_parts_are_a_dict_and_so_are_their_masks():
    view = mixed()
    space, seen = action_space(view.role), view.observation()
    assert isinstance(space, spaces.Dict)
    assert set(space.keys()) == {"share", "door", "hat"}
    assert seen["action_mask/door"].tolist() == [0, 1, 1]
    assert seen in observation_space(view.role)
    assert set(view.observation(masks=False)) == {"obs"}
    assert shop().observation()["row/budget"].shape == (1,)
    assert shop().observation() in observation_space(ROLE)
    space.seed(0)
    for _ in range(20):
        taken, ignored = view.decision("shop_0", space.sample(mask=view.mask()), skip_illegal=False)
        assert int(taken["door"]) in (1, 2)
        assert ignored == 0


def test_a_forbidden_choice_is_an_error_or_the_first_allowed_one():
    action = {"share": np.array([0.0, 1.0]), "door": 0, "hat": 1}
    with pytest.raises(ValueError, match=r"door of shop_0 must be one of the 2 entries \(of 3\)"):
        mixed().decision("shop_0", action, skip_illegal=False)
    taken, ignored = mixed().decision("shop_0", action, skip_illegal=True)
    assert (int(taken["door"]), int(taken["hat"]), ignored) == (1, 1, 1)
    assert int(mixed().nothing()["door"]) == 1


@pytest.mark.parametrize("share", [[0.2, 1.5], [-0.1, 0.5], [float("nan"), 0.5]])
def test_numbers_outside_the_unit_interval_are_errors(share: list[float]):
    with pytest.raises(ValueError, match=r"share of shop_0 must be 2 numbers in \[0, 1\], got \["):
        mixed().decision("shop_0", {"share": share, "door": 1, "hat": 0}, skip_illegal=True)


def test_actions_of_the_wrong_form_are_errors():
    with pytest.raises(ValueError, match=r"share of shop_0 must be 2 numbers.*shape \(3,\)"):
        mixed().decision("shop_0", {"share": [0, 0, 0], "door": 1, "hat": 0}, skip_illegal=False)
    with pytest.raises(ValueError, match=r"a dict with share, door, hat, got \['door'\]"):
        mixed().decision("shop_0", {"door": 1}, skip_illegal=False)
    with pytest.raises(ValueError, match=r"hat of shop_0 must be an integer in 0\.\.1, got 2"):
        mixed().decision("shop_0", {"share": [0, 0], "door": 1, "hat": 2}, skip_illegal=False)
    with pytest.raises(ValueError, match="share of shop is numbers; use info"):
        mixed().flat_mask()


def test_two_things_of_one_name_are_refused():
    role = replace(ROLE, features={**ROLE.features, "row": Field(shape=())})
    with pytest.raises(ValueError, match="row of role shop must be the name of one feature"):
        observation_space(role)


def test_types_become_boxes_of_their_whole_range():
    assert box(Field(shape=(2,), dtype=torch.bool)) == spaces.Box(0, 1, (2,), np.int8)
    assert box(Field(shape=(2,), dtype=torch.uint8)) == spaces.Box(0, 255, (2,), np.uint8)
    assert box(Field(shape=(), dtype=torch.int64)).contains(np.array([-1]))


@pytest.mark.parametrize("toy", [Masked, Pool, Turn])
def test_the_observation_of_any_choice_set_lies_in_its_space_and_its_mask_samples(toy: Any):
    env = parallel_env(toy(lanes=1, agents=2, horizon=4))
    seen, infos = env.reset(seed=1)
    while env.agents:
        assert all(seen[name] in env.observation_space(name) for name in env.agents)
        actions = {
            name: env.action_space(name).sample(mask=infos[name]["action_mask"])
            for name in env.agents
        }
        seen, *_, infos = env.step(actions)
