"""The grid, the choice and the rule, and the flags that ask for them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.flags import GRID
from mammoth_sbs.tuning import rotation
from mammoth_sbs.tuning.pairs import Point, best, grid, rule
from tests.conftest import Start
from tests.tuning.conftest import AUTO, SMALL, everything, same

from utils.training import train


def test_the_default_grid_has_13_pairs() -> None:
    pairs = grid("auto", "auto", GRID)
    assert len(pairs) == 13
    assert all(q + s < 1 for q, s in pairs)
    assert grid("auto", 0.5, GRID) == [(0.0, 0.5), (0.2, 0.5), (0.4, 0.5)]
    assert grid(0.3, "auto", [0.4, 0, 0.4]) == [(0.3, 0), (0.3, 0.4)]


def test_of_equal_scores_the_pair_nearest_to_the_papers_is_taken() -> None:
    points = [Point(q, s, old, 30, 0, 0, 0) for q, s, old in ((0, 0, 60), (0.2, 0.4, 60), (0.4, 0.4, 60), (0, 0.2, 50))]
    assert best(points)[:2] == (0.2, 0.4)
    assert best([*points, Point(0.6, 0, 60.2, 30, 0, 0, 0)])[:2] == (0.6, 0)
    of_70 = [Point(0.6, 0.2, 100, 100 * 54 / 70, 0, 0, 0), Point(0.2, 0, 100 * 69 / 70, 100 * 55 / 70, 0, 0, 0)]
    assert best(of_70)[:2] == (0.2, 0)  # equal but for rounding


def test_the_rule_leaves_out_what_is_forgotten() -> None:
    assert rule(0.0) == (0.4, 0.0)
    assert rule(0.15) == (0.25, 0.15)
    assert rule(0.2) == (0.2, 0.2)
    assert rule(0.9) == (0.0, 0.4)


@pytest.mark.parametrize(("typed", "tried"), [
    ("--sbs-q rule --sbs-s rule", [(0, 0)]), ("--sbs-q rule --sbs-s .3", [(0, 0)]),
    ("--sbs-q auto --sbs-s .3", [(0, 0.3), (0.4, 0.3)]), ("--sbs-q auto --sbs-s rule", None)])
def test_one_side_may_be_given(start: Start, monkeypatch: pytest.MonkeyPatch, typed: str, tried: Any) -> None:
    trial = rotation.Rotation.__call__
    monkeypatch.setattr(rotation.Rotation, "__call__",
                        lambda self, q, s: trial(self, q, s)._replace(forgotten=25.0, old=100 * q, rotation=0.0))
    it = start("er_sbs", f"{SMALL} --stop_after 1 --disable_log 1 --sbs-grid 0 .4 {typed}")
    train(it.model, it.dataset, it.args)
    choice = it.model.choice
    expected = {"rule": (0.15, 0.25), "auto": (0.4, 0.4)}
    for side, flag in ((0, "q"), (1, "s")):
        given = getattr(it.args, f"sbs_{flag}")
        assert choice[flag] == (expected[given][side] if given in expected else given)
    assert (it.model.sampler.band.q, it.model.sampler.band.s) == (choice["q"], choice["s"])
    tried = tried or [(0, 0.25), (0.4, 0.25)]
    assert [(p["q"], p["s"]) for p in choice["points"]] == tried


@pytest.mark.parametrize(("typed", "buffer", "pair"), [
    ("--sbs-q share --sbs-s share", 19, (0, 0.4)), ("--sbs-q share --sbs-s share", 20, (0, 0.2)),  # of 200 in 5 tasks
    ("--sbs-q .1 --sbs-s share", 19, (0.1, 0.4)), ("--sbs-q share --sbs-s .9", 200, (0, 0.9))])
def test_the_share_of_the_data_that_the_buffer_holds_decides_without_a_trial(
        run: Callable, monkeypatch: pytest.MonkeyPatch, typed: str, buffer: int, pair: tuple[float, float]) -> None:
    monkeypatch.setattr(rotation, "Rotation", None)
    flags = "--max_classes 10 --train_per_class 20 --n_epochs 2"
    result = run("er_sbs", f"{flags} --buffer_size {buffer} {typed}")
    choice, *later = (entry["choice"] for entry in result["sbs"]["tasks"])
    assert (choice["q"], choice["s"]) == pair and choice["share"] == buffer / 200 and later == [None] * 4
    given = run("er_sbs", f"{flags} --buffer_size {buffer} --sbs-q {pair[0]} --sbs-s {pair[1]}")
    assert given["results"] == result["results"]
    assert [task["left_out_slow"] for task in result["sbs"]["tasks"]] == [round(40 * pair[1])] * 5


@pytest.mark.parametrize(("when", "tasks"), [("first", [1]), ("each", [1, 2, 3, 4])])
def test_each_chooses_at_every_task_that_has_a_next(run: Callable, when: str, tasks: list[int]) -> None:
    result = run("er_sbs", f"--train_per_class 20 --buffer_size 40 --n_epochs 1 {AUTO} --sbs-tune {when}")
    entries = result["sbs"]["tasks"]
    assert [entry["task"] for entry in entries if entry["choice"]] == tasks
    assert entries[0]["choice"]["held_out"] == 4
    assert (result["sbs"]["q"], result["sbs"]["s"]) == ("auto", "auto")  # what was typed


def test_a_resumed_run_keeps_the_pair(start: Start, tmp_path: Path) -> None:
    flags = f"{SMALL} {AUTO} --disable_log 1"
    whole = start("er_sbs", f"{flags} --stop_after 2")
    train(whole.model, whole.dataset, whole.args)
    first = start("er_sbs", f"{flags} --stop_after 1 --savecheck task --ckpt_name part")
    train(first.model, first.dataset, first.args)
    rest = start("er_sbs", f"{flags} --stop_after 2 --loadcheck {tmp_path / 'part_0.pt'}")
    train(rest.model, rest.dataset, rest.args)
    assert rest.model.choice == {**whole.model.choice, "points": rest.model.choice["points"]}
    assert same(everything(whole.model), everything(rest.model))


def test_one_epoch_and_a_buffer_larger_than_the_band_work(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("er_sbs", f"--train_per_class 40 --buffer_size 100 --n_epochs 1 --stop_after 1 --disable_log 1 {AUTO}")
    train(it.model, it.dataset, it.args)
    assert "with --n_epochs 1 learning speed is 0 or 1" in capsys.readouterr().out
    assert [p["stored"] for p in it.model.choice["points"]] == [44, 30, 30, 16]  # what each band has of the 72


def test_epochs_default_to_a_tenth() -> None:
    from mammoth_sbs.tuning.pairs import tune_epochs

    for n, expected in ((1, 1), (9, 1), (15, 1), (50, 5)):
        assert tune_epochs(Namespace(sbs_tune_epochs=None, n_epochs=n)) == expected
    assert tune_epochs(Namespace(sbs_tune_epochs=7, n_epochs=50)) == 7


@pytest.mark.parametrize(("flags", "line"), [
    ("--sbs-q auto --sbs-s auto --sbs-grid .3", "leaves one pair.* give more values, or --sbs-q 0.3 --sbs-s 0.3"),
    ("--sbs-q auto --sbs-s auto --sbs-grid .5 .6", r"--sbs-grid 0.5 0.6: q \+ s is above 0.95 in every"),
    ("--sbs-q auto --sbs-s .8", "leaves one pair"),
    ("--sbs-q auto --sbs-s auto --sbs-grid 0 20", r"--sbs-grid: a number from 0 to 0.95 is needed, not 20; did you"),
    ("--sbs-q atuo", "--sbs-q: a number from 0 to 0.95, auto, rule or share is needed, not atuo"),
    ("--sbs-s auto --sampler uniform", "--sbs-s auto: --sampler uniform has no q and s to choose"),
    ("--sbs-q rule --sbs-s .6", "--sbs-s 0.6: rule may give 0.4 on the other side"),
    ("--sbs-q .6 --sbs-s share", "--sbs-q 0.6: share may give 0.4 on the other side.*give at most 0.55"),
    ("--sbs-q auto --sbs-s share --sbs-grid .6 .8", r"--sbs-grid 0.6 0.8: q \+ s is above 0.95 in every"),
    ("--sbs-s share --sampler uniform", "--sbs-s share: --sampler uniform has no q and s to choose"),
    ("--sbs-q auto --sbs-tune-epochs 0", "at least 1 is needed, not 0"),
    ("--sbs-q auto --sbs-tune never", "invalid choice"),
])
def test_bad_flags_are_one_line_before_anything_is_trained(start: Start, flags: str, line: str) -> None:
    with pytest.raises(UserError, match=rf"^.*{line}") as error:
        start("er_sbs", flags)
    assert "\n" not in str(error.value)
