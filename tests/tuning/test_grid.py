"""The best of some points, the flags that cannot work, and the epochs of a trial: each by itself."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.tuning.pairs import Point, best, check, grid, rule, tune_epochs


def equal(*pairs: tuple[float, float]) -> list[Point]:
    """Points of the same score."""
    return [Point(q, s, 60, 40, 0, 0, 0) for q, s in pairs]


def test_the_score_is_the_mean_of_both_accuracies() -> None:
    assert Point(0, 0, old=60, rotation=30, forgotten=99, stored=7, seconds=1).score == 45
    assert best([Point(0.2, 0.2, 60, 30, 0, 0, 0), Point(0, 0, 20, 72, 0, 0, 0)]).q == 0
    assert best([Point(0.2, 0.2, 30, 60, 0, 0, 0), Point(0, 0, 72, 20, 0, 0, 0)]).q == 0


NEAREST: list[tuple[list[tuple[float, float]], tuple[float, float]]] = [
    ([(0.0, 0.2), (0.2, 0.3)], (0.2, 0.3)), ([(0.2, 0.0), (0.3, 0.2)], (0.3, 0.2)),
    ([(0.4, 0.2), (0.2, 0.1)], (0.2, 0.1)), ([(0.2, 0.4), (0.1, 0.2)], (0.1, 0.2)),
    ([(0.0, 0.0), (0.2, 0.5)], (0.2, 0.5)), ([(0.0, 0.0), (0.5, 0.2)], (0.5, 0.2)),
    ([(0.1, 0.5), (0.2, 0.2)], (0.2, 0.2)), ([(0.5, 0.1), (0.2, 0.2)], (0.2, 0.2)),
    ([(0.4, 0.2), (0.2, 0.4), (0.2, 0.0), (0.0, 0.2)], (0.0, 0.2))]  # as near: the one that keeps the quickest


def test_of_equal_scores_the_nearest_to_a_fifth_on_both_sides_is_best() -> None:
    for pairs, nearest in NEAREST:
        assert best(equal(*pairs))[:2] == best(equal(*reversed(pairs)))[:2] == nearest


def test_a_side_that_is_given_keeps_its_place() -> None:
    assert grid("auto", 0.3, [0.1, 0.0]) == [(0.0, 0.3), (0.1, 0.3)]
    assert grid(0.3, "auto", [0.1, 0.0]) == [(0.3, 0.0), (0.3, 0.1)]
    assert grid("auto", "auto", [0.9, 0.0]) == [(0.0, 0.0), (0.0, 0.9), (0.9, 0.0)]
    with pytest.raises(UserError, match="leaves one pair.*give more values, or --sbs-q 0.9 --sbs-s 0$"):
        grid(0.9, "auto", [0.0, 0.5])
    with pytest.raises(UserError, match="^--sbs-grid 0.5 0.6: q . s is above 0.95 in every pair"):
        grid(0.9, "auto", [0.5, 0.6])


def test_the_rule_gives_thousandths() -> None:
    assert rule(0.12345) == (0.277, 0.123)
    assert rule(0.4) == (0.0, 0.4)


def flags(q: Any, s: Any, sampler: str = "speed", grid: Any = (0.0, 0.2)) -> Namespace:
    return Namespace(sbs_q=q, sbs_s=s, sampler=sampler, sbs_grid=list(grid))


BAD = [
    (flags("auto", 0.1, "uniform"), "--sbs-q auto: --sampler uniform has no"),
    (flags(0.1, "rule", "uniform"), "--sbs-s rule: --sampler uniform has no"),
    (flags("rule", "auto", "herding"), "--sbs-q rule: --sampler herding has no"),  # the first of both
    (flags(0.9, "auto"), "--sbs-grid 0 0.2: leaves one pair.*--sbs-q 0.9 --sbs-s 0$"),
    (flags("auto", 0.9), "--sbs-grid 0 0.2: leaves one pair.*--sbs-q 0 --sbs-s 0.9$"),
    (flags("auto", "rule", grid=[0.5, 0.6]), "leaves one pair.*--sbs-q 0.5 --sbs-s 0.4$"),
    (flags("rule", "auto", grid=[0.6, 0.7]), "q . s is above 0.95 in every pair"),
    (flags("rule", 0.56), "--sbs-s 0.56: rule may give 0.4 on the other side.*give at most 0.55$"),
    (flags(0.56, "rule"), "--sbs-q 0.56: rule may give 0.4 on the other side.*give at most 0.55$")]
GOOD = [
    flags(0.1, 0.2, "uniform"), flags(0.1, 0.8), flags(0.8, 0.1), flags("rule", "rule"), flags("rule", 0.55),
    flags(0.55, "rule"), flags("auto", "rule"), flags("rule", "auto"), flags("auto", 0.5), flags(0.5, "auto"),
    flags("auto", "auto"), flags("rule", "rule", grid=[0.3]), flags(0.2, 0.2, grid=[0.3]),
    flags("rule", 0.2, grid=[0.9])]


def test_what_cannot_work_is_named() -> None:
    for given, line in BAD:
        with pytest.raises(UserError, match=f"^{line}" if line.startswith("--") else line):
            check(given)


def test_what_can_work_is_let_through() -> None:
    for given in GOOD:
        check(given)


def test_the_epochs_of_a_trial_are_at_least_one() -> None:
    for asked, n, expected in ((None, None, 1), (None, 19, 1), (None, 20, 2), (None, 32, 3), (None, 110, 11),
                               (1, 50, 1), (3, None, 3)):
        assert tune_epochs(Namespace(sbs_tune_epochs=asked, n_epochs=n)) == expected
