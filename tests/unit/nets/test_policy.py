import pytest
import torch

from lockstep.core.actions import Categorical, Field, Observation, Rows, Unit
from lockstep.core.distributions import Beta
from lockstep.core.world import RoleSpec
from lockstep.nets.layers import GatedMemory, seeded
from lockstep.nets.policy import Policy, joint

E, F = 3, 4


def role(base="positional") -> RoleSpec:
    return RoleSpec(
        name="user",
        agents=2,
        features={"obs": Field(shape=(5,))},
        entities={"tower": Field(shape=(E, F))},
        action={
            "score": Unit(n=1 + E, rows=Rows(over="tower", extra=("local",), base=base)),
            "label": Categorical(
                n=1 + 2 * E, rows=Rows(over="tower", per_row=2, extra=("none",), base=base)
            ),
            "rho": Unit(n=1),
        },
        discount=0.9,
    )


def policy(base="positional", **changes) -> Policy:
    settings = {"unit_head": "beta", "hidden": 8, "scorer": True} | changes
    made = seeded(lambda: Policy(role(base), **settings), 0)
    for scorer in made.scorers.values():
        torch.nn.init.normal_(scorer.head.weight, generator=torch.Generator().manual_seed(1))
    return made


def inputs(T=1, N=6):
    generator = torch.Generator().manual_seed(2)
    features = {"obs": torch.randn(T, N, 2, 5, generator=generator)}
    entities = {"tower": torch.randn(T, N, 2, E, F, generator=generator)}
    return features, entities, {}, torch.zeros(N, 2, 0), torch.zeros(T, N, dtype=torch.bool)


def test_reordering_the_rows_of_an_entity_set_reorders_its_scores():
    made = policy(base="none")
    features, entities, legal, memory, starts = inputs()
    order = torch.tensor([2, 0, 1])
    plain, _ = made(features, entities, legal, memory, starts)
    moved, _ = made(features, {"tower": entities["tower"][..., order, :]}, legal, memory, starts)
    score, shuffled = plain["score"], moved["score"]
    torch.testing.assert_close(shuffled[..., 1:], score[..., 1:][..., order])
    torch.testing.assert_close(shuffled[..., :1], score[..., :1])
    label = plain["label"][..., 1:].unflatten(-1, (2, E))
    torch.testing.assert_close(moved["label"][..., 1:].unflatten(-1, (2, E)), label[..., order])


def test_a_policy_with_no_positional_base_takes_any_number_of_rows():
    made = policy(base="none")
    features, _, legal, memory, starts = inputs()
    params, _ = made(features, {"tower": torch.randn(1, 6, 2, 7, F)}, legal, memory, starts)
    assert params["score"].shape[-1] == 1 + 7


@pytest.mark.parametrize("unit_head", ["beta", "gaussian_clip", "gaussian_sigmoid"])
@pytest.mark.parametrize("scorer", [True, False])
def test_the_joint_has_a_log_prob_for_every_agent(unit_head, scorer):
    made = policy(unit_head=unit_head, scorer=scorer)
    features, entities, legal, memory, starts = inputs()
    params, _ = made(features, entities, legal, memory, starts)
    acts = torch.ones(1, 6, 2, dtype=torch.bool)
    seen = Observation(features=features, entities=entities, acts=acts)
    choice = joint(role(), params, seen, unit_head)
    log_prob, entropy = choice.log_prob_and_entropy(choice.mode())
    assert log_prob.shape == entropy.shape == (1, 6, 2)
    assert torch.isfinite(log_prob).all()


def test_a_beta_policy_starts_close_to_uniform():
    made = seeded(lambda: Policy(role(), unit_head="beta", hidden=8, scorer=True), 0)
    features, entities, legal, memory, starts = inputs()
    params, _ = made(features, entities, legal, memory, starts)
    seen = Observation(features=features, acts=torch.ones(1, 6, 2, dtype=torch.bool))
    score = joint(role(), params, seen, "beta").parts["score"]
    assert isinstance(score, Beta)
    assert (score.alpha - 1.693).abs().max() < 0.05


def test_memory_is_cleared_for_the_lane_whose_episode_starts_and_for_no_other():
    cell = seeded(lambda: GatedMemory(4), 0)
    x = torch.randn(3, 5, 2, 4)
    starts = torch.zeros(3, 5, dtype=torch.bool)
    starts[1, 2] = True
    out, _ = cell(x, torch.randn(5, 2, 4), starts)
    fresh, _ = cell(x[1:, 2:3], torch.zeros(1, 2, 4), torch.zeros(2, 1, dtype=torch.bool))
    torch.testing.assert_close(out[1:, 2:3], fresh)
    kept, _ = cell(x, torch.zeros(5, 2, 4), torch.zeros(3, 5, dtype=torch.bool))
    assert not torch.allclose(out[1:, 0], kept[1:, 0])


def test_permuting_lanes_and_agents_permutes_what_is_remembered():
    cell = seeded(lambda: GatedMemory(4), 0)
    x, memory = torch.randn(3, 5, 2, 4), torch.randn(5, 2, 4)
    starts = torch.rand(3, 5) < 0.3
    out, last = cell(x, memory, starts)
    lanes, agents = torch.randperm(5), torch.tensor([1, 0])
    moved, moved_last = cell(x[:, lanes][:, :, agents], memory[lanes][:, agents], starts[:, lanes])
    torch.testing.assert_close(moved, out[:, lanes][:, :, agents])
    torch.testing.assert_close(moved_last, last[lanes][:, agents])
