"""What is averaged and compared, and what is refused: never a silent average."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.results import Mean, load, paired
from tests.figures.conftest import SCRATCH, Put, draw, rows_of, three_arms


def test_the_standard_error_is_that_of_the_mean_and_unknown_for_one_seed() -> None:
    assert Mean.of([1.0, 2.0, 4.0]).error == pytest.approx(stdev([1, 2, 4]) / 3**0.5)
    assert Mean.of([3.0]).error is None
    assert Mean.of([3.0]).text() == "3.00"


def test_differences_are_paired_by_seed_whatever_order_they_are_in() -> None:
    change = paired({0: 11.0, 1: 25.0, 2: 28.0, 3: 5.0}, {2: 4.0, 0: 30.0, 1: 20.0, 3: 5.0})
    assert (change.mean, change.up, change.seeds) == (2.5, 2, 4)  # an equal seed did not go up
    assert change.error == pytest.approx(stdev([-19, 5, 24, 0]) / 2)  # not by place, nor by rank, nor of the two means


@pytest.mark.parametrize(("q", "s", "arm"), [
    (0.2, 0.2, "SBS-fix"), (0.2, 0.4, "SBS q=0.2 s=0.4"), (0.4, 0.2, "SBS q=0.4 s=0.2"), ("auto", "auto", "SBS"),
    ("auto", 0.2, "SBS q=auto s=0.2"), (0.2, "auto", "SBS q=0.2 s=auto"), ("rule", "rule", "SBS q=rule s=rule")])
def test_an_arm_is_named_by_both_q_and_s(folder: Path, put: Put, q: Any, s: Any, arm: str) -> None:
    put("er_sbs", 0, 70.0, sbs_q=q, sbs_s=s)
    put("er_sbs", 0, 71.0, sampler="herding", sbs_q=q, sbs_s=s)
    put("er", 0, 72.0)
    assert {run.arm for run in load([folder])} == {arm, "herding", "stock"}


def test_a_missing_seed_is_named_and_common_seeds_are_taken_when_asked_for(folder: Path, put: Put) -> None:
    three_arms(put)
    put("er", 2, 90.0)
    with pytest.raises(UserError, match=r"^CIFAR-10-5, ER: (uniform|SBS-fix) lacks seed 2, .*--common-seeds"):
        draw("bars", folder)
    assert not (folder.parent / "figures").exists()
    lines = rows_of(draw("bars", folder, "--common-seeds") / "bars_task_il.csv")
    assert [(row["seeds"], row["mean"]) for row in lines if row["arm"] == "stock"] == [("2", "65.0")]


def test_one_seed_has_no_standard_error_and_a_line_says_so(folder: Path, put: Put,
                                                           capsys: pytest.CaptureFixture) -> None:
    put("er", 3, 70.0)
    put("er_sbs", 3, 71.0)
    out = draw("bars", folder)
    assert "note: CIFAR-10-5, ER, SBS-fix: one seed, so there is no standard error" in capsys.readouterr().err
    assert [row["standard_error"] for row in rows_of(out / "bars_task_il.csv")] == ["", ""]
    assert "| ER | 70.00 | **71.00** | +1.00 (1 of 1 up) |" in (out / "bars_task_il.md").read_text()


@pytest.mark.parametrize(("flags", "line"), [
    ({"lr": 0.03}, "CIFAR-10-5, ER: runs with other hyper-parameters are mixed in: --lr is 0.1 in 6 runs, 0.03 in 1"),
    ({"n_epochs": 50}, "CIFAR-10-5: runs with other hyper-parameters are mixed in: --n_epochs is 8 in 6 runs, 50 in 1"),
    ({"buffer_size": 500}, "CIFAR-10-5: runs with .* --buffer_size is 80 in 6 runs, 500 in 1"),
])
def test_runs_with_other_hyper_parameters_are_refused(folder: Path, put: Put, flags: dict, line: str) -> None:
    three_arms(put)
    put("er", 0, 90.0, **flags)
    with pytest.raises(UserError, match=rf"^{line}.*--where"):
        draw("bars", folder)
    (flag, wanted), = ((name, SCRATCH[name]) for name in flags)
    lines = rows_of(draw("bars", folder, "--where", f"{flag}={wanted}") / "bars_task_il.csv")
    assert float(lines[0]["mean"]) == 65.0


def test_arms_of_one_method_with_other_hyper_parameters_are_refused(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    put("er_sbs", 0, 71.0, lr=0.03)
    with pytest.raises(UserError, match=r"^CIFAR-10-5, ER: .* --lr is 0.1 in 1 runs, 0.03 in 1 runs"):
        draw("bars", folder)


def test_methods_may_have_learning_rates_of_their_own(folder: Path, put: Put) -> None:
    three_arms(put)
    put("gem", 0, 60.0, lr=0.03)
    put("gem_sbs", 0, 61.0, lr=0.03)
    assert len(rows_of(draw("bars", folder) / "bars_task_il.csv")) == 5


def test_runs_of_other_code_are_refused_until_both_are_accepted(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    put("er_sbs", 0, 71.0, version="v2")
    with pytest.raises(UserError, match=r"holds results of other code: 1 of v\d, 1 of v\d") as refused:
        draw("bars", folder)
    assert sorted(re.findall("--accept-version (v.)", str(refused.value))) == ["v1", "v2"]  # all at once
    draw("bars", folder, "--accept-version", "v1", "--accept-version", "v2")


def test_several_folders_are_one_figure_and_a_run_counts_once(folder: Path, put: Put, tmp_path: Path) -> None:
    three_arms(put)
    other = tmp_path / "other"
    other.mkdir()
    for i, file in enumerate(sorted(folder.glob("*.json"))):
        target = other if i % 2 else folder
        (target / file.name).write_text(file.read_text())
    lines = rows_of(draw("bars", folder, str(other)) / "bars_task_il.csv")
    assert [row["seeds"] for row in lines] == ["2", "2", "2"]
    changed = next(other.iterdir())
    changed.write_text(re.sub(r"\b[67](\d\.0)", r"5\1", changed.read_text()))
    with pytest.raises(UserError, match=f"^{other}, run {changed.stem}: another folder has the same run with"):
        draw("bars", folder, str(other))


def test_where_names_what_there_is(folder: Path, put: Put) -> None:
    three_arms(put)
    with pytest.raises(UserError, match=r"--where lr=0.5: no run has that; there is 0.1$"):
        draw("bars", folder, "--where", "lr=0.5")
    with pytest.raises(UserError, match=r"--where learning=0.5: no run has the flag --learning$"):
        draw("bars", folder, "--where", "learning=0.5")
