"""What every world promises: each scenario of the registry and each toy must keep it."""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.actions import Action, Field, Picks, Unit
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import Step, World
from lockstep.learners.config import RandomizedConfig
from lockstep.learners.randomized import Randomized
from lockstep.worlds import registry
from tests.toys import Masked, Match, Pool, Recall, Turn

LANES = 3
PAST_A_RESET = 2  # steps played beyond the end of the first episode

Make = Callable[..., World]


def _registered() -> dict[str, Make]:
    return {
        f"{name}:{scenario}": partial(registry.build, config)
        for name in registry.names()
        for scenario, config in registry.scenarios(name).items()
    }


def _variants() -> dict[str, Make]:
    """Settings that change the shape of the contract and that no scenario uses."""
    demo = registry.scenarios("uav-mec")["demo"]
    changed = {
        "cut": {"timeout_bootstrap": True},
        "labels": {"assoc_head": "categorical"},
        "without-twin": {"wo_dt_noise": True},
    }
    return {
        f"uav-mec:demo:{name}": partial(registry.build, replace(demo, **changes))
        for name, changes in changed.items()
    }


def _toys() -> dict[str, Make]:
    return {
        f"{toy.__name__}:{'cut' if cut else 'dies'}": partial(toy, agents=2, truncates=cut)
        for toy in (Match, Masked, Pool, Recall, Turn)
        for cut in (False, True)
    }


WORLDS = _registered() | _variants() | _toys()


@pytest.fixture(params=WORLDS, ids=str)
def make(request: pytest.FixtureRequest) -> Make:
    return WORLDS[request.param]


Chosen = dict[str, Action]


class Player:
    """Plays a world with uniform decisions and keeps everything it was shown."""

    def __init__(self, world: World, keys: Tensor) -> None:
        self.world = world
        world.reset(keys)
        self.streams = Streams(keys)
        self.chance = Randomized(RandomizedConfig(lanes=world.lanes), world.spec, seeds=[0])
        self.starts = torch.ones(world.lanes, dtype=torch.bool)

    def step(self, chosen: Chosen | None = None) -> tuple[dict[str, Tensor], Chosen, Step]:
        """All tensors of one step by name, what was chosen, and the step itself."""
        world, seen, acted = self.world, dict[str, Tensor](), dict[str, Action]()
        for phase in world.spec.phases:
            for role in phase:
                seen |= {f"state/{role}/{name}": x for name, x in world.state(role).items()}
            for role in phase:
                observation = world.observe(role)
                seen |= {f"obs/{role}/{i}": x for i, x in observation.tensors().items()}
                decision = self.chance.act(
                    role, observation, self.chance.memory(role), self.starts, self.streams
                )
                acted[role] = decision.action if chosen is None else chosen[role]
                world.act(role, acted[role])
        step = world.advance()
        self.streams.tick()
        seen |= {f"reward/{role}": x for role, x in step.reward.items()}
        seen |= {f"metric/{name}": x for name, x in step.metrics.items()}
        seen |= {f"final/{name}": x for name, x in step.final.items()}
        seen |= {
            "terminated": step.terminated,
            "truncated": step.truncated,
            "elapsed": step.elapsed,
        }
        return seen, acted, step


def start(make: Make, *, lanes: int = LANES, seed: int = 0) -> Player:
    return Player(make(lanes=lanes), lane_keys([seed], lanes=lanes))


def fits(x: Tensor, field: Field, *lead: int) -> bool:
    return x.shape == (*lead, *field.shape) and x.dtype == field.dtype


