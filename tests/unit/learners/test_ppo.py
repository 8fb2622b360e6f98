import dataclasses
from functools import partial

import pytest
import torch

from lockstep.learners.actor_critic import sliced
from lockstep.learners.config import PPOConfig
from tests.helpers import assemble, train
from tests.toys import Masked, Match, Pool, Recall

CONFIG = PPOConfig(hidden=16, lanes=4, steps=6, lr_actor=1e-2, lr_critic=1e-2)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (Match, {}),
        (Match, {"minibatches": 2, "reward_norm": "running", "value_clip": 0.2}),
        (Match, {"unit_head": "gaussian_clip", "critic": "state", "entropy_per": "sum"}),
        (Match, {"unit_head": "gaussian_sigmoid"}),
        (Masked, {}),
        (Pool, {}),
        (Recall, {"memory": "gru", "minibatches": 2}),
    ],
)
def test_a_member_of_a_pack_of_four_learns_what_it_learns_alone(make, changes):
    config = dataclasses.replace(CONFIG, **changes)
    seeds = [3, 5, 8, 13]

    def world(lanes):
        return make(lanes=lanes, agents=2)

    pack, *rest = assemble(world, config, seeds, dtype=torch.float64)
    together = train(pack, *rest, updates=3)
    for member, seed in enumerate(seeds):
        alone, *rest = assemble(world, config, [seed], dtype=torch.float64)
        by_itself = train(alone, *rest, updates=3)
        for name, p in alone.packs.items():
            torch.testing.assert_close(
                pack.packs[name].weights[member], p.weights[0], rtol=1e-5, atol=1e-5
            )
        for name, value in by_itself[-1].items():
            if not name.startswith("audit/"):
                torch.testing.assert_close(
                    together[-1][name][member], value[0], rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_pack_saves_of_a_member_is_what_it_would_save_alone(precision):
    """Mapped over members a product may come out in another type than alone."""
    config = dataclasses.replace(CONFIG, precision=precision)
    pack, *rest = assemble(Match, config, [3, 5])
    train(pack, *rest, updates=1)
    alone, *_ = assemble(Match, config, [5])
    assert kinds(sliced(pack.state_dict(), 1)) == kinds(alone.state_dict())


def kinds(tree, name=""):
    """Type and shape of each tensor of a nested state, by its place in it."""
    if isinstance(tree, torch.Tensor):
        return {name: (tree.dtype, tree.shape)}
    parts = [kinds(x, f"{name}/{key}") for key, x in tree.items()] if isinstance(tree, dict) else []
    return {place: kind for part in parts for place, kind in part.items()}


def test_a_kl_stop_of_one_member_leaves_the_others_as_they_were():
    seeds = [0, 1, 2]
    free = dataclasses.replace(CONFIG, lr_actor=5e-2, epochs=3)
    probe, *rest = assemble(Match, dataclasses.replace(free, epochs=2), seeds, dtype=torch.float64)
    second = train(probe, *rest, updates=1)[0][
        "train/max_kl"
    ]  # of the second epoch; the first is 0
    worst = int(second.argmax())
    limit = second.sort().values[-2:].mean().item()
    unlimited, *rest = assemble(Match, free, seeds, dtype=torch.float64)
    train(unlimited, *rest, updates=1)
    limited = dataclasses.replace(free, kl_stop_update=limit)
    stopped, *rest = assemble(Match, limited, seeds, dtype=torch.float64)
    taken = train(stopped, *rest, updates=1)[0]["train/minibatches"].tolist()
    assert taken == [2 if member == worst else 3 for member in range(3)]
    for name, pack in stopped.packs.items():
        for member in range(3):
            same = torch.equal(pack.weights[member], unlimited.packs[name].weights[member])
            assert same == (member != worst)


def test_a_member_past_its_minibatch_kl_takes_no_further_step():
    config = dataclasses.replace(CONFIG, kl_stop_minibatch=1e-9)
    learner, *rest = assemble(Match, config, [0, 1])
    stats = train(learner, *rest, updates=1)[0]
    # Before any step the KL is 0 but for rounding; every later minibatch shows more.
    assert stats["train/minibatches"].tolist() == [1, 1]
    assert learner.optimizers["player"].steps.tolist() == [1, 1]
    assert (stats["train/max_kl"] > 1e-9).all()


def test_a_members_own_learning_rate_is_used():
    learner, *rest = assemble(Match, CONFIG, [0, 1])
    learner.optimizers["player"].lr[1] = 0.0
    before = learner.policies["player"].weights.detach().clone()
    train(learner, *rest, updates=1)
    after = learner.policies["player"].weights.detach()
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])


def test_saved_and_loaded_learners_go_on_bit_equally():
    config = dataclasses.replace(CONFIG, minibatches=2, reward_norm="running")
    learner, collector, rollout = assemble(Match, config, [0, 1])
    train(learner, collector, rollout, updates=2)
    saved = {"learner": learner.state_dict(), "collector": collector.state_dict()}
    expected = train(learner, collector, rollout, updates=2)
    other, again, storage = assemble(Match, config, [0, 1])
    other.load_state_dict(saved["learner"])
    again.load_state_dict(saved["collector"])
    got = train(other, again, storage, updates=2)
    for name, value in expected[-1].items():
        assert torch.equal(value, got[-1][name]), name
    for name, p in learner.packs.items():
        assert torch.equal(p.weights, other.packs[name].weights)


def test_decisions_of_a_lane_do_not_depend_on_the_members_beside_it():
    _, alone, one = assemble(Match, CONFIG, [5])
    _, beside, many = assemble(Match, CONFIG, [1, 5, 9])
    alone.collect(one)
    beside.collect(many)
    torch.testing.assert_close(
        many.roles["player"].action["number"][:, 4:8],
        one.roles["player"].action["number"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_bf16_bodies_judge_steps_by_their_own_log_probs():
    config = dataclasses.replace(CONFIG, precision="bf16")
    learner, *rest = assemble(Match, config, [0, 1])
    stats = train(learner, *rest, updates=2)[-1]
    assert stats["audit/first/player/approx_kl"].abs().max() < 1e-6
    assert learner.policies["player"].weights.dtype == torch.float32


def test_acting_deterministically_repeats_itself():
    learner, collector, rollout = assemble(Match, CONFIG, [0])
    collector.collect(rollout)
    obs = rollout.roles["player"].obs.map(lambda x: x[0])
    starts = torch.ones(4, dtype=torch.bool)
    memory = learner.memory("player")
    first = learner.act("player", obs, memory, starts, collector.streams, deterministic=True)
    collector.streams.tick()
    second = learner.act("player", obs, memory, starts, collector.streams, deterministic=True)
    assert torch.equal(first.action["number"], second.action["number"])


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_acting_and_learning_build_one_distribution(seeds: tuple[int, ...]) -> None:
    config = PPOConfig(hidden=8, lanes=4, steps=3, memory="gru")
    learner, collector, rollout = assemble(partial(Recall, agents=2), config, seeds)
    collector.collect(rollout)
    batch, rows = learner._batch(rollout), rollout.roles["player"]
    role = batch.roles["player"]
    whole, last = learner.policy("player", role.obs, role.memory, batch.starts)
    memory = rollout.memory["player"]
    for t in range(rollout.steps):
        law, memory = learner.policy(
            "player", rows.obs.map(lambda x, t=t: x[t]), memory, rollout.starts[t]
        )
        log_prob = law.log_prob({name: x[t] for name, x in rows.action.items()})
        expected = whole.log_prob(role.action)[:, t].flatten(0, 1)
        torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(memory, last.flatten(0, 1))
