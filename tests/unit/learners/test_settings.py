import pytest

from lockstep.learners.config import PPOConfig


def test_a_temperature_and_a_share_of_chance_have_bounds():
    with pytest.raises(ValueError, match=r"temperature must be positive, got 0\.0"):
        PPOConfig(temperature=0.0)
    for epsilon in (-0.1, 1.0):
        with pytest.raises(
            ValueError, match=f"epsilon must be at least 0 and below 1, got {epsilon}"
        ):
            PPOConfig(epsilon=epsilon)


@pytest.mark.parametrize("changes", [{"set_context": "pooled"}, {"candidate_head": "identity"}])
def test_settings_of_the_row_scorer_are_refused_without_one(changes):
    with pytest.raises(ValueError, match="candidate_head and set_context need actor 'scorer', got"):
        PPOConfig(actor="mlp", **changes)