def leaves(state: Mapping[str, Any], path: str = "") -> dict[str, Tensor]:
    """Every tensor of a nested state by its path."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        inner = f"{path}/{name}"
        found |= leaves(value, inner) if isinstance(value, Mapping) else {inner: value}
    return found


def different(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def test_a_world_is_a_world(make: Make) -> None:
    world = make(lanes=LANES)
    assert isinstance(world, World)
    assert world.lanes == LANES


def test_the_spec_agrees_with_itself(make: Make) -> None:
    spec = make(lanes=1).spec
    acting = [role for phase in spec.phases for role in phase]
    assert sorted(acting) == sorted(role.name for role in spec.roles)  # each exactly once
    assert all(role.agents >= 1 for role in spec.roles)
    assert all(0.0 <= role.discount <= 1.0 for role in spec.roles)
    assert spec.horizon >= 1
    names = [metric.name for metric in spec.metrics]
    assert len(set(names)) == len(names)
    assert spec.objective in names
    assert spec.metric(spec.objective).better in ("lower", "higher")
    assert all(metric.unit and metric.meaning for metric in spec.metrics)
    for role in spec.roles:
        assert role.action
        # A critic that looks at agents one by one finds the rows of a role under its name.
        assert spec.critic[role.name].shape[0] == role.agents
        for part in role.action.values():
            assert part.n >= 1
            if part.rows is not None:
                n_rows = role.entities[part.rows.over].shape[0]
                assert part.n == part.rows.size(n_rows)


def test_observations_have_the_shapes_and_types_of_the_spec(make: Make) -> None:
    world = make(lanes=LANES)
    player = Player(world, lane_keys([0], lanes=LANES))
    looked = []

    def observing(role: str, plain: Callable[[str], Any] = world.observe) -> Any:
        observation = plain(role)
        spec = world.spec.role(role)
        lead = (LANES, spec.agents)
        looked.append(role)
        assert observation.acts.shape == lead
        assert observation.acts.dtype == torch.bool
        for given, fields in (
            (observation.features, spec.features),
            (observation.entities, spec.entities),
        ):
            assert given.keys() == fields.keys()
            assert all(fits(x, fields[name], *lead) for name, x in given.items())
        masked = {name: part for name, part in spec.action.items() if part.masked}
        assert observation.legal.keys() == masked.keys()
        for name, part in masked.items():
            assert observation.legal[name].shape == (*lead, part.n)
            assert observation.legal[name].dtype == torch.bool
            assert observation.legal[name].any(dim=-1).all(), "no legal choice"
            if isinstance(part, Picks):
                assert observation.legal[name][..., 0].all(), "stopping is not allowed"
        return observation

    world.observe = observing  # type: ignore[method-assign]
    for _ in range(6):
        player.step()
    assert set(looked) == {role.name for role in world.spec.roles}


def test_critic_inputs_have_the_shapes_and_types_of_the_spec(make: Make) -> None:
    player = start(make)
    spec = player.world.spec
    for role in spec.roles:
        state = player.world.state(role.name)
        assert state.keys() == spec.critic.keys()
        assert all(fits(x, spec.critic[name], LANES) for name, x in state.items())


def test_a_step_reports_rewards_flags_and_exactly_the_metrics_of_the_spec(make: Make) -> None:
    player = start(make)
    spec = player.world.spec
    for _ in range(3):
        _, _, step = player.step()
        assert step.reward.keys() == {role.name for role in spec.roles}
        for role in spec.roles:
            assert step.reward[role.name].shape == (LANES, role.agents)
        for flag in (step.terminated, step.truncated):
            assert flag.shape == (LANES,)
            assert flag.dtype == torch.bool
        assert step.elapsed.shape == (LANES,)
        assert (step.elapsed >= 0).all()
        assert list(step.metrics) == [metric.name for metric in spec.metrics]
        assert all(x.shape == (LANES,) for x in step.metrics.values())


def test_every_number_is_finite(make: Make) -> None:
    player = start(make)
    for _ in range(player.world.spec.horizon + PAST_A_RESET):
        for name, x in player.step()[0].items():
            assert torch.isfinite(x).all(), name


def test_episodes_end_within_the_horizon_and_only_a_world_that_says_so_cuts_them(
    make: Make,
) -> None:
    player = start(make)
    spec = player.world.spec
    ended, cut = torch.zeros(LANES, dtype=torch.bool), torch.zeros(LANES, dtype=torch.bool)
    for _ in range(spec.horizon):
        _, _, step = player.step()
        cut |= step.truncated
        ended |= step.terminated | step.truncated
        assert step.final.keys() == (spec.critic.keys() if spec.truncates else set())
        assert all(fits(x, spec.critic[name], LANES) for name, x in step.final.items())
    assert ended.all()
    assert bool(cut.any()) == spec.truncates


def test_equal_keys_and_actions_give_equal_histories_and_other_keys_another(make: Make) -> None:
    one, two, other = start(make), start(make), start(make, seed=1)
    differs = False
    for _ in range(6):
        expected, chosen, _ = one.step()
        assert different(expected, two.step(chosen)[0]) == []
        differs = differs or bool(different(expected, other.step(chosen)[0]))
    assert differs


def test_reset_with_equal_keys_plays_the_same_history_again(make: Make) -> None:
    player = start(make)
    first = [player.step()[:2] for _ in range(4)]
    again = Player(player.world, lane_keys([0], lanes=LANES))
    for expected, chosen in first:
        assert different(expected, again.step(chosen)[0]) == []


def test_a_lane_alone_is_bit_equal_to_the_same_lane_among_64_others(make: Make) -> None:
    lanes, lane = 65, 41
    crowd = start(make, lanes=lanes)
    alone = Player(make(lanes=1), lane_keys([0], lanes=lanes)[lane : lane + 1])
    for _ in range(crowd.world.spec.horizon + PAST_A_RESET):
        together, chosen, _ = crowd.step()
        own = {
            role: {name: part[lane : lane + 1] for name, part in action.items()}
            for role, action in chosen.items()
        }
        by_itself = alone.step(own)[0]
        assert different({k: x[lane] for k, x in together.items()}, _first(by_itself)) == []


def _first(seen: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x[0] for name, x in seen.items()}


def test_what_was_returned_never_changes_when_the_world_steps_on(make: Make) -> None:
    player = start(make)
    for _ in range(3):
        seen = player.step()[0]
        kept = {name: x.clone() for name, x in seen.items()}
        player.step()
        player.step()
        assert different(seen, kept) == []


def test_actions_are_left_as_they_were_given(make: Make) -> None:
    player = start(make)
    for _ in range(3):
        _, chosen, _ = player.step()
        kept = {role: {name: x.clone() for name, x in a.items()} for role, a in chosen.items()}
        player.step(chosen)
        assert different(leaves(chosen), leaves(kept)) == []


def test_a_saved_world_continues_bit_equally(make: Make) -> None:
    player = start(make)
    for _ in range(player.world.spec.horizon - 2):
        player.step()
    buffer = io.BytesIO()
    torch.save(player.world.state_dict(), buffer)
    expected = [player.step()[:2] for _ in range(2 + PAST_A_RESET)]
    buffer.seek(0)
    other = start(make, seed=7)
    other.step()
    other.world.load_state_dict(torch.load(buffer, weights_only=True))
    for seen, chosen in expected:
        assert different(seen, other.step(chosen)[0]) == []


def test_what_was_saved_does_not_move_along_with_the_world(make: Make) -> None:
    player = start(make)
    saved = player.world.state_dict()
    kept = {name: x.clone() for name, x in leaves(saved).items()}
    player.step()
    assert different(leaves(saved), kept) == []
    player.world.load_state_dict(saved)
    player.step()
    assert different(leaves(saved), kept) == []


def test_setting_a_scenario_number_changes_that_number_and_nothing_else(make: Make) -> None:
    world = make(lanes=LANES)
    for name in world.spec.settable:
        before = leaves(world.state_dict())
        value = torch.tensor([0.31, 0.37, 0.41])
        world.set(name, value)
        after = leaves(world.state_dict())
        (changed,) = different(before, after)
        assert changed.endswith(name)
        assert torch.equal(after[changed], value)


def test_an_unknown_scenario_number_is_refused_in_one_sentence(make: Make) -> None:
    world = make(lanes=LANES)
    before = leaves(world.state_dict())
    with pytest.raises(ValueError, match="no_such_number") as refusal:
        world.set("no_such_number", torch.ones(LANES))
    assert "\n" not in str(refusal.value)
    assert different(before, leaves(world.state_dict())) == []


def test_no_global_generator_is_touched(make: Make) -> None:
    before = torch.random.get_rng_state()
    player = start(make)
    for _ in range(3):
        player.step()
    assert torch.equal(before, torch.random.get_rng_state())


def test_numbers_beyond_the_unit_interval_count_as_its_edge(make: Make) -> None:
    """A Gaussian head gives what it drew; the world clamps it."""
    spec = make(lanes=1).spec
    keys = lane_keys([0], lanes=LANES)
    beyond, edge = Player(make(lanes=LANES), keys), Player(make(lanes=LANES), keys)
    for _ in range(3):
        wide = {
            role.name: {
                name: beyond.streams.draw(f"{role.name}/{name}").normal(role.agents, part.n) * 2
                if isinstance(part, Unit)
                else torch.zeros(LANES, role.agents, *part.field.shape, dtype=torch.int64)
                for name, part in role.action.items()
            }
            for role in spec.roles
        }
        clamped = {
            role: {name: x.clamp(0, 1) if x.is_floating_point() else x for name, x in a.items()}
            for role, a in wide.items()
        }
        assert different(beyond.step(wide)[0], edge.step(clamped)[0]) == []


def test_a_picture_can_be_asked_for_at_any_time(make: Make) -> None:
    player = start(make)
    assert player.world.frame(0) is not None
    player.step()
    assert player.world.frame(LANES - 1) is not None
