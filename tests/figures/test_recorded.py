"""Statistics of what networks remember, on matrices whose answer is known; and the figures that show them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.correlation import area_under_curve, correlation, power
from mammoth_sbs.figures.gallery import extremes
from mammoth_sbs.figures.matrices import mean, prediction
from mammoth_sbs.figures.memory import collect, shown_sizes
from mammoth_sbs.figures.recorded import Memory, majority, sorted_lines
from mammoth_sbs.figures.results import load
from tests.figures.conftest import draw, rows_of
from tests.figures.records import put_recorded


def memory(speed: list, first: list, last: list) -> Memory:
    return Memory(np.array(speed, float), np.array(first, bool), np.array(last, bool))


# ---- correlations


def test_a_correlation_has_its_number_interval_and_p() -> None:
    found = correlation([1, 2, 3, 4, 5], [1, 3, 2, 5, 4])
    assert found.n == 5 and found.r == pytest.approx(0.8)
    assert found.p == pytest.approx(0.1041, abs=1e-4)  # t = r sqrt(3 / (1 - r^2)) = 2.309 with 3 degrees of freedom
    # Fisher: atanh(.8) -+ 1.95996 / sqrt(5 - 3)
    assert (found.low, found.high) == (pytest.approx(np.tanh(1.098612 - 1.385904), abs=1e-5),
                                       pytest.approx(np.tanh(1.098612 + 1.385904), abs=1e-5))
    assert found.text() == "r = 0.800 (-0.28 to 0.99), p = 0.1, n = 5"
    monotonous = correlation([1, 2, 3, 4, 100], [1, 2, 3, 4, 5], ranks=True)
    assert monotonous.r == pytest.approx(1) and correlation([1, 2, 3, 4, 100], [1, 2, 3, 4, 5]).r < 0.9


def test_pairs_without_a_number_do_not_count_and_nothing_is_made_up() -> None:
    assert correlation([1, 2, 3, 9], [1, 3, 2, np.nan]) == correlation([1, 2, 3], [1, 3, 2])
    assert correlation([1, 2, 3], [1, 3, 2]).low is None  # three points have no interval
    for x, y in (([1, 2], [1, 2]), ([1, 1, 1, 1], [1, 2, 3, 4])):
        assert correlation(x, y).r is None and correlation(x, y).text() == f"r unknown, n = {len(x)}"


def test_small_p_values_are_legible() -> None:
    assert [power(p) for p in (0.04, 0.2, 3.2e-10, 0.0, None)] == ["= 0.04", "= 0.2", "= 3e-10", "< 1e-99", "unknown"]


def test_area_under_curve() -> None:
    assert area_under_curve(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1], bool)) == 1
    assert area_under_curve(np.array([1, 2, 3, 4]), np.array([1, 0, 1, 0], bool)) == 0.25  # 1 of 4 pairs
    assert area_under_curve(np.array([1, 1, 1]), np.array([0, 1, 0], bool)) == 0.5  # ties count half
    assert area_under_curve(np.array([1, 2]), np.array([1, 1], bool)) is None


# ---- remembering


SPEED = [[1, 0.5, 0.5, 0], [1, 1, 0, 0]]
FIRST = [[1, 1, 1, 0], [1, 1, 1, 0]]
LAST = [[1, 1, 0, 1], [1, 0, 0, 0]]


def test_remembered_is_right_at_the_end_of_both() -> None:
    it = memory(SPEED, FIRST, LAST)
    assert it.remembered.tolist() == [[True, True, False, False], [True, False, False, False]]
    assert it.share.tolist() == [1, 0.5, 0, 0]
    assert it.kept[:3].tolist() == [1, 0.5, 0] and np.isnan(it.kept[3])  # nobody knew it, so nobody forgot it
    assert it.groups() == [(0, 0.125, 2), (0.5, 0.75, 1), (1, 1, 1)]


def test_correlations_over_groups_over_examples_and_among_the_known() -> None:
    found = memory(SPEED, FIRST, LAST).correlations()
    assert [found[over].n for over in ("groups", "examples", "known examples")] == [3, 4, 3]
    assert found["groups"].r == pytest.approx(np.corrcoef([0.125, 0.75, 1], [0, 0.5, 1])[0, 1], abs=1e-6)
    assert found["examples"].r == pytest.approx(np.corrcoef([1, 0.75, 0.25, 0], [1, 0.5, 0, 0])[0, 1], abs=1e-6)
    assert found["known examples"].r == pytest.approx(np.corrcoef([1, 0.75, 0.25], [1, 0.5, 0])[0, 1], abs=1e-6)


def test_grouping_flatters_and_both_are_said() -> None:
    """Group means lie on a line though single examples hardly do."""
    rng = np.random.default_rng(0)
    speed = np.tile(rng.random(600), (10, 1))
    last = rng.random((10, 600)) < 0.3 + 0.4 * speed
    found = memory(speed.tolist(), np.ones((10, 600)).tolist(), last.tolist()).correlations()
    assert found["groups"].r > found["examples"].r + 0.3


def test_the_vote_of_the_networks() -> None:
    votes = majority(np.array([[[1, 1, 0]], [[1, 0, 0]], [[0, 1, 0]], [[1, 0, 0]]], bool))
    assert votes.tolist() == [[True, False, False]]  # half is no majority


def test_lines_are_examples_from_quick_to_slow() -> None:
    matrix = np.array([[0, 1, 1, 0], [0, 1, 1, 1]], bool)  # epochs x examples
    lines, places = sorted_lines(matrix, np.array([0.0, 0.5, 1.0, 0.5]))
    assert lines.tolist() == [[1, 1], [1, 1], [0, 1], [0, 0]] and places.tolist() == [0, 1, 2, 3, 4]
    lines, places = sorted_lines(matrix, np.array([0.0, 0.5, 1.0, 0.5]), lines=2)
    assert lines.tolist() == [[1, 1], [0, 0.5]] and places.tolist() == [0, 2, 4]


def test_a_score_predicts_what_is_forgotten_of_what_was_known() -> None:
    it = memory([[0] * 5] * 2, [[1, 1, 1, 1, 0]] * 2, [[1, 1, 0, 0, 1], [1, 1, 1, 0, 0]])
    good = np.array([[4, 3, 2, 1, 9.0]] * 2)
    found = prediction(good, it)
    assert found.over_examples.n == 4 and found.over_examples.r < -0.9
    assert found.areas == [1, 1] and found.in_networks[0] == pytest.approx(-0.894, abs=1e-3)
    assert found.row()["auc_mean"] == 1 and found.row()["networks"] == 2
    worse = prediction(np.array([[1, 3, 2, 4, 9.0]] * 2), it)
    assert worse.over_examples.r > found.over_examples.r and worse.areas == [0.25, 0]
    assert "auc_less_speed_mean" not in found.row() and worse.row(found)["auc_less_speed_mean"] == (-0.75 - 1) / 2
    assert found.row(worse)["auc_less_speed_mean"] == (0.75 + 1) / 2  # network by network


def test_a_mean_over_networks_has_the_interval_of_student() -> None:
    middle, low, high = mean([1.0, 2.0])
    assert middle == 1.5 and mean([]) == (None, None, None) and mean([2.0]) == (2.0, None, None)
    assert (low, high) == (pytest.approx(1.5 - 12.706 * 0.5, abs=1e-3), pytest.approx(1.5 + 12.706 * 0.5, abs=1e-3))


def test_the_gallery_shows_what_all_networks_knew() -> None:
    it = memory([[1.0, 0.9, 0.8, 0.5, 0.4, 0.3, 0.0]], [[1, 0, 1, 1, 1, 1, 0]], [[1] * 7])
    quick, slow, least = extremes(it, 2)
    assert (quick.tolist(), slow.tolist(), least) == ([0, 2], [5, 4], 1.0)
    quick, slow, least = extremes(it, 3)  # not enough are known by all
    assert least == 0 and slow.tolist() == [6, 5, 4]


def test_small_medium_large() -> None:
    assert shown_sizes([0, 10, 20, 30, 40, 50]) == [10, 30, 50]


# ---- the figures, from files


def three_networks(folder: Path, model: str = "sgd", flags: dict | None = None, **scores: list) -> None:
    """Four examples, two tasks of two epochs: the first is always right, the last never."""
    late = ([1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0])
    for seed, last in enumerate(late):
        put_recorded(folder, seed, [[1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], last], model, flags=flags,
                     class_il=[[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], **scores)


def test_forgetting(folder: Path) -> None:
    three_networks(folder)
    out = draw("forgetting", folder)
    for setting in ("task_il", "class_il"):
        assert (out / f"forgetting_{setting}.png").stat().st_size > 10_000
        assert "<svg" in (out / f"forgetting_{setting}.svg").read_text()
    groups = [(float(row["share_that_remember"]), float(row["mean_speed"]), int(row["examples"]))
              for row in rows_of(out / "forgetting_task_il_groups.csv")]
    assert groups == [(0, 0, 1), (pytest.approx(1 / 3), 0.5, 1), (pytest.approx(2 / 3), 0.5, 1), (1, 1, 1)]
    first, *_ = rows_of(out / "forgetting_task_il.csv")
    assert first["over"] == "groups" and first["n"] == "4" and first["networks"] == "3"
    assert float(first["r"]) == pytest.approx(np.corrcoef([0, 0.5, 0.5, 1], [0, 1 / 3, 2 / 3, 1])[0, 1], abs=1e-6)
    assert float(first["accuracy_after_own"]) == 75 and float(first["accuracy_at_end"]) == 50
    accuracy = [float(row["accuracy"]) for row in rows_of(out / "forgetting_task_il_accuracy.csv")]
    assert accuracy == [25, 75, 25, 50]
    lines = [row["right_percent"] for row in rows_of(out / "forgetting_task_il_matrices.csv") if row["data"] == "test"]
    assert lines == ["100 100 100 100", "0 100 0 100", "0 100 0 0", "0 0 0 0"]  # by the vote of three
    # in Class-IL nothing is remembered, and no correlation is made of that
    assert {row["r"] for row in rows_of(out / "forgetting_class_il.csv")} == {""}


def test_matrices_by_four_scores(folder: Path) -> None:
    three_networks(folder, loss=[-0.1, -3, -0.2, -1], uncertainty=[1, 1, 1, 0], c_score=[1, 0.5, 0.6, 0])
    out = draw("matrices", folder)
    rows = {(row["data"], row["score"]): row for row in rows_of(out / "matrices_task_il.csv")}
    assert list(rows) == [("test", "learning speed"), ("train", "learning speed"), ("train", "uncertainty"),
                          ("train", "final loss"), ("train", "c-score")]
    # forgotten by 0, 1/3 and 2/3 of the three networks: two have the same speed
    assert float(rows["train", "learning speed"]["r"]) == pytest.approx(-0.866, abs=1e-3)
    assert float(rows["train", "final loss"]["r"]) == pytest.approx(-0.5)
    by_loss = [row["right_percent"] for row in rows_of(out / "matrices_task_il_lines.csv")
               if row["score"] == "final loss"]
    assert by_loss == ["100 100 100 100", "0 100 0 0", "0 0 0 0", "0 100 0 100"]
    less = {score: row["auc_less_speed_mean"] for (_, score), row in rows.items()}
    assert less["learning speed"] == "" and float(less["final loss"]) == pytest.approx(
        float(rows["train", "final loss"]["auc_mean"]) - float(rows["train", "learning speed"]["auc_mean"]))
    assert float(less["final loss"]) < 0
    shown = (out / "matrices_task_il.md").read_text()
    assert "| train | final loss | -0.50 |" in shown and f" | {float(less['final loss']):+.2f}" in shown


def test_what_speed_says_after_each_task_that_follows(folder: Path) -> None:
    """All is known when the first task ends; the second takes the slowest, the third leaves nothing but the slowest."""
    for seed in (0, 1):
        put_recorded(folder, seed, [[1, 0, 0], [1, 1, 0], [1, 1, 1], *[[1, 1, 0]] * 3, *[[0, 0, 1]] * 3], tasks=3,
                     epochs=3, labels=[0, 0, 1])
    second, third = rows_of(draw("matrices", folder) / "matrices_task_il_tasks.csv")
    assert [row["after_task"] for row in (second, third)] == ["2", "3"]
    numbers = [[float(row[name]) for name in ("accuracy_after_own", "accuracy", "chance", "auc_mean")]
               for row in (second, third)]
    assert numbers == [[100, pytest.approx(200 / 3), 50, 1], [100, pytest.approx(100 / 3), 50, 0]]
    leave = [[float(row[f"speed_of_{name}_mean"]) if row[f"speed_of_{name}_mean"] else None
              for name in ("newly_forgotten", "kept")] for row in (second, third)]
    # 1/3 leaves first, then 1 and 2/3; who came back, the slowest, had been forgotten before
    assert leave == [[pytest.approx(1 / 3), pytest.approx(5 / 6)], [pytest.approx(5 / 6), None]]


def test_a_score_predicts_by_its_ranks_within_networks_and_over_examples() -> None:
    """An outlier of a score, such as a loss, weighs no more than its place."""
    known, last = np.ones((2, 3), dtype=bool), np.array([[False, True, True]] * 2)
    score = np.array([[1.0, 2.0, 100.0]] * 2)
    found = prediction(score, Memory(score, known, last))
    assert [*found.in_networks, found.over_examples.r] == pytest.approx([-0.75**0.5] * 3)


def test_memory(folder: Path) -> None:
    three_networks(folder)
    for size, last in ((10, [1, 1, 0, 0]), (20, [1, 1, 1, 0])):
        for seed in range(3):
            put_recorded(folder, seed, [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], last], "er-sbs",
                         flags={"buffer_size": size, "sampler": "uniform", "sbs_q": 0.2, "sbs_s": 0.2})
    out = draw("memory", folder)
    sizes = {int(row["buffer"]): float(row["speed_of_remembered"]) for row in rows_of(out / "memory_task_il_sizes.csv")}
    assert sizes == {0: pytest.approx((0.75 + 1 + 2 / 3) / 3), 10: 1, 20: pytest.approx(2.5 / 3)}
    found = {row["over"]: row for row in rows_of(out / "memory_task_il.csv")}
    assert found["sizes"]["n"] == "3" and found["networks"]["n"] == found["within seeds"]["n"] == "9"
    expected = np.corrcoef([0, 10, 20], list(sizes.values()))[0, 1]
    assert float(found["sizes"]["r"]) == pytest.approx(expected, abs=1e-5)
    assert {row["buffer"] for row in rows_of(out / "memory_task_il_matrices.csv")} == {"10", "20"}


def test_buffers_of_an_unfinished_sweep_are_compared_over_the_seeds_that_all_have(folder: Path) -> None:
    three_networks(folder)
    for size, seeds in ((10, (0, 2)), (20, (0, 1, 2))):
        for seed in seeds:
            put_recorded(folder, seed, [[1, 1, 0, 0]] * 4, "er-sbs",
                         flags={"buffer_size": size, "sampler": "uniform", "sbs_q": 0.2, "sbs_s": 0.2})
    with pytest.raises(UserError, match=r"CIFAR-10-2: buffer 10 lacks seed 1, which others have; .*--common-seeds"):
        draw("memory", folder)
    found = collect(load([folder]), common=True)["CIFAR-10-2"]
    assert {size: [run.seed for run in it.runs] for size, it in found.items()} == {0: [0, 2], 10: [0, 2], 20: [0, 2]}


def test_gallery_of_real_pictures(folder: Path) -> None:
    for seed in range(2):
        put_recorded(folder, seed, [[1, 0] * 25, [1, 1] * 25, [1, 0] * 25, [1, 0] * 25],
                     flags={"dataset": "seq-digits"})
    out = draw("gallery", folder)
    rows = rows_of(out / "gallery_task_il.csv")
    assert [row["side"] for row in rows] == ["quickest"] * 20 + ["slowest"] * 20
    assert {row["networks_that_remember"] for row in rows[:20]} == {"2"}
    assert {row["networks_that_remember"] for row in rows[20:]} == {"0"}
    assert len({row["place_in_test_set"] for row in rows}) == 40


def test_what_cannot_be_drawn_is_one_line(folder: Path) -> None:
    three_networks(folder)
    with pytest.raises(UserError, match="at least three --buffer_size"):
        draw("memory", folder)
    three_networks(folder, flags={"lr": 0.2})
    with pytest.raises(UserError, match="there are 2: .*lr 0\\.[12]; .*lr 0\\.[12]; pick one with --where"):
        draw("gallery", folder)
    next((folder / "records").iterdir()).unlink()
    with pytest.raises(UserError, match="is missing; the same sweep makes it again"):
        draw("forgetting", folder)


def test_networks_of_other_examples_are_not_averaged(folder: Path) -> None:
    put_recorded(folder, 0, [[1, 0]] * 4)
    put_recorded(folder, 1, [[1, 0, 1]] * 4)
    with pytest.raises(UserError, match="the records of seeds 0 and 1 are of other examples"):
        draw("forgetting", folder)


def test_runs_without_records_are_named(folder: Path, put) -> None:  # noqa: ANN001
    put("sgd", 0, 50.0)
    with pytest.raises(UserError, match="has no record"):
        draw("matrices", folder)


# ---- mammoth-sbs forgotten


def test_forgotten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_recorded(folder, 0, [[1, 1, 0, 0, 0, 0, 0, 0], [1] * 8, [1] * 8, [1, 1, 1, 1, 0, 0, 0, 1]],
                 speed=[1, 0.9, 0.8, 0.7, 0.6, 0.3, 0.1, 0.0], known=[1, 1, 1, 1, 1, 1, 1, 0],
                 labels=[0, 0, 0, 0, 1, 1, 1, 1], buffer=[[1, 0, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
    (file,) = (folder / "records").iterdir()
    main(["forgotten", str(file), "--show", "2", "--csv", str(folder / "x.csv")])
    text = capsys.readouterr().out
    assert "task 1: 8 examples, 7 (88%) known when it ended, 3 (43%) of them forgotten by the end of task 2" in text
    assert "at risk by learning speed (slowest quarter, 1): 1 (100%) forgotten, of the others 33%" in text
    assert "AUC of learning speed 1.00" in text
    assert "in the buffer: 2 (25%) of the examples, 1 (100%) of those at risk; forgotten of the stored 50%" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "3", "3", "(100%)", "0.25", "1", "1"] in lines and ["0", "4", "0", "(0%)", "0.85", "0", "1"] in lines
    listed = text.split("forgotten: place")[1].splitlines()[1:3]
    assert [line.split()[0] for line in listed] == ["106", "105"]  # the slowest learned first
    rows = rows_of(folder / "x.csv")
    assert [row["forgotten"] for row in rows] == list("00001110") and [row["known"] for row in rows] == list("11111110")
    with pytest.raises(UserError, match="No such file"):
        main(["forgotten", str(folder / "nothing.npz")])
