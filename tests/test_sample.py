"""One number per seed: pairing, printing, and the decisions against a literal t interval."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from creditaudit.study.sample import Sample

seeds = st.integers(0, 9)
numbers = st.floats(-100, 100).map(lambda value: round(value, 3))
linear = st.dictionaries(seeds, numbers, max_size=6)
norms = st.dictionaries(seeds, st.floats(-12, 12).map(lambda decades: 10.0**decades), max_size=6)
lines = st.floats(-100, 100).map(lambda value: round(value, 3))


def plain(sample: Sample) -> str:
    return str(sample).replace("\u00a0", " ")


def literal(values: list[float], alpha: float = 0.05) -> tuple[float, float]:
    """The textbook interval."""
    half = stats.t.ppf(1 - alpha, len(values) - 1) * stats.sem(values)
    return np.mean(values) - half, np.mean(values) + half


def answer(low: float, high: float, line: float) -> bool | None:
    """Is it above the line?"""
    return True if low > line else False if high < line else None


# ---- pairing -----------------------------------------------------------------------------------------------


@given(linear, linear)
def test_a_difference_pairs_the_shared_seeds(a, b):
    difference = Sample(a) - Sample(b)
    assert difference.values == {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}
    assert difference.signed and difference.n == len(a.keys() & b.keys())


@given(norms, norms)
def test_a_difference_of_norms_is_their_ratio(a, b):
    ratio = Sample(a, log=True) - Sample(b, log=True)
    assert ratio.log and ratio.values == {seed: a[seed] / b[seed] for seed in a.keys() & b.keys()}


def test_a_difference_of_accuracies_is_in_percentage_points():
    trained, frozen = Sample({0: 0.33, 1: 0.34}, points=True), Sample({0: 0.39, 1: 0.41}, points=True)
    gain = trained - frozen
    assert gain.values == pytest.approx({0: -6, 1: -7})
    assert (gain.unit, gain.points) == ("pp", False)
    assert (trained - 0.33).values == pytest.approx({0: 0, 1: 1})
    assert (gain - gain).values == {0: 0, 1: 0}  # not a hundredfold again


def test_a_missing_twin_leaves_the_pair_out_and_an_undefined_one_makes_it_undefined():
    a = Sample({0: 3.0, 1: 4.0, 2: 5.0})
    assert (a - Sample({0: 1.0, 2: 1.0})).values == {0: 2, 2: 4}
    assert (a - Sample({0: 1.0, 2: None})).values == {0: 2, 2: None}
    assert (a - Sample({7: 1.0})).n == 0


def test_different_quantities_do_not_subtract():
    with pytest.raises(ValueError, match=r"norm.*accuracy"):
        Sample({0: 1.0}, log=True, name="norm") - Sample({0: 1.0}, name="accuracy")
    with pytest.raises(TypeError):
        Sample({0: 1.0}) - "1"


@given(linear, st.randoms())
def test_the_order_of_the_values_is_irrelevant(values, random):
    items = list(values.items())
    random.shuffle(items)
    assert Sample(dict(items)) == Sample(values) and str(Sample(dict(items))) == str(Sample(values))
    assert list(Sample(dict(items)).values) == sorted(values)


# ---- decisions ---------------------------------------------------------------------------------------------


@given(linear, lines)
def test_above_and_below_follow_the_t_interval(values, line):
    assume(len(values) > 1)
    low, high = literal(list(values.values()))
    assume(min(abs(low - line), abs(high - line)) > 1e-6)
    sample = Sample(values)
    assert sample.above(line) is answer(low, high, line)
    assert sample.below(line) is answer(-high, -low, -line)


@given(norms, st.floats(-12, 12))
def test_norms_are_decided_in_log10(values, decades):
    assume(len(values) > 1)
    logs = np.log10(list(values.values()))
    low, high = literal(logs)
    assume(min(abs(low - decades), abs(high - decades)) > 1e-6)
    sample = Sample(values, log=True)
    assert sample.mean == pytest.approx(stats.gmean(list(values.values())))
    assert sample.std == pytest.approx(np.std(logs, ddof=1), abs=1e-9)
    assert sample.above(10.0**decades) is answer(low, high, decades)
    assert sample.below(10.0**decades) is answer(-high, -low, -decades)


@given(linear, lines, st.floats(0.01, 50))
def test_within_asks_for_the_whole_interval(values, middle, half):
    assume(len(values) > 1)
    low, high = literal(list(values.values()))
    ends = (middle - half, middle + half)
    assume(min(abs(mine - end) for mine in (low, high) for end in ends) > 1e-6)
    inside, outside = ends[0] < low and high < ends[1], high < ends[0] or low > ends[1]
    assert Sample(values).within(*ends) is (True if inside else False if outside else None)


def test_within_takes_a_norm_in_natural_units():
    sample = Sample({0: 90.0, 1: 100.0, 2: 110.0}, log=True)
    assert sample.within(50, 200) is True and sample.within(1, 10) is False and sample.within(100, 200) is None
    with pytest.raises(ValueError):
        sample.within(200, 50)


@given(linear, linear)
def test_another_sample_is_a_line_for_each_seed(a, b):
    first, second = Sample(a), Sample(b)
    assert first.above(second) is (first - second).above(0)
    assert first.above(second) is second.below(first)


def test_norms_are_compared_by_their_ratio():
    small, large = Sample({0: 1.0, 1: 1e6}, log=True), Sample({0: 10.0, 1: 1.1e7}, log=True)
    assert large.above(small) is True and small.above(large) is False  # paired: the seeds' own spread does not count
    with pytest.raises(ValueError):
        large.above(0)
    with pytest.raises(ValueError):
        large - 0


def test_one_seed_decides_nothing():
    sample = Sample({0: 0.4})
    assert sample.above(0.1) is None and sample.within(0, 1) is None and sample.std is None


@pytest.mark.parametrize("values", [{}, {0: None}, {0: 5.0, 1: None, 2: 5.0}, {0: 5.0, 1: math.inf, 2: math.nan}])
def test_what_is_undefined_decides_nothing(values):
    sample = Sample(values)
    assert not sample.defined and sample.n == len(values)
    assert sample.mean is None and sample.std is None
    assert sample.above(0) is None and sample.below(0) is None and sample.within(0, 9) is None


def test_a_norm_of_nought_is_undefined():
    assert Sample({0: 0.0}, log=True).values == {0: None}


# ---- printing ----------------------------------------------------------------------------------------------


def test_printing():
    assert plain(Sample({0: 0.388, 1: 0.389, 2: 0.39})) == "0.389 ± 0.001 (n = 3)"
    assert plain(Sample({0: 0.389})) == "0.389 (n = 1)"
    assert plain(Sample({0: -0.389}, places=2)) == "−0.39 (n = 1)"
    assert plain(Sample({0: 61.0, 1: 63.0}, places=0, unit="s")) == "62 ± 1 s (n = 2)"
    assert plain(Sample({})) == "(no run)"
    assert plain(Sample({0: 1.0, 1: None, 2: 2.0})) == "(undefined in 1 of 3)"


def test_printing_differences():
    frozen = Sample(dict.fromkeys(range(3), 0.4), points=True)
    assert plain(Sample({0: 0.33, 1: 0.34, 2: 0.35}, points=True) - frozen) == "−6.0 ± 1.0 pp (n = 3)"
    assert plain(Sample({0: 0.621, 1: 0.625, 2: 0.629}, points=True) - frozen) == "+22.5 ± 0.4 pp (n = 3)"
    assert plain(Sample({0: 0.39999}, points=True) - frozen) == "0.0 pp (n = 1)"  # no sign of its own


def test_printing_norms():
    assert plain(Sample({s: 1.6e9 * 1.3 ** (s - 1) for s in range(3)}, log=True)) == "1.6e9 ×/÷ 1.3 (n = 3)"
    assert plain(Sample({0: 4.2e-8}, log=True)) == "4.2e-8 (n = 1)"
    assert plain(Sample({0: 15.0, 1: 15.0}, log=True)) == "15 ×/÷ <1.01 (n = 2)"
    assert plain(Sample({0: 999.0}, log=True)) == "1.0e3 (n = 1)"  # rounded first, then written


def test_a_number_never_breaks_over_lines():
    sample = Sample({0: 0.3, 1: 0.4}, unit="s")
    assert " " not in sample.short and str(sample).count(" ") == 1
    assert f"{sample}" == str(sample) == sample._repr_markdown_()
