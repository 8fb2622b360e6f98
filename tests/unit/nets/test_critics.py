import pytest
import torch

from lockstep.core.actions import Field, Unit
from lockstep.core.world import Metric, RoleSpec, WorldSpec
from lockstep.nets.critics import AttentionCritic, StateCritic
from lockstep.nets.layers import seeded


def two_roles() -> WorldSpec:
    def role(name: str, agents: int, features: int) -> RoleSpec:
        return RoleSpec(
            name=name,
            agents=agents,
            features={"obs": Field(shape=(features,))},
            action={"x": Unit(n=1)},
            discount=0.9,
        )

    return WorldSpec(
        name="two",
        roles=(role("many", 4, 3), role("few", 2, 5)),
        phases=(("many", "few"),),
        critic={
            "many": Field(shape=(4, 3)),
            "few": Field(shape=(2, 5)),
            "state": Field(shape=(7,)),
        },
        horizon=1,
        metrics=(Metric(name="x", unit="1", meaning="x", better="lower"),),
        objective="x",
    )


def attention(*, fused: bool = False) -> AttentionCritic:
    return seeded(lambda: AttentionCritic(two_roles(), hidden=16, heads=4, fused=fused), 0)


def rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "many": torch.randn(6, 4, 3, generator=generator),
        "few": torch.randn(6, 2, 5, generator=generator),
    }


def test_fused_and_written_out_attention_agree():
    fused, plain = attention(fused=True)(rows()), attention(fused=False)(rows())
    for name in fused:
        torch.testing.assert_close(fused[name], plain[name], rtol=1e-5, atol=1e-6)


def test_an_agent_gathers_from_the_others_and_never_from_itself():
    critic = attention()
    encoded = torch.randn(1, 6, 16, requires_grad=True)
    gathered = critic.attend(encoded)
    value_of_first = gathered[0, 0].sum()
    (gradient,) = torch.autograd.grad(value_of_first, encoded)
    # Agent 0 still asks the question (its query), so compare through values only: with equal keys
    # and queries the weights are uniform over the other five.
    assert gradient[0, 1:].abs().sum() > 0
    with torch.no_grad():
        critic.query_key_value.weight[:32] = 0.0  # queries and keys
        changed = encoded.detach().clone()
        changed[0, 0] += 1.0
        before, after = critic.attend(encoded.detach()), critic.attend(changed)
    torch.testing.assert_close(before[0, 0], after[0, 0])
    assert not torch.allclose(before[0, 1], after[0, 1])


def test_another_agents_observation_changes_my_value():
    critic, state = attention(), rows()
    before = critic(state)["many"][0, 0]
    state["few"][0, 1] += 1.0
    assert not torch.allclose(before, critic(state)["many"][0, 0])


def test_permuting_lanes_and_agents_permutes_values_alike():
    critic, state = attention(), rows()
    value = critic(state)
    lanes, agents = torch.randperm(6), torch.randperm(4)
    moved = critic({"many": state["many"][lanes][:, agents], "few": state["few"][lanes]})
    torch.testing.assert_close(moved["many"], value["many"][lanes][:, agents], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(moved["few"], value["few"][lanes], rtol=1e-5, atol=1e-6)


def test_the_state_critic_gives_each_agent_its_own_value():
    critic = StateCritic(two_roles(), hidden=16)
    value = critic({"state": torch.randn(6, 7)})
    assert value["many"].shape == (6, 4)
    assert value["few"].shape == (6, 2)


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
def test_critics_accept_any_leading_dimensions(lead):
    state = {"many": torch.randn(*lead, 4, 3), "few": torch.randn(*lead, 2, 5)}
    assert attention()(state)["few"].shape == (*lead, 2)
