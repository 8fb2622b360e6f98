"""MADDPG: what it keeps, what it learns from that, and that it learns."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.collect.synchronous import Collector
from lockstep.core.actions import Categorical, Observation, Unit
from lockstep.core.company import Company
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams, lane_keys
from lockstep.errors import AuditFailure, BadInput
from lockstep.learners import registry
from lockstep.learners.actor_critic import CRITIC
from lockstep.learners.config import MADDPGConfig
from lockstep.learners.deterministic import chosen, explored, for_critic, gap
from lockstep.learners.joint_q import _flat
from lockstep.learners.maddpg import MADDPG
from lockstep.nets.joint_critic import TeamCritic
from lockstep.worlds import registry as worlds
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests.toys import Masked, Match, Pool, Toy

SMALL = MADDPGConfig(lanes=4, steps=6, hidden=16, hidden_critic=16, replay=40, warm_up=24, batch=8)
TINY_UAV = partial(worlds.build, replace(SCENARIOS["demo"], n_users=4, n_uavs=2, n_slots=4))


class Larger(Toy):
    """Say which of two numbers is the larger; a third answer is never legal."""

    action = {"side": Categorical(n=3, masked=True)}
    n_features = 2

    def observe(self, role: str) -> Observation:
        plain = super().observe(role)
        legal = torch.tensor([True, True, False]).expand(*plain.acts.shape, 3)
        return Observation(features=plain.features, acts=plain.acts, legal={"side": legal})

    def reward(self) -> Tensor:
        right = (self.seen[..., 0] > self.seen[..., 1]).long()
        return -(self.chosen["side"] != right).float()


class Side:
    """A pack on a world, ready to run."""

    def __init__(
        self, make, config: MADDPGConfig = SMALL, seeds: Sequence[int] = (3, 5), **options
    ):
        self.world = make(lanes=len(seeds) * config.lanes)
        self.keys = lane_keys(seeds, lanes=config.lanes)
        self.world.reset(self.keys)
        self.learner = MADDPG(config, self.world.spec, seeds=seeds, **options)
        self.collector = Collector(self.world, self.learner, Streams(self.keys))
        self.rollout: Rollout = self.learner.rollout()

    def train(self, updates: int = 1) -> list[dict[str, Tensor]]:
        stats = []
        for _ in range(updates):
            self.collector.collect(self.rollout)
            stats.append(dict(self.learner.update(self.rollout).scalars))
        return stats

    def regret(self) -> Tensor:
        """Mean regret `[P]` of deterministic decisions over new steps."""
        losses = []
        for _ in range(20):
            obs = self.world.observe("player")
            starts = torch.zeros(self.world.lanes, dtype=torch.bool)
            how = {"deterministic": True}
            memory, streams = self.learner.memory("player"), self.collector.streams
            decision = self.learner.act("player", obs, memory, starts, streams, **how)
            self.world.act("player", decision.action)
            losses.append(self.world.advance().metrics["regret"])
        return torch.stack(losses).unflatten(1, (self.learner.members, -1)).mean(dim=(0, 2))


def weights(learner: MADDPG) -> dict[str, Tensor]:
    return {name: pack.weights.detach().clone() for name, pack in learner.nets.packs.items()}


def stored(learner: MADDPG) -> dict[str, Tensor]:
    return learner.replay.state()["rows"]


QUICK = replace(
    SMALL,
    **{"lanes": 16, "steps": 10, "hidden": 32, "hidden_critic": 32, "replay": 8000, "warm_up": 100},
    **{"batch": 64, "discount": 0.0, "tau": 0.05, "updates_per_step": 0.125},
    **{"lr_actor": 3e-3, "lr_critic": 1e-2, "sigma_floor": 0.1},
)


def test_numbers_whose_best_values_are_known_are_learned() -> None:
    side = Side(partial(Match, agents=2), replace(QUICK, sigma=0.3))
    before = side.regret()
    side.train(12)
    assert (before > 0.02).all()
    assert (side.regret() < 0.006).all()


def test_an_agent_among_many_learns_from_its_own_reward() -> None:
    """Of the mean of twelve rewards its decision moves a twelfth."""
    learned = {}
    for reward in ("own", "team"):
        side = Side(partial(Match, agents=12), replace(QUICK, sigma=0.3, reward=reward), seeds=(3,))
        side.train(12)
        learned[reward] = side.regret()
    assert (learned["own"] < 0.02).all()
    assert (learned["team"] > 3 * learned["own"]).all()


def test_labels_whose_best_choice_is_known_are_learned() -> None:
    side = Side(Larger, replace(QUICK, sigma=2.0))
    before = side.regret()
    side.train(10)
    assert (before > 0.3).all()
    assert (side.regret() < 0.1).all()


def constant_targets(side: Side) -> MADDPG:
    """The learner with target networks whose Q is 10 of every state and decision."""
    learner = side.learner
    critic = learner.nets.targets[CRITIC]
    with torch.no_grad():
        for flat in critic.weights:
            views = dict(zip((x[0] for x in critic._layout), critic._split(flat), strict=True))
            flat.zero_()
            for name in views:
                if name.startswith("head.") and name.endswith("bias"):
                    views[name].fill_(10.0)
    return learner


@pytest.mark.parametrize("reward", ["own", "team"])
@pytest.mark.parametrize("truncates", [False, True])
def test_a_death_promises_nothing_and_a_cut_from_outside_does(truncates: bool, reward: Any) -> None:
    side = Side(partial(Match, horizon=3, truncates=truncates), replace(SMALL, reward=reward))
    side.train(2)
    learner = constant_targets(side)
    place = torch.arange(int(learner.replay.drawable) * SMALL.lanes).expand(2, -1)
    drawn = learner.replay.read(place)
    ends = drawn.past.truncated if truncates else drawn.past.terminated
    assert ends.double().mean() == pytest.approx(1 / 3, abs=0.05)
    target = learner.nets.bellman_target(drawn, torch.tensor([0.9, 0.5]))
    promise = torch.tensor([9.0, 5.0]).view(2, 1, 1).expand_as(target)
    expected = promise if truncates else torch.where(ends.unsqueeze(-1), 0.0, promise)
    torch.testing.assert_close(target - drawn.past.reward, expected, rtol=1e-5, atol=1e-5)


def test_a_step_of_more_time_discounts_more() -> None:
    side = Side(Match)
    side.train(1)
    learner = constant_targets(side)
    drawn = learner.replay.read(torch.zeros(2, 1, dtype=torch.int64))
    drawn = drawn._replace(past=replace(drawn.past, elapsed=torch.tensor([[1.0], [3.0]])))
    target = learner.nets.bellman_target(drawn, torch.tensor([0.5, 0.5]))
    assert (target - drawn.past.reward).flatten().tolist() == pytest.approx([5.0, 1.25], abs=1e-5)


@pytest.mark.parametrize("reward", ["own", "team"])
def test_the_replay_keeps_what_happened_and_what_q_foretells(reward: Any) -> None:
    side = Side(TINY_UAV, replace(SMALL, reward=reward))
    side.train(1)
    rollout, kept = side.rollout, side.learner.replay.kept
    each = [rows.reward for rows in rollout.roles.values()]  # [T, L, A]
    # Of the team every role counts alike, however many agents it has.
    team = sum(reward.mean(dim=-1, keepdim=True) for reward in each) / 2
    told = torch.cat(each, dim=-1) if reward == "own" else team
    by_member = told.unflatten(1, (2, SMALL.lanes)).transpose(0, 1)  # [P, T, N, Q]
    torch.testing.assert_close(kept.reward[:, : SMALL.steps], by_member)
    for role in side.world.spec.roles:
        numbers = rollout.roles[role.name].action
        told = torch.cat([numbers[name] for name in role.action], dim=-1)  # all are Unit parts
        told = told.unflatten(1, (2, SMALL.lanes)).transpose(0, 1)
        torch.testing.assert_close(kept.action[role.name][:, : SMALL.steps], told)


@pytest.mark.parametrize(("warm_up", "learns_at"), [(20, 0), (21, 1), (40, 1)])
def test_the_warm_up_counts_transitions_that_can_be_drawn(warm_up: int, learns_at: int) -> None:
    side = Side(Match, replace(SMALL, warm_up=warm_up))
    first = weights(side.learner)
    for update in range(3):  # 24 transitions each, of which the last row of 4 waits for the next
        (stats,) = side.train()
        due = SMALL.gradient_steps if update >= learns_at else 0
        assert stats["train/gradient_steps"].tolist() == [due, due]
        moved = [not torch.equal(x, first[name]) for name, x in weights(side.learner).items()]
        assert moved == [update >= learns_at] * 2
        assert ("train/q_loss" in stats) == bool(due)


def test_gradient_steps_are_made_for_each_environment_step() -> None:
    side = Side(Match, replace(SMALL, updates_per_step=0.25))
    side.train(3)  # the first update warms up
    for adam in side.learner.optimizers.values():
        assert adam.steps.tolist() == [12.0, 12.0]  # 2 updates of 24 / 4


def test_the_critic_of_the_team_is_as_large_as_the_papers() -> None:
    critic = TeamCritic(worlds.build(SCENARIOS["paper"], lanes=1).spec, hidden=256)
    assert sum(x.numel() for x in critic.parameters()) == 649_985


def test_a_batch_is_of_one_member_and_targets_follow_by_tau() -> None:
    side = Side(Match, replace(SMALL, updates_per_step=1 / 24, tau=0.25))
    side.train(1)
    before = {name: pack.weights.clone() for name, pack in side.learner.nets.targets.items()}
    assert all(torch.equal(x, before[name]) for name, x in weights(side.learner).items())
    side.train(1)
    for name, pack in side.learner.nets.targets.items():
        expected = 0.75 * before[name] + 0.25 * weights(side.learner)[name]
        torch.testing.assert_close(pack.weights, expected)
        assert not pack.weights.requires_grad


def test_a_role_is_moved_by_its_own_decisions_alone() -> None:
    side = Side(TINY_UAV)
    side.train(1)
    learner = side.learner
    drawn = learner.replay.read(torch.arange(8).expand(2, -1))
    packs = learner.nets.packs
    own, other = (packs[role].weights for role in ("mu", "uav"))
    loss = learner.nets.policy_loss("mu", drawn.past)
    assert loss.shape == (2,)
    gradient, none = torch.autograd.grad(loss.sum(), [own, other], allow_unused=True)
    assert none is None
    assert (gradient != 0).any(dim=1).all()


def test_an_agents_decision_is_judged_beside_what_the_others_did() -> None:
    """As if it alone had decided so: no other's new decision, and no other's reward."""
    side = Side(TINY_UAV)
    side.train(1)
    nets = side.learner.nets
    past = side.learner.replay.read(torch.arange(8).expand(2, -1)).past
    for role in side.world.spec.roles:
        told = past.action[role.name]
        new = torch.rand(told.shape, generator=torch.Generator().manual_seed(0))
        seen = {role.name: _flat(past.obs[role.name])}
        found = nets.packs[CRITIC](past.state, past.action, seen, {role.name: new})
        assert found.shape == (2, 8, role.agents)
        for agent in range(role.agents):
            one = told.clone()
            one[..., agent, :] = new[..., agent, :]
            alone = nets.packs[CRITIC](past.state, past.action | {role.name: one}, seen, {})
            torch.testing.assert_close(found[..., agent], alone[..., agent])
            assert not torch.allclose(found, alone)


def test_members_learn_from_their_own_replay_as_they_do_alone() -> None:
    config = replace(SMALL, replay=60, updates_per_step=0.5)
    pack, alone = Side(Match, config, (1, 5, 9)), Side(Match, config, (5,))
    for _ in range(4):
        (together,), (one,) = pack.train(), alone.train()
        assert together.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(together[name][1:2], value, rtol=1e-3, atol=1e-5)
    for name, kept in stored(alone.learner).items():
        # Rounding of batched products moves later decisions, and they what is seen after them.
        assert stored(pack.learner)[name].shape[1:] == kept.shape[1:]
        if kept.is_floating_point():
            torch.testing.assert_close(stored(pack.learner)[name][1:2], kept, rtol=1e-3, atol=1e-4)
    member = pack.learner.member(1)
    for name, pack_ in member.nets.packs.items():
        assert torch.equal(pack_.weights[0], pack.learner.nets.packs[name].weights[1])
    assert torch.equal(member.replay.kept.reward[0], pack.learner.replay.kept.reward[1])


def test_members_that_differ_in_numbers_learn_as_they_do_alone() -> None:
    vary = {"lr_actor": (1e-4, 1e-2), "sigma": (0.2, 0.4), "discount": (0.5, 0.9)}
    vary["epsilon"] = (0.0, 0.3)
    pack = Side(Match, SMALL, (1, 5), vary=vary)
    own = replace(SMALL, lr_actor=1e-2, sigma=0.4, discount=0.9, epsilon=0.3)
    alone = Side(Match, own, (5,))
    for _ in range(2):
        (together,), (one,) = pack.train(), alone.train()
        for name, value in one.items():
            torch.testing.assert_close(together[name][1:2], value, rtol=1e-3, atol=1e-5)
    assert pack.learner.member(1).config == own


@pytest.mark.parametrize("updates", [1, 2, 5])  # warming up, just warm, the ring has wrapped
def test_a_resumed_learner_equals_one_that_never_stopped(updates: int) -> None:
    config = replace(SMALL, warm_up=28)
    whole, other = Side(TINY_UAV, config), Side(TINY_UAV, config, (7, 8))
    whole.train(updates)
    saved = [whole.learner.state_dict(), whole.collector.state_dict()]
    expected = whole.train(2)
    resumed = Side(TINY_UAV, config)
    resumed.learner.load_state_dict(saved[0])
    resumed.collector.load_state_dict(saved[1])
    for old, new in zip(expected, resumed.train(2), strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(value, new[name]) for name, value in old.items())
    for name, x in weights(whole.learner).items():
        assert torch.equal(x, weights(resumed.learner)[name])
        assert not torch.equal(x, weights(other.learner)[name])
    for name, x in stored(whole.learner).items():
        assert torch.equal(x, stored(resumed.learner)[name])


def test_the_noise_shrinks_by_environment_steps_down_to_its_floor() -> None:
    config = replace(SMALL, sigma=0.5, sigma_decay=0.99, sigma_floor=0.35)
    shown = [float(stats["train/sigma"][0]) for stats in Side(Match, config).train(3)]
    assert shown == pytest.approx([0.5, 0.5 * 0.99**24, 0.35])


def test_noise_has_its_deviation_and_stays_within_bounds_and_choices() -> None:
    L = 4000
    spec = Masked(lanes=1).spec.role("player")
    role = replace(spec, action={"number": Unit(n=1), "pick": Categorical(n=4, masked=True)})
    legal = torch.tensor([True, True, False, True]).expand(L, 1, 4)
    obs = Observation(features={}, acts=torch.ones(L, 1, dtype=torch.bool), legal={"pick": legal})
    pick = torch.tensor([0.2, 0.5, 0.0, 0.3]).expand(L, 1, 4)
    mean = {"number": torch.full((L, 1, 1), 0.5), "pick": pick}
    draw = Streams(lane_keys([0], lanes=L)).draw("noise")
    sigma, never = torch.full((L,), 0.1), torch.zeros(L)
    found = explored(role, mean, obs, draw, sigma, never)
    assert float(found["number"].std()) == pytest.approx(0.1, rel=0.05)
    assert float(found["number"].mean()) == pytest.approx(0.5, abs=0.01)
    # A quarter of it on probabilities, seen where nothing is clipped, before they add up to 1.
    ratio = (found["pick"][..., 1] / found["pick"][..., 3]).log()
    assert float(ratio.std()) == pytest.approx(math.hypot(0.025 / 0.5, 0.025 / 0.3), rel=0.1)
    wide = explored(role, mean, obs, draw, torch.full((L,), 5.0), never)
    assert wide["number"].min() >= 0
    assert wide["number"].max() <= 1
    assert (wide["pick"] >= 0).all()
    assert (wide["pick"][..., 2] == 0).all()
    torch.testing.assert_close(wide["pick"].sum(dim=-1), torch.ones(L, 1))
    assert (chosen(role, wide, obs)["pick"] != 2).all()
    none = explored(role, mean, obs, draw, torch.zeros(L), never)
    torch.testing.assert_close(none, mean)
    some = explored(role, mean, obs, draw, torch.zeros(L), torch.full((L,), 0.25))
    astray = some["number"].flatten() != 0.5
    assert float(astray.double().mean()) == pytest.approx(0.25, abs=0.03)
    assert float(some["number"].flatten()[astray].std()) == pytest.approx(12**-0.5, rel=0.05)
    assert torch.equal((some["pick"] != pick).any(dim=-1).flatten(), astray)  # in all it decides
    taken = chosen(role, some, obs)["pick"].flatten()[astray]
    shares = torch.bincount(taken, minlength=4) / len(taken)
    torch.testing.assert_close(shares, torch.tensor([1.0, 1.0, 0.0, 1.0]) / 3, atol=0.05, rtol=0)


def test_agents_that_wait_are_silent_to_the_critic_and_to_the_audit() -> None:
    role = Match(agents=2).spec.role("player")
    obs = Observation(features={}, acts=torch.tensor([[True, False]]))
    decision = {"number": torch.tensor([[[0.25], [0.75]]])}
    assert for_critic(role, decision, obs.acts).flatten().tolist() == [0.25, 0.0]
    told = {"number": torch.tensor([[[0.5], [0.0]]])}
    assert gap(role, decision, told, obs).flatten().tolist() == [0.25, 0.0]


def test_a_rewritten_action_stops_the_update_and_leaves_the_replay_alone() -> None:
    side = Side(Match)
    side.train(1)
    before = weights(side.learner)
    side.collector.collect(side.rollout)
    side.rollout.roles["player"].action["number"][3, 5, 0] += 0.01
    with pytest.raises(AuditFailure, match=r"G4 action .* worst at step 3, lane 5, agent 0"):
        side.learner.update(side.rollout)
    assert int(side.learner.replay.written) == SMALL.steps
    assert all(torch.equal(x, before[name]) for name, x in weights(side.learner).items())


def test_weights_that_moved_since_they_acted_stop_the_update() -> None:
    side = Side(Match)
    side.collector.collect(side.rollout)
    with torch.no_grad():
        side.learner.nets.packs["player"].weights[1] += 0.05
    with pytest.raises(AuditFailure, match=r"G4 action .* lane [4-7], "):
        side.learner.update(side.rollout)


def test_a_rollout_that_is_not_full_is_refused() -> None:
    side = Side(Match)
    with pytest.raises(ValueError, match="needs a full rollout, got 0 of 6 rows"):
        side.learner.update(side.rollout)


def test_what_it_cannot_decide_or_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"numbers .* and labels .*, got Candidates in part pick"):
        MADDPG(SMALL, Pool(lanes=4).spec, seeds=[0])
    spec = replace(Match(lanes=4).spec, critic_at="phase")
    with pytest.raises(
        ValueError, match=r"must find one critic input 'state' .* critic_at 'phase'"
    ):
        MADDPG(SMALL, spec, seeds=[0])

    class Two(Company):
        size = 2

    with pytest.raises(BadInput, match=r"must train in one process, .* got 2 processes"):
        registry.build(SMALL, Match(lanes=4).spec, seeds=[0], company=Two())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": 20}, "replay (20) must hold a rollout of lanes * steps (24)"),
        ({"lanes": 3, "replay": 40, "warm_up": 40}, "in whole rows of its lanes (3); try 42"),
        ({"updates_per_step": 0.3}, "must make a whole number of gradient steps"),
        ({"updates_per_step": 0.001}, "at least 1; try 0.0416667"),
        ({"sigma_floor": 0.9}, "sigma_floor (0.9) must lie in 0..sigma (0.5)"),
        ({"tau": 1.5}, "tau must lie in 0..1, got 1.5"),
        ({"lr_critic": 0.0}, "lr_critic must be positive, got 0.0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(SMALL, **changes)
