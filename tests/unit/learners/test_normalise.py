import pytest
import torch

from lockstep.learners.normalise import RunningReward


def test_the_spread_between_agents_is_ignored_and_a_step_counts_once():
    running = RunningReward(1)
    running.normalise(torch.tensor([[[1.0, 3.0]]]))
    assert running.count.item() == pytest.approx(1.0001)
    assert running.mean.item() == pytest.approx(2.0, rel=1e-3)
    assert running.var.item() < 0.01


def test_statistics_equal_a_step_by_step_update():
    reward = torch.randn(7, 2, 3)
    running = RunningReward(2)
    out = running.normalise(reward)
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
    running.normalise(first)
    resumed.load_state_dict(running.state_dict())
    assert torch.equal(running.normalise(second), resumed.normalise(second))
