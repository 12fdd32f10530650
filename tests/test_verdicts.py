"""The statistics behind a verdict: error rates by simulation, properties by search."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from creditaudit.study import verdicts

ALPHA = 0.05
SLACK = 0.015  # four standard errors of a rate of 5 % over the draws below
DRAWS = 4000


def rates(outcomes: list[str]) -> dict[str, float]:
    return {name: outcomes.count(name) / len(outcomes) for name in ("reproduced", "contradicted", "inconclusive")}


# ---- error rates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.05])
def test_equivalence_rarely_contradicts_the_published_truth(spread):
    draw = np.random.default_rng(0).normal(0.3, spread, (DRAWS, 2, 3))
    outcomes = [
        verdicts.equivalent([verdicts.against_published(ours, study.mean(), study.std(ddof=1), 3)], 0.02, ALPHA)
        for ours, study in draw
    ]
    assert rates(outcomes)["contradicted"] <= ALPHA + SLACK


@pytest.mark.parametrize("std", [None, 0.004])
def test_equivalence_at_the_margin_errs_at_most_alpha_either_way(std):
    generator = np.random.default_rng(1)
    ours = generator.normal(0.32, 0.004, (DRAWS, 3))
    study = 0.3 + (0.0 if std is None else generator.normal(0, std / np.sqrt(3), DRAWS))
    outcomes = [
        verdicts.equivalent([verdicts.against_published(row, value, std, 3)], 0.02, ALPHA)
        for row, value in zip(ours, np.broadcast_to(study, DRAWS), strict=True)
    ]
    assert rates(outcomes)["reproduced"] <= ALPHA + SLACK
    assert rates(outcomes)["contradicted"] <= ALPHA + SLACK


@pytest.mark.parametrize("inequalities", [1, 2, 4])
def test_effects_and_shapes_on_the_line_err_at_most_alpha_either_way(inequalities):
    """All inequalities exactly equal: the worst case for both verdicts. One inequality is an effect."""
    ladder = np.random.default_rng(2).normal(0, 0.01, (DRAWS, inequalities + 1, 3))
    outcomes = [verdicts.all_positive([verdicts.of_sample(b - a) for a, b in pairwise(rung)], ALPHA) for rung in ladder]
    assert rates(outcomes)["reproduced"] <= ALPHA + SLACK
    assert rates(outcomes)["contradicted"] <= ALPHA + SLACK


def test_one_seed_with_assumed_noise_errs_at_most_alpha():
    gaps = np.random.default_rng(3).normal(0, 0.01, (DRAWS, 4))
    outcomes = [verdicts.all_positive([verdicts.of_few([gap], 0.01) for gap in row], ALPHA) for row in gaps]
    assert rates(outcomes)["reproduced"] <= ALPHA + SLACK
    assert rates(outcomes)["contradicted"] <= ALPHA + SLACK


def test_the_checker_can_reproduce_the_study():
    """Power: with the published spread, the truth is usually recognised, and a 5-point shift contradicted."""
    draw = np.random.default_rng(4).normal(0, 0.003, (500, 3))
    hits = [judged(0.0, row) for row in draw]
    misses = [judged(0.05, row) for row in draw]
    assert rates(hits)["reproduced"] > 0.9
    assert rates(misses)["contradicted"] > 0.9


def test_the_promised_number_of_seeds_does_decide():
    weak = verdicts.of_sample([0.01, 0.03, -0.01])
    needed = verdicts.seeds_to_decide(weak, weak.mean, ALPHA)
    draw = np.random.default_rng(5).normal(weak.mean, weak.spread, (1000, needed))
    outcomes = [verdicts.all_positive([verdicts.of_sample(row)], ALPHA) for row in draw]
    assert abs(rates(outcomes)["reproduced"] - verdicts.POWER) < 0.06
    assert verdicts.seeds_to_decide(weak, 0.0, ALPHA) is None


def test_the_seeds_named_are_more_than_those_that_did_not_decide():
    """Five layers 0.62 off a margin of 0.5, three seeds: inside alpha, outside alpha / 5."""
    off = [verdicts.of_sample([-0.57, -0.62, -0.67])] * 5
    assert verdicts.equivalent(off, 0.5, ALPHA) == "inconclusive"
    note = verdicts.undecided(off, [0.5 - 0.62] * 5, ALPHA)
    assert note.cause == "many chances" and note.seeds > 3


def test_one_clear_contradiction_needs_no_proof_of_the_rest():
    clear, vague = verdicts.of_sample([-0.02, -0.03, -0.01]), verdicts.of_sample([0.0001, 0.02, -0.02])
    alone = verdicts.undecided([clear], [clear.mean], ALPHA / 2)
    both = verdicts.undecided([clear, vague], [clear.mean, vague.mean], ALPHA)
    assert both.seeds == alone.seeds


# ---- properties --------------------------------------------------------------------------------------------

RANK = {"reproduced": 0, "inconclusive": 1, "contradicted": 2}
three = st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3)
sample = three.map(lambda values: np.array(values) - np.mean(values))


def judged(shift, noise, std=0.003):
    return verdicts.equivalent([verdicts.against_published(noise + shift, 0.0, std, 3)], 0.02, ALPHA)


@settings(max_examples=100, deadline=None)
@given(sample, st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_larger_shift_never_looks_better(noise, one, other):
    near, far = sorted((one, other))
    assert RANK[judged(near, noise)] <= RANK[judged(far, noise)]


@settings(max_examples=100, deadline=None)
@given(sample, st.floats(0, 0.3))
def test_shifts_up_and_down_are_judged_alike(noise, shift):
    assert judged(shift, noise) == judged(-shift, -noise)


@settings(max_examples=50, deadline=None)
@given(sample, st.floats(-0.1, 0.1))
def test_a_statement_and_its_opposite_are_never_both_reproduced(noise, shift):
    estimate = verdicts.of_sample(noise + shift)
    both = {verdicts.all_positive([estimate.shifted(0.0, sign)], ALPHA) for sign in (1, -1)}
    assert both in ({"reproduced", "contradicted"}, {"inconclusive"})


def test_a_std_printed_as_zero_is_not_certainty():
    assert verdicts.against_published([0.1, 0.2], 0.1, 0.0, 3).other_variance > 0
    assert verdicts.against_published([0.1, 0.2], 0.1, None, 3).other_variance == 0
