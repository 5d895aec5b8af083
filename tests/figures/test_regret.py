"""Regret of ways to choose (q, s), on surfaces whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.regret import best_by_others, judge
from tests.figures.conftest import Put, draw, rows_of


def test_the_best_pair_of_a_seed_is_chosen_on_the_others() -> None:
    """(0, .4) is best by the mean, by a single lucky seed that could not have chosen it."""
    surface = {(0.0, 0.0): {0: 50.0, 1: 50.0, 2: 50.0}, (0.0, 0.4): {0: 80.0, 1: 45.0, 2: 45.0},
               (0.2, 0.2): {0: 52.0, 1: 52.0, 2: 52.0}}
    assert best_by_others(surface) == {0: 52.0, 1: 45.0, 2: 45.0}  # seeds 1 and 2 trust the lucky one
    assert best_by_others(surface, higher=False) == {0: 80.0, 1: 50.0, 2: 50.0}
    fixed = judge("always", "panel", surface[0.2, 0.2], surface)
    assert fixed.regret.mean == pytest.approx((0 - 7 - 7) / 3) and fixed.gain.mean == 2.0
    assert not fixed.below_uniform


def test_below_uniform_is_by_more_than_the_error() -> None:
    surface = {(0.0, 0.0): {0: 50.0, 1: 60.0}, (0.4, 0.0): {0: 49.0, 1: 59.0}}
    assert judge("worse", "panel", {0: 49.0, 1: 59.0}, surface).below_uniform  # -1 in both seeds
    assert not judge("noisy", "panel", {0: 44.0, 1: 64.0}, surface).below_uniform  # -6 and +4
    assert judge("less is better", "panel", {0: 51.0, 1: 61.0}, surface, higher=False).below_uniform


def test_ways_are_fixed_pairs_and_what_runs_chose_for_themselves(folder: Path, put: Put) -> None:
    for seed in (0, 1, 2):
        for size, shift in ((80, 0.0), (800, 10.0)):
            best = {80: (0, 0.4), 800: (0.4, 0)}[size]
            for q, s in ((0, 0), (0, 0.4), (0.4, 0)):
                put("er_sbs", seed, 50.0 + shift + seed + 4 * ((q, s) == best), sbs_q=q, sbs_s=s, buffer_size=size)
            put("er_sbs", seed, 53.0 + shift + seed, sbs_q="rule", sbs_s="rule", buffer_size=size)
    put("er_sbs", 0, 53.0, sbs_q="auto", sbs_s="auto", buffer_size=80)  # on one of the surfaces only: not ranked
    out = draw("regret", folder)
    lines = {(row["way"], row["panel"]): row for row in rows_of(out / "regret_task_il.csv")}
    assert float(lines["SBS rule", "CIFAR-10-5, ER, buffer 80"]["regret"]) == 1.0
    assert float(lines["(0, 0.4)", "CIFAR-10-5, ER, buffer 800"]["regret"]) == 4.0
    assert float(lines["(0, 0.4)", "CIFAR-10-5, ER, buffer 80"]["minus_uniform"]) == 4.0
    assert ("SBS", "CIFAR-10-5, ER, buffer 80") in lines
    table = (out / "regret_task_il.md").read_text().splitlines()
    assert table[4].startswith("| SBS rule | 1.00 | 1.00 ± 0.00 | +3.00 | 0 of 2 | +3.00 ± 0.00 |")
    assert len(table) == 4 + 4 and (out / "regret_class_il.svg").exists()


def test_share_is_judged_by_the_pair_that_it_gives(folder: Path, put: Put) -> None:
    """Of 5 tasks with 320 examples each, 159 are less than a tenth, 160 are not."""
    for seed in (0, 1):
        for size in (159, 160):
            for gain, (q, s) in enumerate(((0, 0), (0, 0.2), (0, 0.4))):
                put("er_sbs", seed, 50.0 + gain, sbs_q=q, sbs_s=s, buffer_size=size)
    gains = {row["panel"]: float(row["minus_uniform"]) for row in rows_of(draw("regret", folder) / "regret_task_il.csv")
             if row["way"] == "SBS share"}
    assert gains == {"CIFAR-10-5, ER, buffer 159": 2.0, "CIFAR-10-5, ER, buffer 160": 1.0}
    for seed in (0, 1):  # runs that were left to it count for themselves
        put("er_sbs", seed, 57.0, sbs_q="share", sbs_s="share", buffer_size=160)
    gains = {row["panel"]: float(row["minus_uniform"]) for row in rows_of(draw("regret", folder) / "regret_task_il.csv")
             if row["way"] == "SBS share"}
    assert gains["CIFAR-10-5, ER, buffer 160"] == 7.0


def test_one_seed_cannot_be_judged_by_others(folder: Path, put: Put) -> None:
    put("er_sbs", 0, 50.0, sbs_q=0, sbs_s=0)
    put("er_sbs", 0, 51.0, sbs_q=0, sbs_s=0.4)
    with pytest.raises(UserError, match=r"^regret: CIFAR-10-5, ER, buffer 80 has one seed"):
        draw("regret", folder)
