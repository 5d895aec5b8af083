"""Curves along a stream, of runs whose accuracies are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.curves import positions
from mammoth_sbs.metrics import anytime
from tests.figures.conftest import Put, draw, rows_of

RESERVOIR, SPEED = "stream-reservoir", "stream-speed q=0 s=0.4"
STEPS = [(1, 10), (1, 20), (2, 10)]


def put_stream(put: Put, folder: Path, seed: int, sampler: str, values: list[list[float]],
               steps: list[tuple[int, int]] = STEPS) -> None:
    """The file of a run that was evaluated on the way: Task-IL as given, Class-IL ten points less."""
    before = set(folder.glob("*.json"))
    put("er_sbs", seed, 50.0, tasks=2, sampler=sampler, sbs_q=0, sbs_s=0.4)
    (file,) = set(folder.glob("*.json")) - before
    record = json.loads(file.read_text())
    record["eval_steps"] = [{"task": task, "step": step, "task_il": row, "class_il": [value - 10 for value in row]}
                            for (task, step), row in zip(steps, values, strict=True)]
    file.write_text(json.dumps(record))


def two_seeds(put: Put, folder: Path) -> None:
    for seed in (0, 1):
        put_stream(put, folder, seed, RESERVOIR, [[20.0 + seed], [30.0], [40.0, 20.0]])
        put_stream(put, folder, seed, SPEED.split()[0], [[21.0 + 3 * seed], [30.0], [50.0, 18.0 + 2 * seed]])


def test_a_curve_is_the_mean_over_the_tasks_so_far_and_over_seeds(folder: Path, put: Put) -> None:
    two_seeds(put, folder)
    lines = rows_of(draw("curves", folder) / "curves_task_il.csv")
    found = {(row["arm"], int(row["task"]), int(row["step"])): row for row in lines}
    assert list(found) == [(arm, *step) for arm in (RESERVOIR, SPEED) for step in STEPS]
    assert [float(found[(RESERVOIR, *step)]["mean"]) for step in STEPS] == [20.5, 30.0, 30.0]
    assert [float(found[(SPEED, *step)]["mean"]) for step in STEPS] == [22.5, 30.0, 34.5]
    assert float(found[SPEED, 2, 10]["standard_error"]) == pytest.approx(0.5)
    assert {row["seeds"] for row in lines} == {"2"}
    class_il = rows_of(folder.parent / "figures" / "curves_class_il.csv")
    assert [float(row["mean"]) for row in class_il] == [float(row["mean"]) - 10 for row in lines]


def test_differences_are_paired_with_the_reservoir(folder: Path, put: Put) -> None:
    """At the first evaluation +1 and +3; at the last +4 and +5."""
    two_seeds(put, folder)
    out = draw("curves", folder)
    found = {(row["arm"], row["task"], row["step"]): row for row in rows_of(out / "curves_task_il.csv")}
    assert float(found[SPEED, "1", "10"][f"minus_{RESERVOIR}"]) == 2.0
    assert float(found[SPEED, "1", "10"][f"minus_{RESERVOIR}_standard_error"]) == pytest.approx(1.0)
    assert float(found[SPEED, "2", "10"][f"minus_{RESERVOIR}"]) == 4.5
    said = (out / "curves_task_il.svg").read_text()
    assert f"{SPEED} minus {RESERVOIR} on CIFAR-10-2 with ER: +2.17 on average" in said


def test_the_mean_of_a_curve_is_anytime_accuracy(folder: Path, put: Put) -> None:
    two_seeds(put, folder)
    means = [float(row["mean"]) for row in rows_of(draw("curves", folder) / "curves_task_il.csv")
             if row["arm"] == RESERVOIR]
    assert sum(means) / 3 == pytest.approx((anytime([[20.0], [30.0], [40.0, 20.0]])
                                            + anytime([[21.0], [30.0], [40.0, 20.0]])) / 2)


def test_each_task_is_one_wide_and_its_last_evaluation_at_its_end() -> None:
    assert positions([(1, 250), (1, 500), (2, 250), (3, 250), (3, 500), (3, 750), (3, 1000)]) == [
        0.5, 1.0, 2.0, 2.25, 2.5, 2.75, 3.0]


def test_evaluations_that_not_all_runs_have_are_left_out(folder: Path, put: Put) -> None:
    """In a long-tailed stream tasks have other lengths with another seed."""
    put_stream(put, folder, 0, RESERVOIR, [[20.0], [30.0], [40.0, 20.0]])
    put_stream(put, folder, 0, "stream-speed", [[20.0], [40.0, 20.0]], [(1, 10), (2, 10)])
    lines = rows_of(draw("curves", folder) / "curves_task_il.csv")
    found = [(row["task"], row["step"], row["position"]) for row in lines]
    assert found == 2 * [("1", "10", "1.0"), ("2", "10", "2.0")]


def test_runs_that_were_not_evaluated_on_the_way_are_named(folder: Path, put: Put) -> None:
    put("er_sbs", 0, 50.0, sampler=RESERVOIR)
    put("er_sbs", 0, 50.0, sampler="uniform")
    with pytest.raises(UserError, match=r"curves: run \w+ \(CIFAR-10-5, ER, .*\) was not evaluated on the way; "
                                        "make the runs with --eval_steps"):
        draw("curves", folder)


def test_one_arm_has_nothing_to_be_compared_with(folder: Path, put: Put) -> None:
    put_stream(put, folder, 0, RESERVOIR, [[20.0], [30.0], [40.0, 20.0]])
    with pytest.raises(UserError, match="curves: no method has two arms"):
        draw("curves", folder)
