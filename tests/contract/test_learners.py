"""What every learner promises: each name of the registry must keep it, on a world and on toys."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from lockstep.collect.synchronous import Collector
from lockstep.core.actions import Observation, Picks, Unit
from lockstep.core.learner import Decision, Learner
from lockstep.core.picks import PickSet
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import World
from lockstep.errors import UnknownName
from lockstep.learners import registry
from lockstep.learners.config import (
    LEARNERS,
    LearnerConfig,
    MADDPGConfig,
    PPOConfig,
    RandomizedConfig,
)
from lockstep.run.checkpoint import state_digest
from lockstep.worlds import registry as worlds
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests.toys import Masked, Match, Pool, Turn

LANES, STEPS = 4, 6

WORLDS: dict[str, Callable[..., World]] = {
    "uav-mec": partial(worlds.build, replace(SCENARIOS["demo"], n_users=6, n_uavs=2, n_slots=4)),
    "Masked": partial(Masked, agents=2, horizon=4),
    "Match": partial(Match, agents=2, horizon=4, truncates=True),
    "Pool": partial(Pool, truncates=True),
    "Turn": partial(Turn, agents=2, horizon=4),
}


def small(config: LearnerConfig) -> LearnerConfig:
    if isinstance(config, PPOConfig):
        return replace(config, lanes=LANES, steps=STEPS, hidden=16, epochs=2, minibatches=2)
    if isinstance(config, MADDPGConfig):
        few = {"hidden": 16, "hidden_critic": 16, "replay": 40, "warm_up": 8, "batch": 8}
        return replace(config, lanes=LANES, steps=STEPS, **few)
    return replace(config, lanes=LANES, steps=STEPS)


# `ppo` is another name for the settings of `ab-mappo`.
CONFIGS = {name: small(config) for name, config in LEARNERS.items() if name != "ppo"}
CONFIGS["with memory"] = replace(CONFIGS["ab-mappo"], memory="gru", reward_norm="running")


class Case:
    """A pack of learners on a world, ready to run."""

    def __init__(self, config: LearnerConfig, make: Callable[..., World], seeds: Sequence[int]):
        self.world = make(lanes=len(seeds) * config.lanes)
        keys = lane_keys(seeds, lanes=config.lanes)
        self.world.reset(keys)
        self.learner: Learner = registry.build(config, self.world.spec, seeds=seeds)
        self.streams = Streams(keys)
        self.collector = Collector(self.world, self.learner, self.streams)
        self.rollout: Rollout = self.learner.rollout()

    def train(self, updates: int) -> list[dict[str, Tensor]]:
        stats = []
        for _ in range(updates):
            self.collector.collect(self.rollout)
            stats.append(dict(self.learner.update(self.rollout).scalars))
        return stats

    def see(self, role: str) -> Observation:
        """What `role` observes in the first row of the rollout."""
        return self.rollout.roles[role].obs.map(lambda x: x[0])

    def decide(self, role: str, *, deterministic: bool = False) -> Decision:
        starts = torch.zeros(self.world.lanes, dtype=torch.bool)
        return self.learner.act(
            role,
            self.see(role),
            self.learner.memory(role),
            starts,
            self.streams,
            deterministic=deterministic,
        )


Start = Callable[..., Case]


def fits(learner: str, world: str) -> bool:
    """Whether a learner takes the world's decisions; what it refuses is tested where it is."""
    return learner != "maddpg" or world not in ("Pool", "Turn")


PAIRS = [(learner, world) for learner in CONFIGS for world in WORLDS if fits(learner, world)]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    learner, world = request.param
    return learner, world


@pytest.fixture
def make(pair: tuple[str, str]) -> Callable[..., World]:
    return WORLDS[pair[1]]


@pytest.fixture
def config(pair: tuple[str, str]) -> LearnerConfig:
    return CONFIGS[pair[0]]


@pytest.fixture
def start(config: LearnerConfig, make: Callable[..., World]) -> Start:
    return lambda seeds=(3, 5): Case(config, make, seeds)


def test_a_learner_is_a_learner(start: Start) -> None:
    case = start()
    assert isinstance(case.learner, Learner)
    assert case.learner.members == 2


