"""Figures and tables: what is averaged and compared, what is refused, and that what is drawn is what was measured."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.figures import bars, heatmap, output
from mammoth_sbs.figures import table1 as samplers
from mammoth_sbs.figures.results import Mean, load, paired
from tests.conftest import REPO

SCRATCH = {"dataset": "seq-cifar10", "buffer_size": 80, "n_epochs": 8, "lr": 0.1, "backbone": "small-resnet18"}
Put = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    made.mkdir()
    return made


@pytest.fixture
def put(folder: Path) -> Put:
    """`put("er_sbs", seed, task_il, class_il, sampler="uniform", lr=.03)`: the file of a finished run of 5 tasks."""
    count = 0

    def put(model: str, seed: int, task_il: float, class_il: float = 20.0, tasks: int = 5, version: str = "v1",
            **flags: Any) -> None:
        nonlocal count
        count += 1
        args = {**SCRATCH, "model": model.replace("_", "-"), "seed": seed, **flags}
        if model.endswith("_sbs"):
            args = {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, **args}
        record = {
            "version": version, "args": args, "threads": 1, "seed": seed,
            "results": {name: {"matrix": [[value] * (i + 1) for i in range(tasks)], "final": value, "forgetting": 1.0}
                        for name, value in (("task_il", task_il), ("class_il", class_il))},
            "sbs": {"tasks": [{"examples": 320}] * tasks},
            "volatile": {"command": f"python main.py --model {model} --seed {seed}", "wall_time": 60.0},
        }
        (folder / f"{count:016x}.json").write_text(json.dumps(record))

    return put


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path) as f:
        return list(csv.DictReader(f))


def draw(kind: str, folder: Path, *more: str) -> Path:
    out = folder.parent / "figures"
    main(["figure", kind, str(folder), *more, "-o", str(out)])
    return out


def three_arms(put: Put, method: str = "er") -> dict[str, list[float]]:
    """Two seeds of stock, uniform and SBS."""
    values = {"stock": [70.0, 60.0], "uniform": [71.0, 63.0], "SBS-fix": [74.0, 62.0]}
    for seed in (0, 1):
        put(method, seed, values["stock"][seed])
        put(f"{method}_sbs", seed, values["uniform"][seed], sampler="uniform")
        put(f"{method}_sbs", seed, values["SBS-fix"][seed])
    return values


# ---- statistics

def test_the_standard_error_is_that_of_the_mean_and_unknown_for_one_seed() -> None:
    assert Mean.of([1.0, 2.0, 4.0]).error == pytest.approx(stdev([1, 2, 4]) / 3**0.5)
    assert Mean.of([3.0]).error is None
    assert Mean.of([3.0]).text() == "3.00"


def test_differences_are_paired_by_seed_whatever_order_they_are_in() -> None:
    change = paired({0: 11.0, 1: 25.0, 2: 28.0, 3: 5.0}, {2: 30.0, 0: 10.0, 1: 20.0, 3: 5.0})
    assert (change.mean, change.up, change.seeds) == (1.0, 2, 4)  # an equal seed did not go up
    assert change.error == pytest.approx(stdev([1, 5, -2, 0]) / 2)  # not that of the two means


# ---- bars

def test_bars_draw_means_and_errors_of_each_arm_and_its_paired_differences(folder: Path, put: Put) -> None:
    values = three_arms(put)
    out = draw("bars", folder)
    lines = {row["arm"]: row for row in rows_of(out / "bars_task_il.csv")}
    assert list(lines) == ["stock", "uniform", "SBS-fix"]
    for arm, numbers in values.items():
        assert float(lines[arm]["mean"]) == fmean(numbers)
        assert float(lines[arm]["standard_error"]) == pytest.approx(stdev(numbers) / 2**0.5)
    sbs = lines["SBS-fix"]
    assert (float(sbs["minus_stock"]), sbs["minus_stock_seeds_up"]) == (3.0, "2")
    assert (float(sbs["minus_uniform"]), sbs["minus_uniform_seeds_up"]) == (1.0, "1")
    assert float(sbs["minus_uniform_standard_error"]) == pytest.approx(2.0)
    assert lines["stock"]["dataset"] == "CIFAR-10-5"
    for setting in ("task_il", "class_il"):
        assert (out / f"bars_{setting}.png").read_bytes().startswith(b"\x89PNG")
        assert "A-GEM" not in (out / f"bars_{setting}.svg").read_text()
        assert "SBS-fix" in (out / f"bars_{setting}.svg").read_text()


def test_stock_is_blue_sbs_is_orange_and_bars_are_as_high_as_the_means(folder: Path, put: Put) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    three_arms(put)
    axis = Figure().subplots()
    bars.panel(axis, bars.collect(load([folder]), "task_il")["CIFAR-10-5"])
    drawn = {container.get_label(): container.patches[0] for container in axis.containers
             if hasattr(container, "patches") and container.patches}
    assert [to_hex(drawn[arm].get_facecolor()) for arm in ("stock", "SBS-fix")] == ["#1f77b4", "#ff7f0e"]
    assert [patch.get_height() for patch in drawn.values()] == [65.0, 67.0, 68.0]
    places = [patch.get_x() for patch in drawn.values()]
    assert places == sorted(places)


def test_each_methods_bars_are_centred_on_its_name_and_end_below_the_legend() -> None:
    from matplotlib.figure import Figure

    arms = {name: {0: 70.0, 1: 72.0} for name in ("stock", "uniform", *(f"SBS {i}" for i in range(7)))}
    figure = Figure()
    axis = figure.subplots()
    bars.panel(axis, {"ER": arms, "DER": {"stock": arms["stock"], "uniform": arms["uniform"]}})
    figure.draw_without_rendering()
    boxes = [patch.get_window_extent() for patch in axis.patches]
    at = sorted(patch.get_x() + patch.get_width() / 2 for patch in axis.patches)
    assert fmean(at[:9]) == pytest.approx(0) and fmean(at[9:]) == pytest.approx(1)
    assert max(box.y1 for box in boxes) < axis.get_legend().get_window_extent().y0
    assert len({patch.get_facecolor() for patch in axis.patches}) == 9


def test_the_table_has_the_best_in_bold_and_says_how_many_seeds_went_up(folder: Path, put: Put) -> None:
    three_arms(put)
    three_arms(put, "agem")
    out = draw("bars", folder)
    text = (out / "bars_task_il.md").read_text()
    assert ("| ER | 65.00 ± 5.00 | 67.00 ± 4.00 | **68.00 ± 6.00** | +3.00 ± 1.00 (2 of 2 up) | "
            "+1.00 ± 2.00 (1 of 2 up) |") in text
    assert text.index("| ER |") < text.index("| A-GEM |")
    tex = (out / "bars_task_il.tex").read_text()
    assert r"ER & 65.00 $\pm$ 5.00" in tex
    assert r"\textbf{68.00 $\pm$ 6.00}" in tex
    assert tex.count(r"\\") == 3
    assert "−" not in tex


def test_equal_results_give_equal_files(folder: Path, put: Put) -> None:
    three_arms(put)
    first = {file.name: file.read_bytes() for file in draw("bars", folder).iterdir()}
    assert {file.name: file.read_bytes() for file in draw("bars", folder).iterdir()} == first


# ---- heat maps

def test_a_heat_map_shows_paired_differences_to_the_uniform_buffer_and_their_errors(folder: Path, put: Put) -> None:
    for seed in (0, 1):
        put("er_sbs", seed, 50.0 + 10 * seed, sbs_q=0, sbs_s=0, tasks=2)
        put("er_sbs", seed, 53.0 + 8 * seed, sbs_q=0, sbs_s=0.2, tasks=2)
        put("er_sbs", seed, 45.0 + 10 * seed, sbs_q=0.2, sbs_s=0, tasks=2)
    out = draw("heatmap", folder)
    lines = {(row["q"], row["s"]): row for row in rows_of(out / "heatmap_task_il.csv")}
    assert float(lines["0.0", "0.2"]["minus_uniform"]) == 2.0
    assert float(lines["0.0", "0.2"]["minus_uniform_standard_error"]) == pytest.approx(1.0)
    assert float(lines["0.2", "0.0"]["minus_uniform"]) == -5.0
    assert float(lines["0.2", "0.0"]["minus_uniform_standard_error"]) == 0.0
    assert lines["0.0", "0.0"]["panel"] == "CIFAR-10-2, ER, buffer 80"
    assert {file.name for file in out.iterdir()} >= {"heatmap_task_il.png", "heatmap_task_il_errors.svg"}
    assert heatmap.collect(load([folder]), "task_il")["CIFAR-10-2, ER, buffer 80"][0.2, 0.0] == {0: 45.0, 1: 55.0}


def test_a_heat_map_needs_the_uniform_point(folder: Path, put: Put) -> None:
    put("er_sbs", 0, 50.0)
    put("er_sbs", 0, 51.0, sbs_q=0.4)
    with pytest.raises(SystemExit, match=r"^error: CIFAR-10-5, ER, buffer 80: no run with --sbs-q 0 --sbs-s 0"):
        draw("heatmap", folder)


# ---- samplers

def test_the_table_of_samplers_has_the_papers_numbers_beside_ours(folder: Path, put: Put) -> None:
    for seed in (0, 1):  # a buffer of 32 of 1600 examples: 2%, as the paper's 1k
        put("er_sbs", seed, 70.0 + seed, sampler="uniform", buffer_size=32)
        put("er_sbs", seed, 72.0 + seed, sampler="herding", buffer_size=32)
        put("er_sbs", seed, 75.0 + seed, buffer_size=32)
        put("er_sbs", seed, 74.0 + seed, buffer_size=32, sbs_q="auto", sbs_s="auto")
    out = draw("samplers", folder)
    text = (out / "samplers_task_il.md").read_text()
    assert "| buffer | CIFAR-10-5 32 (2%) | paper, 1k |" in text
    assert "| Random | 70.50 | 79.48 |" in text
    assert "| SBS-fix | **75.50** | 82.24 |" in text
    assert "| SBS | 74.50 | **83.59** |" in text
    assert "| Herding | 0.50 | 0.14 |" in text  # standard errors
    lines = {row["sampler"]: row for row in rows_of(out / "samplers_task_il.csv")}
    assert list(lines) == ["Random", "Herding", "SBS-fix", "SBS"]
    assert float(lines["SBS-fix"]["minus_random"]) == 5.0
    assert lines["SBS-fix"]["paper"] == "82.24"
    assert "paper, 1k" in (out / "samplers_class_il.tex").read_text()


def test_a_buffer_that_the_paper_has_not_gets_no_column_of_the_paper() -> None:
    assert samplers.papers_column("task_il", "CIFAR-10-5", 0.05) == ("", {})
    assert samplers.papers_column("task_il", "TinyImageNet-2", 0.10)[0] == "10k"
    assert samplers.papers_column("class_il", "CIFAR-10-2", 0.02)[1] == {}  # not in the paper


def test_the_papers_tables_are_whole_and_sbs_is_best_in_each_column() -> None:
    paper = samplers.paper()
    assert len(paper["columns"]) == 10
    for name in ("task_il", "task_il_standard_error", "class_il"):
        assert list(paper[name]) == list(samplers.ROWS)
        assert {len(row) for row in paper[name].values()} == {10}
    for setting in ("task_il", "class_il"):
        for column in zip(*paper[setting].values(), strict=True):
            assert None in column or max(column) == column[-1]


# ---- what is refused: never a silent average

def test_a_missing_seed_is_named_and_common_seeds_are_taken_when_asked_for(folder: Path, put: Put) -> None:
    three_arms(put)
    put("er", 2, 90.0)
    with pytest.raises(SystemExit, match=r"^error: CIFAR-10-5, ER: uniform lacks seed 2, .*--common-seeds"):
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
    with pytest.raises(SystemExit, match=rf"^error: {line}.*--where"):
        draw("bars", folder)
    (flag, wanted), = ((name, SCRATCH[name]) for name in flags)
    lines = rows_of(draw("bars", folder, "--where", f"{flag}={wanted}") / "bars_task_il.csv")
    assert float(lines[0]["mean"]) == 65.0


def test_arms_of_one_method_with_other_hyper_parameters_are_refused(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    put("er_sbs", 0, 71.0, lr=0.03)
    with pytest.raises(SystemExit, match=r"^error: CIFAR-10-5, ER: .* --lr is 0.1 in 1 runs, 0.03 in 1 runs"):
        draw("bars", folder)


def test_methods_may_have_learning_rates_of_their_own(folder: Path, put: Put) -> None:
    three_arms(put)
    put("gem", 0, 60.0, lr=0.03)
    put("gem_sbs", 0, 61.0, lr=0.03)
    assert len(rows_of(draw("bars", folder) / "bars_task_il.csv")) == 5


def test_runs_of_other_code_are_refused_until_both_are_accepted(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    put("er_sbs", 0, 71.0, version="v2")
    with pytest.raises(SystemExit, match=r"^error: .*holds results of other code: 1 of v1, 1 of v2"):
        draw("bars", folder)
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
    changed.write_text(changed.read_text().replace('"final": 7', '"final": 8').replace('"final": 6', '"final": 5'))
    with pytest.raises(SystemExit, match=f"^error: {other}, run {changed.stem}: another folder has the same run with"):
        draw("bars", folder, str(other))


@pytest.mark.parametrize(("words", "line"), [
    ("bars {folder}/nothing -o {out}", "error: .*nothing: there is no such folder"),
    ("bars {folder} -o {out}", "error: .*: holds no finished run"),
    ("bar {folder} -o {out}", "error: argument KIND: invalid choice: 'bar'"),
    ("bars {folder}", "error: the following arguments are required: -o/--out"),
    ("bars {folder} -o {out} --where lr", "error: argument --where: lr: give FLAG=VALUE"),
])
def test_bad_input_is_one_line_and_nothing_is_written(folder: Path, words: str, line: str) -> None:
    out = folder.parent / "out"
    with pytest.raises(SystemExit, match=f"^{line}") as e:
        main(["figure", *words.format(folder=folder, out=out).split()])
    assert "\n" not in str(e.value.code)
    assert not out.exists()


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path, put: Put) -> None:
    three_arms(put)
    words = [sys.executable, "-m", "mammoth_sbs", "figure", "bars", str(folder), "-o", str(folder.parent / "out")]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_where_names_what_there_is(folder: Path, put: Put) -> None:
    three_arms(put)
    with pytest.raises(SystemExit, match=r"--where lr=0.5: no run has that; there is 0.1$"):
        draw("bars", folder, "--where", "lr=0.5")
    with pytest.raises(SystemExit, match=r"--where learning=0.5: no run has the flag --learning$"):
        draw("bars", folder, "--where", "learning=0.5")


def test_a_kind_that_the_runs_do_not_fit_says_what_is_missing(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    for kind, line in (("bars", "no method has two arms"), ("heatmap", "no runs of --sampler speed"),
                       ("samplers", "no column has two samplers")):
        with pytest.raises(SystemExit, match=f"^error: {kind}: {line}"):
            draw(kind, folder)


def test_latex_escapes_what_latex_would_read() -> None:
    text = output.latex(["a_b", "c"], [["5%", "1 & 2"]], frozenset({(0, 1)}))
    assert r"a\_b & c \\" in text
    assert r"5\% & \textbf{1 \& 2} \\" in text


# ---- the configurations of the paper's experiments

@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_experiment_has_a_configuration_that_names_its_own_folder(scale: str) -> None:
    files = sorted((REPO / "configs" / scale).glob("*.yaml"))
    assert [file.stem for file in files] == [
        "bars_cifar100_5", "bars_cifar10_5", "bars_tinyimg_10", "heatmap_cifar100_20_5k", "heatmap_cifar100_2_10k",
        "heatmap_cifar100_2_1k", "heatmap_cifar10_5_5k", "heatmap_methods_500", "heatmap_tinyimg_2_20k",
        *(["pairs_cifar10_5"] if scale == "small" else []), "table1"]
    for file in files:
        assert re.search(rf"^name: {scale}_{file.stem}$", file.read_text(), re.MULTILINE)
        assert f"mammoth-sbs sweep configs/{scale}/{file.name}" in file.read_text()


@pytest.mark.parametrize("file", sorted((REPO / "configs").glob("*/*.yaml")),
                         ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_configuration_is_read_by_the_host(file: Path) -> None:
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.sweep import resolve

    config = read_config(file)
    runs = resolve(config)
    assert len({run.id for run in runs}) == len(config.points) * len(config.seeds)


def test_the_papers_table_1_is_eight_samplers_on_ten_columns_with_the_papers_optimiser() -> None:
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.sweep import resolve

    runs = resolve(read_config(REPO / "configs" / "paper" / "table1.yaml"))
    assert len(runs) == 8 * 10 * 10
    for run in runs:
        assert {key: run.args[key] for key in ("optimizer", "lr", "optim_mom", "optim_wd", "lr_scheduler", "n_epochs",
                                               "backbone")} == {
            "optimizer": "sgd", "lr": 0.1, "optim_mom": 0.9, "optim_wd": 0.0005, "lr_scheduler": "cosine",
            "n_epochs": 100, "backbone": "resnet18"}


# ---- the evidence

def test_the_documents_tables_and_figures_come_out_of_the_committed_runs(tmp_path: Path) -> None:
    """By the command beside them: README has the Task-IL table, docs/reproduce.md the Class-IL one."""
    evidence = REPO / "results" / "small_bars_cifar10_5"
    runs = load([evidence])
    assert {run.dataset for run in runs} == {"CIFAR-10-5"} and len(runs) == 8 * 3 * 10
    assert "mammoth-sbs figure bars results/small_bars_cifar10_5 -o docs/figures" in (REPO / "README.md").read_text()
    main(["figure", "bars", str(evidence), "-o", str(tmp_path)])
    for setting, document in (("task_il", "README.md"), ("class_il", "docs/reproduce.md")):
        table = (tmp_path / f"bars_{setting}.md").read_text()
        assert table.strip() in (REPO / document).read_text()
        for suffix in ("csv", "md", "tex"):
            name = f"bars_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / name).read_text()


def test_what_the_documents_say_about_the_chosen_pairs_comes_out_of_the_committed_runs() -> None:
    """docs/reproduce.md: what SBS gains over the uniform buffer, by the pair that the rotation task chose."""
    runs = load([REPO / "results" / "small_bars_cifar10_5"])
    uniform = {(run.method, run.seed): run for run in runs if run.arm == "uniform"}
    gains: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if run.arm == "SBS":
            chosen = run.record["sbs"]["tasks"][0]["choice"]
            q, s = chosen["q"], chosen["s"]
            name = "q = s = 0" if q == s == 0 else "q = s" if q == s else "s > q" if s > q else "q > s"
            other = uniform[run.method, run.seed]
            gains.setdefault(name, []).append((run.final("task_il") - other.final("task_il"),
                                               run.final("class_il") - other.final("class_il")))
    text = (REPO / "docs" / "reproduce.md").read_text()
    for name, pairs in gains.items():
        task, both = (Mean.of(column).text(sign=True) for column in zip(*pairs, strict=True))
        assert f"| {name} | {len(pairs)} | {task} | {both} |" in text


def test_the_documents_table_of_pairs_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    main(["figure", "heatmap", str(REPO / "results" / "small_pairs_cifar10_5"), "-o", str(tmp_path)])
    text = (REPO / "docs" / "reproduce.md").read_text()
    rows: dict[str, list[str]] = {}
    for setting in ("task_il", "class_il"):
        file = f"heatmap_{setting}.csv"
        assert (tmp_path / file).read_text() == (REPO / "docs" / "figures" / file).read_text()
        for line in csv.DictReader((tmp_path / file).open()):
            mean, error, less, its_error = (float(line[key]) for key in (
                "mean", "standard_error", "minus_uniform", "minus_uniform_standard_error"))
            assert line["seeds"] == "10"
            change = f"{less:+.2f} ± {its_error:.2f} ({line['minus_uniform_seeds_up']} of 10 up)" if less else ""
            pair = f"{float(line['q']):g} | {float(line['s']):g}"
            rows.setdefault(pair, []).extend([f"{mean:.2f} ± {error:.2f}", change])
    for pair, cells in rows.items():
        assert f"| {pair} | {' | '.join(cells)} |" in text

    drawn = {run.seed: run.final("task_il") for run in load([REPO / "results" / "small_pairs_cifar10_5"])
             if run.band == (0, 0)}
    uniform = {run.seed: run.final("task_il") for run in load([REPO / "results" / "small_bars_cifar10_5"])
               if (run.method, run.arm) == ("ER", "uniform")}
    assert f"{paired(drawn, uniform).text()} points" in text
