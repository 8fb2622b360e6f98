"""Learning in the city world: the best plan of tiny maps, and weights that fit wider sets."""

from dataclasses import replace

import pytest
import torch

from lockstep.core.streams import lane_keys
from lockstep.learners.ppo import PPO
from lockstep.nets.rows import RowScorer
from lockstep.run.config import preset
from lockstep.run.policy import HeuristicPolicy, LearnedPolicy, Policy
from lockstep.run.trainer import Trainer
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.world import CityGrowth, with_maps

BEST = {"tiny-4": 14_034.0, "tiny-9": 5_698.0}
"""Found by playing every plan (test_solvers)."""


def returns(policy: Policy, config: CityConfig, *, lanes: int) -> torch.Tensor:
    """Return of every lane, all agents together, in thousand GBP."""
    world, keys = CityGrowth(config, lanes=lanes), lane_keys([1_000_003], lanes=lanes)
    world.reset(keys)
    policy.begin(keys)
    total = torch.zeros(lanes, dtype=torch.float64)
    for _ in range(config.horizon):
        step = policy.step(world, deterministic=True)
        total += torch.cat(list(step.reward.values()), dim=1).double().sum(dim=1)
    return total * config.reward.scale


def trained(scenario: str, *, seed: int, updates: int, **settings: object) -> PPO:
    """A learner after some updates with the settings that the scenario comes with."""
    config = preset("city-growth", scenario=scenario)
    learner = replace(config.learner, **settings)  # type: ignore[arg-type]
    trainer = Trainer(replace(config, learner=learner, seeds=(seed,), device="cpu", compile="off"))
    for _ in range(updates):
        trainer.update()
    assert isinstance(trainer.learner, PPO)
    return trainer.learner


def check_tiny(scenario: str, *, seed: int) -> None:
    policy = LearnedPolicy(trained(scenario, seed=seed, updates=30))
    found = returns(policy, SCENARIOS[scenario], lanes=1).item()
    assert 0.98 * BEST[scenario] <= found <= BEST[scenario] + 0.5