def test_its_rollout_fits_the_world_and_its_pack(start: Start) -> None:
    case = start()
    rollout, spec = case.rollout, case.world.spec
    assert (rollout.steps, rollout.lanes) == (STEPS, 2 * LANES)
    assert rollout.roles.keys() == {role.name for role in spec.roles}
    assert tuple(rollout.critic) == spec.views
    assert all(set(kept) <= set(spec.critic) for kept in rollout.critic.values())
    assert bool(rollout.final) == spec.truncates
    for name, memory in rollout.memory.items():
        assert memory.shape == case.learner.memory(name).shape
    case.collector.collect(rollout)
    assert rollout.full


@pytest.mark.parametrize("deterministic", [False, True])
def test_decisions_fit_the_spec_and_are_finite(start: Start, deterministic: bool) -> None:
    case = start()
    case.collector.collect(case.rollout)
    for role in case.world.spec.roles:
        decision = case.decide(role.name, deterministic=deterministic)
        lead = (2 * LANES, role.agents)
        assert decision.action.keys() == role.action.keys()
        for name, part in role.action.items():
            chosen = decision.action[name]
            if isinstance(part, Unit):
                assert chosen.shape == (*lead, part.n)
                assert torch.isfinite(chosen).all()
                continue
            assert chosen.shape == (*lead, *part.field.shape)
            assert chosen.dtype == torch.int64
            seen = case.see(role.name)
            if isinstance(part, Picks):
                assert PickSet.of(part, seen.legal[name], seen.features).supports(chosen).all()
            else:
                assert seen.legal[name].gather(-1, chosen.unsqueeze(-1)).all()
        for number in (decision.log_prob, decision.entropy):
            assert number.shape == lead
            assert torch.isfinite(number).all()
        memory = case.learner.memory(role.name)
        assert memory.shape[:2] == lead
        assert not memory.any()
        assert decision.memory.shape == memory.shape


def test_every_agent_has_a_finite_value_at_every_step(start: Start) -> None:
    case = start()
    case.collector.collect(case.rollout)
    found = case.learner.value(case.rollout.critic)
    assert found.keys() == case.rollout.roles.keys()
    for role in case.world.spec.roles:
        shape = (STEPS, 2 * LANES, role.agents)
        assert torch.broadcast_shapes(found[role.name].shape, shape) == shape
        rows = case.rollout.roles[role.name]
        assert torch.isfinite(rows.value).all()
        assert torch.isfinite(rows.next_value).all()


def test_an_update_reports_finite_numbers_for_every_member(start: Start) -> None:
    first, second = start().train(2)
    assert first.keys() == second.keys()
    for name, value in (*first.items(), *second.items()):
        assert value.shape == (2,), name
        assert torch.isfinite(value).all(), name


def test_the_version_counts_updates_and_rows_say_which_one_acted(start: Start) -> None:
    case = start()
    for update in range(3):
        assert int(case.learner.version) == update
        case.train(1)
        assert (case.rollout.version == update).all()
    assert int(case.learner.version) == 3


def test_a_saved_learner_goes_on_bit_equally(start: Start) -> None:
    case, other = start(), start()
    case.train(2)
    buffer = io.BytesIO()
    torch.save([case.learner.state_dict(), case.collector.state_dict()], buffer)
    expected = case.train(2)
    buffer.seek(0)
    learner, collector = torch.load(buffer, weights_only=True)
    other.train(1)  # what it had learned and where it was must not matter
    other.learner.load_state_dict(learner)
    other.collector.load_state_dict(collector)
    for old, new in zip(expected, other.train(2), strict=True):
        assert all(torch.equal(value, new[name]) for name, value in old.items())
    assert state_digest(case.learner.state_dict()) == state_digest(other.learner.state_dict())
    assert state_digest(case.collector.state_dict()) == state_digest(other.collector.state_dict())


def test_what_was_saved_does_not_move_along_with_the_learner(start: Start) -> None:
    case = start()
    saved = case.learner.state_dict()
    before = state_digest(saved)
    case.train(1)
    assert state_digest(saved) == before
    case.learner.load_state_dict(saved)
    case.train(1)
    assert state_digest(saved) == before


