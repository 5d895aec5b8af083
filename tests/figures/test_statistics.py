"""Intervals, p-values, the pooled row and Holm's correction: against brute force and numbers worked out by hand."""

from __future__ import annotations

import re
from itertools import product
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest

from mammoth_sbs.figures import statistics
from mammoth_sbs.figures.statistics import (
    POOLED,
    Difference,
    Mean,
    compare,
    holm,
    interval,
    over_methods,
    paired,
    probability,
    sign_flip,
)
from tests.conftest import REPO

SAMPLES = [[1.0, 2.0, 3.0], [0.5, -0.25, 1.75, 0.0, 2.0], [3.0, -1.0, 2.0, 2.0, -4.0, 0.5, 1.25, 0.75, 2.5, -0.5],
           [-1.0, -2.0, -4.0, -0.5]]


def test_the_standard_error_is_that_of_the_mean_and_unknown_for_one_seed() -> None:
    assert Mean.of([1.0, 2.0, 4.0]).error == pytest.approx(stdev([1, 2, 4]) / 3**0.5)
    assert Mean.of([3.0]).error is None
    assert Mean.of([3.0]).text() == "3.00"


def test_differences_are_paired_by_seed_whatever_order_they_are_in() -> None:
    change = paired({0: 11.0, 1: 25.0, 2: 28.0, 3: 5.0}, {2: 4.0, 0: 30.0, 1: 20.0, 3: 5.0})
    assert (change.mean, change.up, change.down, change.seeds) == (2.5, 2, 1, 4)  # an equal seed did not go up
    assert change.error == pytest.approx(stdev([-19, 5, 24, 0]) / 2)  # not by place, nor by rank, nor of the two means
    assert (change.better(), change.better(higher=False)) == ("2 of 4", "1 of 4")


@pytest.mark.parametrize("values", SAMPLES)
def test_the_sign_flip_test_is_exact_for_few_seeds(values: list[float]) -> None:
    flipped = [abs(fmean(s * v for s, v in zip(signs, values, strict=True)))
               for signs in product((1, -1), repeat=len(values))]
    wanted = fmean(mean >= abs(fmean(values)) - 1e-12 for mean in flipped)
    assert sign_flip(values) == pytest.approx(wanted)


def test_the_smallest_p_of_ten_seeds_is_that_of_all_going_one_way() -> None:
    assert sign_flip([1.0 + i / 10 for i in range(10)]) == 2 / 2**10
    assert sign_flip([-1.0 - i / 10 for i in range(10)]) == 2 / 2**10


def test_with_many_seeds_the_signs_are_drawn_and_always_the_same_ones() -> None:
    values = list(np.random.default_rng(3).normal(0.4, 1, 40))
    z = fmean(values) / fmean(v * v for v in values) ** 0.5 * 40**0.5
    assert sign_flip(values) == pytest.approx(2 * (1 - NormalDist().cdf(z)), abs=0.01)
    assert sign_flip(values) == sign_flip(values)


@pytest.mark.parametrize("values", [sample for sample in SAMPLES if len(sample) < 6])
def test_the_interval_is_that_of_all_ways_to_draw_the_seeds_again(values: list[float]) -> None:
    """All n^n of them, where that is few; ours are 9,999 at random."""
    means = [fmean(drawn) for drawn in product(values, repeat=len(values))]
    assert interval(values) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5], method="inverted_cdf")), abs=0.06)


@pytest.mark.parametrize("seeds", [5, 10, 20])
def test_an_interval_covers_the_truth_as_often_as_the_documents_say(
        seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said = re.search(r"in (\d+)% of cases with 5 seeds, (\d+)% with 10, (\d+)% with 20",
                     " ".join((REPO / "docs" / "reproduce.md").read_text(encoding="utf-8").split()))
    assert said
    monkeypatch.setattr(statistics, "RESAMPLES", 999)  # for time
    drawn = np.random.default_rng(2).normal(0, 1, (1000, seeds))
    covered = [low <= 0 <= high for low, high in map(interval, drawn.tolist()) if low is not None and high is not None]
    assert 100 * fmean(covered) == pytest.approx(int(said[1 + [5, 10, 20].index(seeds)]), abs=2)


def test_equal_differences_leave_no_doubt_and_one_seed_says_nothing_of_it() -> None:
    same = Difference.of([2.0, 2.0, 2.0])
    assert (same.low, same.high, same.error, same.p) == (2.0, 2.0, 0.0, 0.25)
    one = Difference.of([2.0])
    assert (one.mean, one.low, one.high, one.error, one.p, one.span()) == (2.0, None, None, None, None, "–")
    assert Difference.of([0.0, 0.0]).p == 1


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2, None, 0.01]) == [0.2, None, 0.02]  # what was not tested is not counted
    assert holm([]) == []


def test_the_pooled_difference_takes_the_seed_as_its_unit() -> None:
    chart = {"ER": {"SBS": {0: 5.0, 1: 7.0, 2: 1.0}, "uniform": {0: 4.0, 1: 4.0, 2: 2.0}},
             "DER": {"SBS": {0: 6.0, 1: 5.0, 2: 2.0}, "uniform": {0: 3.0, 1: 6.0, 2: 2.0}},
             "GEM": {"uniform": {0: 9.0}}}  # without the arm it says nothing
    found = compare(chart, "SBS", "uniform")
    assert list(found) == ["ER", "DER", POOLED]
    values = [(1 + 3) / 2, (3 - 1) / 2, (-1 + 0) / 2]
    assert found[POOLED].mean == pytest.approx(fmean(values)) and found[POOLED].seeds == 3
    assert found[POOLED].error == pytest.approx(stdev(values) / 3**0.5)
    assert found[POOLED].p == sign_flip(values) and found[POOLED].holm is None
    assert [found[name].holm for name in ("ER", "DER")] == holm([found[name].p for name in ("ER", "DER")])


def test_pooling_takes_the_seeds_that_all_methods_have_and_needs_two_methods() -> None:
    assert over_methods({"ER": {0: 1.0, 1: 2.0}, "DER": {1: 4.0, 2: 6.0}}) == {1: 3.0}
    assert over_methods({}) == {}
    arms = {"SBS": {0: 2.0, 1: 3.0}, "uniform": {0: 1.0, 1: 1.0}}
    assert list(compare({"ER": arms}, "SBS", "uniform")) == ["ER"]
    apart = {"SBS": {5: 2.0}, "uniform": {5: 1.0}}
    assert list(compare({"ER": arms, "DER": apart}, "SBS", "uniform")) == ["ER", "DER"]


def test_probabilities_are_not_said_to_be_zero() -> None:
    assert [probability(p) for p in (None, 0.00001, 0.0312, 1.0)] == ["–", "< 0.001", "0.031", "1.000"]
