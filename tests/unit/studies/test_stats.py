import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats as reference

from lockstep.studies.stats import (
    bootstrap,
    bootstrap_curves,
    iqm,
    paired,
    spearman,
    student_p,
)

NUMBERS = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=30)


@given(NUMBERS)
@settings(deadline=None, max_examples=50)
def test_the_interquartile_mean_is_the_mean_trimmed_by_a_quarter(values: list[float]):
    assert iqm(values) == pytest.approx(reference.trim_mean(values, 0.25), abs=1e-9)


def test_one_outlier_does_not_move_the_interquartile_mean():
    assert iqm([1.0, 2.0, 3.0, 4.0]) == iqm([1.0, 2.0, 3.0, 1e9]) == 2.5


def test_an_interval_is_the_same_for_the_same_seed_and_contains_the_mean():
    values = np.random.default_rng(0).normal(3.0, 1.0, size=40)
    low, high = bootstrap(values, np.mean, 7)
    assert (low, high) == bootstrap(values, np.mean, 7)
    assert (low, high) != bootstrap(values, np.mean, 8)
    assert low < values.mean() < high
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_strata_keep_the_spread_between_tasks_out_of_the_interval():
    values = [0.0, 0.1, 0.2, 10.0, 10.1, 10.2]
    low, high = bootstrap(values, np.mean, 0)
    tight = bootstrap(values, np.mean, 0, strata=["a"] * 3 + ["b"] * 3)
    assert tight[1] - tight[0] < 0.2 < 3.0 < high - low


def test_a_single_value_is_its_own_interval():
    assert bootstrap([2.5], iqm, 0) == (2.5, 2.5)


def test_strata_must_label_every_value():
    with pytest.raises(ValueError, match="strata must have one label for each of 2 values: 1"):
        bootstrap([1.0, 2.0], iqm, 0, strata=["a"])


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1.0]])
def test_what_is_not_a_number_is_refused(values: list[float]):
    with pytest.raises(ValueError, match="values must be one or more finite numbers"):
        iqm(values)


def test_pairs_are_taken_by_seed():
    ours = {42: 1.0, 43: 5.0, 44: 9.0}
    theirs = {42: 0.9, 43: 4.8, 44: 8.9}
    gap = paired(ours, theirs)
    assert gap.mean == pytest.approx(0.4 / 3)
    assert gap.error == pytest.approx(np.std([0.1, 0.2, 0.1], ddof=1) / math.sqrt(3))
    assert (gap.pairs, gap.freedom) == (3, 2)
    assert gap.p == pytest.approx(
        reference.ttest_rel(list(ours.values()), list(theirs.values())).pvalue
    )
    assert not gap.separated  # four standard errors are not much with three pairs
    assert paired(ours | {45: 2.0}, theirs | {45: 1.85}).separated


def test_the_level_at_which_pairs_separate_is_that_of_students_test():
    generator = np.random.default_rng(3)
    chance = [paired(*_twins(generator)).separated for _ in range(2000)]
    assert np.mean(chance) == pytest.approx(0.05, abs=0.015)


def _twins(generator: np.random.Generator) -> tuple[dict[int, float], dict[int, float]]:
    """Two series of three seeds without any difference between them."""
    rows = generator.normal(size=(2, 3))
    one, other = (dict(enumerate(map(float, row))) for row in rows)
    return one, other


def test_equal_series_do_not_separate_and_a_constant_difference_does():
    same = {0: 1.0, 1: 2.0}
    assert paired(same, same).p == 1.0
    assert paired(same, {0: 0.5, 1: 1.5}).separated


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("t", [0.0, 0.3, -2.0, 12.0])
def test_the_tail_of_students_distribution_is_exact(t: float, freedom: int):
    expected = 2.0 * reference.t.sf(abs(t), freedom)
    assert student_p(t, freedom) == pytest.approx(expected, abs=1e-12)


def test_a_band_is_at_every_update_the_interval_of_its_values():
    curves = np.random.default_rng(1).normal(size=(9, 4)).cumsum(axis=1)
    middle, low, high = bootstrap_curves(curves)
    for update in range(4):
        assert middle[update] == iqm(curves[:, update])
        ends = bootstrap(curves[:, update])
        assert (low[update], high[update]) == pytest.approx(ends, abs=0.05)


def test_a_band_has_a_gap_where_a_seed_has_no_number():
    curves = np.array([[1.0, np.nan, 3.0], [2.0, 2.0, 5.0]])
    for line in bootstrap_curves(curves):
        assert np.isnan(line).tolist() == [False, True, False]


def test_a_difference_within_its_error_is_not_separated():
    assert not paired({0: 1.0, 1: -1.0}, {0: 0.0, 1: 0.1}).separated


def test_a_single_pair_is_never_separated():
    gap = paired({0: 5.0}, {0: 1.0})
    assert gap.mean == 4.0
    assert math.isnan(gap.error)
    assert not gap.separated


def test_without_common_seeds_the_means_are_compared_with_both_errors():
    gap = paired({0: 1.0, 1: 3.0}, {2: 0.0, 3: 0.0})
    assert gap.mean == 2.0
    assert gap.error == pytest.approx(1.0)
    assert gap.pairs == 0


@given(st.lists(st.integers(0, 6).map(float), min_size=3, max_size=12), st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_the_rank_correlation_is_spearmans(values: list[float], seed: int):
    other = np.random.default_rng(seed).integers(0, 5, size=len(values)).astype(np.float64)
    if len(set(values)) < 2 or len(set(other.tolist())) < 2:
        assert math.isnan(spearman(values, other))
        return
    expected = reference.spearmanr(values, other).statistic
    assert spearman(values, other) == pytest.approx(expected, abs=1e-9)


def test_both_sides_of_a_correlation_are_of_one_length():
    with pytest.raises(ValueError, match="both sides must be of one length, got 2 and 3"):
        spearman([1.0, 2.0], [1.0, 2.0, 3.0])