def test_a_member_of_a_pack_decides_as_it_does_alone(start: Start) -> None:
    pack, alone = start((1, 5, 9)), start((5,))
    own = slice(LANES, 2 * LANES)
    pack.collector.collect(pack.rollout)
    alone.collector.collect(alone.rollout)
    for name, rows in alone.rollout.roles.items():
        beside = pack.rollout.roles[name]
        # Up to the rounding of batched products, which later rows feed back: the first row only.
        for part, chosen in rows.action.items():
            torch.testing.assert_close(beside.action[part][0, own], chosen[0], rtol=1e-4, atol=1e-5)
        for field in ("log_prob", "entropy", "value"):
            got, expected = getattr(beside, field)[0, own], getattr(rows, field)[0]
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_members_with_other_seeds_decide_differently(start: Start) -> None:
    case = start()
    case.collector.collect(case.rollout)
    for rows in case.rollout.roles.values():
        for chosen in rows.action.values():
            one, other = chosen.unflatten(1, (2, LANES)).unbind(dim=1)
            assert not torch.equal(one, other)


def test_acting_at_the_same_place_of_the_streams_repeats(start: Start) -> None:
    case = start()
    case.collector.collect(case.rollout)
    for role in case.world.spec.roles:
        one, two = case.decide(role.name), case.decide(role.name)
        assert all(torch.equal(x, two.action[name]) for name, x in one.action.items())
        case.streams.tick()
        later = case.decide(role.name)
        assert any(not torch.equal(x, later.action[name]) for name, x in one.action.items())


def test_a_policy_that_learns_acts_deterministically_without_its_streams(
    config: LearnerConfig, start: Start
) -> None:
    case = start()
    case.collector.collect(case.rollout)
    repeats = not isinstance(config, RandomizedConfig)  # uniform decisions have no mode
    for role in case.world.spec.roles:
        one = case.decide(role.name, deterministic=True)
        case.streams.tick()
        two = case.decide(role.name, deterministic=True)
        same = all(torch.equal(x, two.action[name]) for name, x in one.action.items())
        assert same == repeats


def test_no_global_generator_is_touched(start: Start) -> None:
    before = torch.random.get_rng_state()
    start().train(1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_learning_changes_the_weights_and_every_member_its_own_way(
    config: LearnerConfig, start: Start
) -> None:
    case = start()
    before = case.learner.state_dict()
    case.train(1)
    after = case.learner.state_dict()
    assert ("weights" in after) != isinstance(config, RandomizedConfig)
    for name, weights in after.get("weights", {}).items():
        change = weights - before["weights"][name]
        assert (change != 0).any(dim=1).all(), name
        assert not torch.equal(change[0], change[1]), name


def test_the_registry_names_what_the_paper_names() -> None:
    assert {"ab-mappo", "b-mappo", "ag-mappo", "g-mappo", "maddpg", "randomized"} <= LEARNERS.keys()
    assert LEARNERS["ppo"] == LEARNERS["ab-mappo"]
    heads = {name: getattr(config, "unit_head", None) for name, config in LEARNERS.items()}
    critics = {name: getattr(config, "critic", None) for name, config in LEARNERS.items()}
    assert (heads["ab-mappo"], critics["ab-mappo"]) == ("beta", "attention")
    assert (heads["b-mappo"], critics["b-mappo"]) == ("beta", "state")
    assert (heads["ag-mappo"], critics["ag-mappo"]) == ("gaussian_clip", "attention")
    assert (heads["g-mappo"], critics["g-mappo"]) == ("gaussian_clip", "state")


def test_every_kind_of_learner_is_built_and_another_is_refused() -> None:
    spec = WORLDS["Masked"](lanes=2).spec
    for config in CONFIGS.values():
        assert isinstance(registry.build(config, spec, seeds=[0], accumulate=2), Learner)

    class Dreams(RandomizedConfig):
        kind = "dreams"

    with pytest.raises(UnknownName, match="no kind of learner called 'dreams'"):
        registry.build(Dreams(), spec, seeds=[0])
