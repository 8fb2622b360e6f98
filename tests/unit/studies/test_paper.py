import pytest

from lockstep.studies import paper


def test_landmarks_of_a_curve_stand_in_the_middle_of_their_windows():
    read = paper.readings(("fig4", "world/weighted_energy_mu_avg", ""))[paper.AB]
    assert list(read) == [300.0, 1500.0, 8000.0, 25000.0, 45000.0, 75000.0, 77000.0]
    assert (
        read[8000.0] == paper.CURVES["fig4", "world/weighted_energy_mu_avg", ""][paper.AB]["6-10k"]
    )


def test_nothing_was_read_from_elsewhere():
    assert paper.readings(("fig4", "world/jain_fairness", "")) == {}
    assert not paper.has_readings("uav-paper", "fig13")
    assert not paper.has_readings("mine", "fig6")
    assert all(paper.has_readings("uav-paper", f"fig{n}") for n in range(3, 13))


@pytest.mark.parametrize(("landmark", "steps"), [("0-3k", (0, 3000)), ("15-20k", (15000, 20000))])
def test_a_landmark_names_its_steps(landmark: str, steps: tuple[int, int]):
    assert paper.window(landmark) == steps


def test_every_landmark_of_a_turn_was_read():
    for (figure, _, _), curves in paper.CURVES.items():
        for row in curves.values():
            assert set(paper.TURNS[figure]) <= set(row)


def test_users_and_total_energy_agree_with_each_other_as_the_metrics_are_defined():
    """60 users and a thousandth of 10 UAVs: the total of figure 6 out of readings of figure 9."""
    user = paper.MARKS["fig9", "world/mu_energy_avg", ""][paper.AB][0.001]
    uav = paper.MARKS["fig9", "world/uav_energy_avg", ""][paper.AB][0.001]
    total = paper.MARKS["fig6", "world/weighted_energy_mu_total", ""][paper.AB][60.0]
    assert 60 * user + 0.001 * 10 * uav == pytest.approx(total, rel=0.01)
