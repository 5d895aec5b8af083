"""What is averaged and compared, and what is refused: never a silent average."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.results import Measure, Run, in_order, load, references
from tests.figures.conftest import SCRATCH, Put, draw, rows_of, three_arms

MATRIX = [[90.0], [70.0, 80.0], [60.0, 85.0, 50.0]]


def run(model: str = "er-sbs", **flags: Any) -> Run:
    args = {"model": model, "dataset": "seq-cifar10", "seed": 0, **flags}
    if model.endswith("-sbs"):  # as the host resolves a command line without further flags
        args = {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, "sbs_during": "closed", "sbs_scope": "task",
                "sbs_score": "speed", "sbs_tune": "first", "sbs_tune_epochs": None, "sbs_grid": [0.0, 0.2, 0.4, 0.6],
                **args}
    results = {name: {"matrix": MATRIX} for name in ("task_il", "class_il")}
    return Run("0", {"args": args, "threads": 1, "seed": 0, "results": results})


@pytest.mark.parametrize(("arm", "flags"), [
    ("SBS-fix", {}),
    ("SBS q=0.2 s=0", {"sbs_s": 0}),  # SBS-fix only if both are .2
    ("SBS q=0 s=0.2", {"sbs_q": 0.0}),
    ("SBS q=0 s=0", {"sbs_q": 0.0, "sbs_s": 0}),
    ("SBS", {"sbs_q": "auto", "sbs_s": "auto"}),
    ("SBS rule", {"sbs_q": "rule", "sbs_s": "rule"}),
    ("SBS q=auto s=0.2", {"sbs_q": "auto"}),
    ("SBS-fix, during stock", {"sbs_during": "stock"}),
    ("SBS-fix", {"sbs_tune": "each"}),  # nothing is chosen
    ("SBS q=0.2 s=auto, tune each", {"sbs_s": "auto", "sbs_tune": "each"}),
    ("SBS q=auto s=0.2, tune each", {"sbs_q": "auto", "sbs_tune": "each"}),
    ("SBS-fix, score loss", {"sbs_score": "loss"}),
    ("SBS-fix", {"sbs_grid": [0.0, 0.5], "sbs_tune": "each"}),  # nothing is chosen
    ("SBS, tune each, grid 0.0 0.5", {"sbs_q": "auto", "sbs_s": "auto", "sbs_grid": [0.0, 0.5], "sbs_tune": "each"}),
    ("SBS-fix, brand new 3", {"sbs_brand_new": 3}),
    ("SBS-fix", {"sbs_brand_new": 0}),
    ("uniform", {"sampler": "uniform", "sbs_q": 0.3, "sbs_score": "loss"}),  # q, s and the score are nothing to it
    ("herding, during stock", {"sampler": "herding", "sbs_during": "stock"}),
])
def test_an_arm_is_named_by_what_fills_its_buffer(arm: str, flags: dict[str, Any]) -> None:
    assert run(**flags).arm == arm


def test_a_method_without_sbs_is_stock() -> None:
    assert run("er").arm == run("sgd").arm == "stock"


def test_compiled_runs_are_an_arm_of_their_own_only_beside_others_that_are_not(folder: Path, put: Put) -> None:
    for seed in (0, 1):
        put("er", seed, 70.0, compile=True)
        put("er_sbs", seed, 71.0, compile=True)
    assert [row["arm"] for row in rows_of(draw("bars", folder) / "bars_task_il.csv")] == ["stock", "SBS-fix"]
    for seed in (0, 1):
        put("er_sbs", seed, 72.0)
    assert [row["arm"] for row in rows_of(draw("bars", folder) / "bars_task_il.csv")] == \
        ["stock, compile", "SBS-fix", "SBS-fix, compile"]


def test_arms_come_in_the_order_in_which_a_reader_wants_them() -> None:
    names = ["SBS, during stock", "SBS", "SBS q=0.4 s=0", "uniform", "herding", "SBS-fix", "SBS q=0 s=0", "stock"]
    assert list(in_order({name: {} for name in names})) == [
        "stock", "uniform", "herding", "SBS q=0 s=0", "SBS-fix", "SBS q=0.4 s=0", "SBS", "SBS, during stock"]


@pytest.mark.parametrize(("names", "wanted"), [
    (["stock", "uniform", "SBS"], ["uniform", "stock"]), (["stock", "SBS"], ["stock"]),
    (["SBS q=0 s=0", "SBS-fix"], ["SBS q=0 s=0"]), (["stock", "SBS q=0 s=0"], ["SBS q=0 s=0", "stock"]),
    (["herding", "SBS"], ["herding"])])
def test_arms_are_compared_with_the_uniform_and_the_stock_buffer_or_what_is_nearest(
        names: list[str], wanted: list[str]) -> None:
    assert references(names) == wanted


def test_metrics_come_from_the_matrix_which_every_result_has() -> None:
    one = run()
    assert Measure("task_il").of(one) == pytest.approx(65)
    assert Measure("task_il", "average_incremental").of(one) == pytest.approx((90 + 75 + 65) / 3)
    assert Measure("task_il", "forgetting").of(one) == pytest.approx((30 + 0) / 2)
    assert Measure("task_il", "backward_transfer").of(one) == pytest.approx((-30 + 5) / 2)
    with pytest.raises(UserError, match=r"^--metric forward_transfer: run 0 \(CIFAR-10-3, ER, SBS-fix\) was not asked "
                                        r"for it; make the runs with --enable_other_metrics 1"):
        Measure("task_il", "forward_transfer").of(one)
    one.record["results"]["task_il"]["forward_transfer"] = 2.5
    assert Measure("task_il", "forward_transfer").of(one) == 2.5


def test_a_measure_knows_its_name_and_what_is_better() -> None:
    assert Measure("class_il").title == "final Class-IL accuracy"
    assert Measure("task_il", "average_incremental").title == "average incremental Task-IL accuracy"
    assert Measure("task_il", "forgetting").title == "Task-IL forgetting"
    values = {"a": 1.0, "b": 3.0, "c": 3.0}
    assert Measure("task_il").best(values) == ["b", "c"] and Measure("task_il", "forgetting").best(values) == ["a"]


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
    text = (out / "bars_task_il.md").read_text()
    assert "| ER | 70.00 | **71.00** |" in text and "| ER | +1.00 | – | 1 of 1 | – | – |" in text


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
    lines = rows_of(draw("bars", folder) / "bars_task_il.csv")
    assert [row["method"] for row in lines] == ["ER"] * 3 + ["GEM"] * 2 + ["pooled"] * 2
    assert [row["seeds"] for row in lines if row["method"] == "pooled"] == ["1", "1"]  # that both methods have


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


def test_where_takes_any_value_of_one_flag_and_all_flags(folder: Path, put: Put) -> None:
    for seed in range(4):
        for size in (80, 800):
            put("er", seed, 50.0 + seed, buffer_size=size)
    runs = load([folder], where=[("seed", "1"), ("buffer_size", "80"), ("seed", "3")])
    assert sorted((run.seed, run.args["buffer_size"]) for run in runs) == [(1, 80), (3, 80)]
    with pytest.raises(UserError, match=r"--where seed=7: no run has that; there is 0, 1, 2, 3$"):
        load([folder], where=[("seed", "1"), ("seed", "7")])


def test_where_takes_runs_that_do_without_a_flag(folder: Path, put: Put) -> None:
    put("er", 0, 50.0)
    put("er", 1, 50.0, lr_later=[0.01])
    put("er", 2, 50.0, lr_later=[0.02])
    put("er", 3, 50.0, lr_later=[])
    assert sorted(run.seed for run in load([folder], where=[("lr_later", "off")])) == [0, 3]
    assert sorted(run.seed for run in load([folder], where=[("lr_later", "off"), ("lr_later", "0.01")])) == [0, 1, 3]
    with pytest.raises(UserError, match=r"--where model=off: no run has that; there is er$"):
        load([folder], where=[("model", "off")])
    with pytest.raises(UserError, match=r"--where lr_later=7: no run has that; there is 0.01, 0.02, off$"):
        load([folder], where=[("lr_later", "7")])


def test_where_names_what_there_is(folder: Path, put: Put) -> None:
    three_arms(put)
    with pytest.raises(UserError, match=r"--where lr=0.5: no run has that; there is 0.1$"):
        draw("bars", folder, "--where", "lr=0.5")
    with pytest.raises(UserError, match=r"--where learning=0.5: no run has the flag --learning$"):
        draw("bars", folder, "--where", "learning=0.5")