@pytest.mark.parametrize("scenario", list(BEST))
def test_a_tiny_map_is_played_within_2_percent_of_the_best_plan(scenario: str) -> None:
    check_tiny(scenario, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("scenario", list(BEST))
def test_a_tiny_map_is_played_within_2_percent_whatever_the_seed(scenario: str, seed: int) -> None:
    check_tiny(scenario, seed=seed)


def _ahead(learner: PPO, rule: str, cities: int) -> tuple[float, float]:
    """By how much a policy's return exceeds a rule's on cities never seen, and its error."""
    unseen = with_maps(SCENARIOS["default"], map_seed=90_000, n_maps=cities)
    solver = HeuristicPolicy(HEURISTICS[rule], label=rule)
    gap = returns(LearnedPolicy(learner), unseen, lanes=cities) - returns(
        solver, unseen, lanes=cities
    )
    return gap.mean().item(), gap.std().item() / cities**0.5


def test_the_full_map_is_played_better_than_chance_after_a_few_steps() -> None:
    gap, error = _ahead(trained("default", seed=0, updates=2, lanes=16), "random", 8)
    assert gap > 3 * error > 0


@pytest.mark.slow
def test_the_full_map_is_played_at_least_as_well_as_greedily_with_three_builds_a_turn() -> None:
    assert SCENARIOS["default"].builds == 3
    config = preset("city-growth", scenario="default")
    world = replace(config.world, reward=replace(config.world.reward, shared=1.0))
    trainer = Trainer(replace(config, world=world, device="cpu", compile="off"))
    for _ in range(25):
        trainer.update()
    assert isinstance(trainer.learner, PPO)
    for rule in ("random", "greedy"):
        gap, error = _ahead(trainer.learner, rule, 20)
        assert gap > 3 * error > 0


def test_what_was_learned_on_60_slots_plays_200_better_than_chance() -> None:
    """Weights fit sets of any width: they are copied as they are, and nothing is trained again."""
    village = trained("village", seed=0, updates=2, lr_actor=2e-3, lanes=16)
    unseen = with_maps(SCENARIOS["default"], map_seed=90_000, n_maps=4)
    wide = PPO(village.config, CityGrowth(unseen, lanes=1).spec, seeds=village.seeds)
    assert wide.spec.role("edu").action["build"] != village.spec.role("edu").action["build"]
    for name, pack in wide.packs.items():
        assert pack.weights.shape == village.packs[name].weights.shape
        with torch.no_grad():
            pack.weights.copy_(village.packs[name].weights)
    chance = HeuristicPolicy(HEURISTICS["random"], label="random")
    gap = returns(LearnedPolicy(wide), unseen, lanes=4) - returns(chance, unseen, lanes=4)
    assert (gap > 0).all(), gap


def test_lists_of_candidates_and_padded_ones_give_the_same_decisions() -> None:
    """On the CPU rows that exist are listed, which is faster there; elsewhere they are padded."""
    config = preset("city-growth", scenario="small")
    spec = CityGrowth(config.world, lanes=1).spec
    learner = PPO(replace(config.learner, lanes=8), spec, seeds=[1], device="cpu")
    with torch.no_grad():
        learner.policies["ind"].weights.mul_(3.0)  # away from uniform
    world = CityGrowth(config.world, lanes=8)
    world.reset(lane_keys([3], lanes=8))
    for _ in range(4):
        for role in config.world.agent_names:
            world.act(role, HEURISTICS["npv"](world, role))
        world.advance()
    seen, picked = world.observe("ind"), HEURISTICS["random"](world, "ind")
    memory, starts = learner.memory("ind"), torch.ones(8, dtype=torch.bool)
    scorers = [m for m in learner.policies["ind"].module.modules() if isinstance(m, RowScorer)]
    found = []
    for listed in (True, False):
        assert [scorer.ragged for scorer in scorers] == [True]
        scorers[0].ragged = listed
        law, _ = learner.policy("ind", seen, memory, starts)
        found.append((*law.log_prob_and_entropy(picked), law.mode()["build"].double()))
        scorers[0].ragged = True
    assert found[0][0].std() > 0.01
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0.0)


def test_shuffling_the_candidates_shuffles_their_probabilities() -> None:
    config = preset("city-growth", scenario="small")
    learner = PPO(
        replace(config.learner, lanes=8), CityGrowth(config.world, lanes=1).spec, seeds=[1]
    )
    with torch.no_grad():
        learner.policies["edu"].weights.mul_(2.0)  # away from uniform
    world = CityGrowth(config.world, lanes=8)
    world.reset(lane_keys([3], lanes=8))
    for role in config.world.agent_names:
        world.act(role, HEURISTICS["random"](world, role))
    world.advance()
    seen = world.observe("edu")
    picked = HEURISTICS["random"](world, "edu")["build"]
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(seen.entities["candidate"].shape[2], generator=generator)
    rows = ("candidate/id", "candidate/resource")
    shuffled = replace(
        seen,
        features=dict(seen.features) | {name: seen.features[name][:, :, order] for name in rows},
        entities={"candidate": seen.entities["candidate"][:, :, order]},
        legal={"build": seen.legal["build"][..., torch.cat((torch.zeros(1).long(), order + 1))]},
    )
    place = torch.cat((torch.zeros(1).long(), order.argsort() + 1))
    memory, starts = learner.memory("edu"), torch.ones(8, dtype=torch.bool)
    law, _ = learner.policy("edu", seen, memory, starts)
    moved, _ = learner.policy("edu", shuffled, memory, starts)
    plain = law.log_prob({"build": picked})
    assert plain.std() > 0.01
    torch.testing.assert_close(moved.log_prob({"build": place[picked]}), plain, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(moved.mode()["build"], place[law.mode()["build"]])
