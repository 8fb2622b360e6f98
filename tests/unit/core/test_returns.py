import pytest
import torch
from torch import Tensor

from lockstep.core.returns import gae, judged, vtrace


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)  # [T, 1]


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(-1)  # [T, 1]


def listed(x: Tensor) -> list[float]:
    return [float(number) for number in x.squeeze(-1)]


def test_the_worked_example_of_the_uav_specification() -> None:
    target, advantage = gae(
        column(0, 10, 100),
        column(5, 1, 50),
        column(1, 50, 7),
        flags(0, 1, 0),
        flags(0, 0, 0),
        gamma=1.0,
        lam=1.0,
    )
    assert listed(advantage) == [5, 9, 57]
    assert listed(target) == [10, 10, 107]


def test_a_time_limit_bootstraps_and_a_death_does_not() -> None:
    def advantage(*, terminated: int, truncated: int) -> list[float]:
        return listed(
            gae(
                column(1, 1),
                column(10, 20),
                column(8, 30),
                flags(terminated, 0),
                flags(truncated, 0),
                gamma=0.5,
                lam=0.9,
            ).advantage
        )

    last = 1 + 0.5 * 30 - 20
    assert advantage(terminated=0, truncated=1) == pytest.approx([1 + 0.5 * 8 - 10, last])
    assert advantage(terminated=1, truncated=0) == pytest.approx([1 - 10, last])
    assert advantage(terminated=1, truncated=1) == pytest.approx([1 - 10, last])
    assert advantage(terminated=0, truncated=0) == pytest.approx(
        [1 + 0.5 * 8 - 10 + 0.5 * 0.9 * last, last]
    )


def test_the_bootstrap_is_the_value_of_the_final_observation_not_of_the_reset_one() -> None:
    # A critic that returns the number of steps since reset; each episode is cut after three.
    clock = torch.arange(7) % 3
    value = clock.double().unsqueeze(-1)
    truncated = (clock == 2).unsqueeze(-1)
    _, advantage = gae(
        torch.zeros_like(value),
        value,
        value + 1.0,
        torch.zeros_like(truncated),
        truncated,
        gamma=1.0,
        lam=0.0,
    )
    assert listed(advantage) == [1.0] * 7


def test_the_value_after_a_termination_is_never_read() -> None:
    terminated = flags(0, 1, 0, 0)
    args = (column(1, 2, 3, 4), column(1, 1, 1, 1), column(1, float("nan"), 1, 1), terminated)
    none = torch.zeros_like(terminated)
    acts = flags(1, 1, 0, 1)
    for found in (
        gae(*args, none, gamma=0.9, lam=0.9),
        gae(*args, none, gamma=0.9, lam=0.9, acts=acts),
        vtrace(torch.zeros_like(args[0]), *args, none, gamma=0.9),
    ):
        assert found.target.isfinite().all()
        assert found.advantage.isfinite().all()


def test_rewards_accrue_to_the_last_decision_discounted_by_elapsed_time() -> None:
    gamma, lam = 0.5, 0.25
    target, advantage = gae(
        column(99, 1, 2, 4, 8, 16),
        column(-1, 10, -1, -1, 20, -1),
        column(10, 7, 7, 20, 7, 40),
        flags(0, 0, 0, 0, 0, 0),
        flags(0, 0, 0, 0, 0, 0),
        gamma=gamma,
        lam=lam,
        elapsed=column(1, 1, 2, 1, 3, 1),
        acts=flags(0, 1, 0, 0, 1, 0),
    )
    second = 8 + gamma**3 * 16 + gamma**4 * 40 - 20  # open at the end of the rollout
    first = 1 + gamma * 2 + gamma**3 * 4 + gamma**4 * (20 + lam * second) - 10
    assert listed(advantage) == pytest.approx([0, first, 0, 0, second, 0])
    # While the second decision is open its agent earns 16 and the value 40 is still ahead.
    assert listed(target)[4:] == pytest.approx([second + 20, 16 + gamma * 40])


def test_a_critic_learns_from_the_first_decision_of_each_episode_on() -> None:
    acts = flags(0, 1, 0, 0, 0, 1, 0)
    ended = flags(0, 0, 0, 1, 0, 0, 0)
    never = torch.zeros_like(ended)
    expected = [False, True, True, True, False, True, True]
    for ends in ((ended, never), (never, ended)):
        assert judged(acts, *ends).squeeze(-1).tolist() == expected
    assert not judged(never, never, never).any()


def test_acting_at_every_unit_step_is_the_textbook_case() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, next_value = torch.randn(3, 9, 4, 2, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 9, 4, 2, generator=generator) < 0.2
    args = (reward, value, next_value, terminated, truncated)
    plain = gae(*args, gamma=0.9, lam=0.8).advantage
    timed = gae(
        *args,
        gamma=0.9,
        lam=0.8,
        elapsed=torch.ones_like(reward),
        acts=torch.ones_like(terminated),
    ).advantage
    torch.testing.assert_close(timed, plain)


def test_members_may_differ_in_discount_and_lambda() -> None:
    generator = torch.Generator().manual_seed(1)
    reward, value, next_value = torch.randn(3, 6, 2, 3, generator=generator, dtype=torch.float64)
    ended, acts = torch.rand(2, 6, 2, 3, generator=generator) < 0.5
    gamma, lam = torch.tensor([[0.9], [0.5]]).double(), torch.tensor([[1.0], [0.3]]).double()
    args = (reward, value, next_value, ended, torch.zeros_like(ended))
    for extra in ({}, {"acts": acts}):
        together = gae(*args, gamma=gamma, lam=lam, **extra).advantage
        for member in range(2):
            own = {"gamma": float(gamma[member]), "lam": float(lam[member])}
            alone = gae(*args, **own, **extra).advantage
            torch.testing.assert_close(together[:, member], alone[:, member])


def test_inputs_are_left_as_they_were() -> None:
    reward, value, next_value = column(1, 2), column(3, 4), column(4, 5)
    ended = flags(0, 1)
    gae(reward, value, next_value, ended, ended, gamma=0.9, lam=0.9, acts=flags(1, 0))
    vtrace(reward, reward, value, next_value, ended, ended, gamma=0.9)
    assert [listed(x) for x in (reward, value, next_value)] == [[1, 2], [3, 4], [4, 5]]
    assert ended.squeeze(-1).tolist() == [False, True]


def test_vtrace_on_its_own_policy_targets_the_n_step_return() -> None:
    gamma = 0.9
    reward, value, next_value = column(1, 2, 3, 4), column(5, 6, 7, 8), column(6, 7, 8, 9)
    truncated, never = flags(0, 1, 0, 0), flags(0, 0, 0, 0)
    got = vtrace(torch.zeros_like(reward), reward, value, next_value, never, truncated, gamma=gamma)
    returns = [
        1 + gamma * (2 + gamma * 7),
        2 + gamma * 7,
        3 + gamma * (4 + gamma * 9),
        4 + gamma * 9,
    ]
    assert listed(got.target) == pytest.approx(returns)
    assert listed(got.advantage) == pytest.approx(
        [r - v for r, v in zip(returns, [5, 6, 7, 8], strict=True)]
    )
