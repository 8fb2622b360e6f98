import pytest
import torch
from torch import Tensor

from lockstep.learners.normalise import RunningReward


def advanced(running: RunningReward, reward: Tensor) -> Tensor:
    out, after = running.normalise(reward)
    running.take(after)
    return out


def test_the_spread_between_agents_is_ignored_and_a_step_counts_once():
    running = RunningReward(1)
    advanced(running, torch.tensor([[[1.0, 3.0]]]))
    assert running.moments.count.item() == pytest.approx(1.0001)
    assert running.moments.mean.item() == pytest.approx(2.0, rel=1e-3)
    assert running.moments.var.item() < 0.01


def test_statistics_equal_a_step_by_step_update():
    reward = torch.randn(7, 2, 3)
    running = RunningReward(2)
    out, _ = running.normalise(reward)
    for member in range(2):
        mean, var, n = 0.0, 1.0, 1e-4
        for t in range(7):
            delta = reward[t, member].mean().item() - mean
            mean += delta / (n + 1)
            var = (var * n + delta**2 * n / (n + 1)) / (n + 1)
            n += 1
            expected = (reward[t, member] - mean) / (var**0.5 + 1e-8)
            torch.testing.assert_close(out[t, member], expected, rtol=1e-4, atol=1e-5)


def test_statistics_go_on_from_where_they_were_saved():
    first, second = torch.randn(2, 5, 4, 3)
    running, resumed = RunningReward(2), RunningReward(2)
    advanced(running, first)
    resumed.load_state_dict(running.state_dict())
    assert torch.equal(advanced(running, second), advanced(resumed, second))


def test_nothing_changes_before_the_new_statistics_are_taken():
    running = RunningReward(2)
    before = running.state_dict()
    running.normalise(torch.randn(5, 4, 3))
    assert all(torch.equal(x, before[name]) for name, x in running.state_dict().items())


def test_without_centring_rewards_keep_their_sign_and_lose_their_scale():
    reward = 1000 * torch.randn(200, 4, 1) + 500
    scaled, _ = RunningReward(1, centre=False).normalise(reward)
    assert torch.equal(scaled.sign(), reward.sign())
    late = scaled[100:]
    assert late.std().item() == pytest.approx(1.0, abs=0.2)
    assert late.mean().item() == pytest.approx(0.5, abs=0.2)
