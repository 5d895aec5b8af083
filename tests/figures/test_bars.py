"""Figure of bars and differences: what is drawn is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from mammoth_sbs.figures import bars
from mammoth_sbs.figures.output import legend_above
from mammoth_sbs.figures.results import Measure, load
from mammoth_sbs.figures.statistics import POOLED, interval, paired
from tests.figures.conftest import Put, draw, results_of, rows_of, three_arms


def collected(folder: Path) -> bars.Chart:
    return bars.collect(load([folder]), Measure("task_il"))["CIFAR-10-5"]


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
    assert (float(sbs["minus_uniform_low"]), float(sbs["minus_uniform_high"])) == interval([3.0, -1.0])
    assert float(sbs["minus_stock_p"]) == float(sbs["minus_stock_p_holm"]) == 0.5
    assert lines["uniform"]["minus_stock"] and not lines["uniform"]["minus_uniform"]
    assert lines["stock"]["dataset"] == "CIFAR-10-5"
    for setting in ("task_il", "class_il"):
        assert (out / f"bars_{setting}.png").read_bytes().startswith(b"\x89PNG")
        assert "A-GEM" not in (out / f"bars_{setting}.svg").read_text()
        assert "SBS-fix" in (out / f"bars_{setting}.svg").read_text()


def test_stock_is_blue_sbs_is_orange_and_bars_are_as_long_as_the_means(folder: Path, put: Put) -> None:
    three_arms(put)
    chart = collected(folder)
    axis = Figure().subplots()
    bars.bars(axis, chart, bars.arms_of(chart))
    drawn = {container.get_label(): container.patches[0] for container in axis.containers
             if hasattr(container, "patches") and container.patches}
    assert [to_hex(drawn[arm].get_facecolor()) for arm in ("stock", "SBS-fix")] == ["#1f77b4", "#ff7f0e"]
    assert [patch.get_width() for patch in drawn.values()] == [65.0, 67.0, 68.0]
    places = [patch.get_y() for patch in drawn.values()]
    assert places == sorted(places)
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # downwards


def test_points_stand_on_the_lines_of_their_bars_with_their_intervals(folder: Path, put: Put) -> None:
    three_arms(put)
    three_arms(put, "agem")
    chart = collected(folder)
    names, found = bars.arms_of(chart), bars.comparisons(chart)
    assert list(found) == [("SBS-fix", "uniform"), ("uniform", "stock"), ("SBS-fix", "stock")]
    axis = Figure().subplots()
    bars.points(axis, chart, names, {"SBS-fix": found["SBS-fix", "stock"]})
    at = bars.places(chart)
    drawn = {(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in axis.lines}
    for method in ("ER", "A-GEM", POOLED):
        y, change = at[method, "SBS-fix"], found["SBS-fix", "stock"][method]
        assert ((change.mean,), (y,)) in drawn
        assert ((change.low, change.high), (y, y)) in drawn
    assert ((0, 0), (0, 1)) in drawn  # the line of no difference


def test_each_methods_bars_are_centred_on_its_name() -> None:
    arms = {name: {0: 70.0, 1: 72.0} for name in ("stock", "uniform", *(f"SBS {i}" for i in range(7)))}
    axis = Figure().subplots()
    chart = {"ER": arms, "DER": {"stock": arms["stock"], "uniform": arms["uniform"]}}
    bars.bars(axis, chart, bars.arms_of(chart))
    shown = [patch for patch in axis.patches if patch.get_width() > 69]
    at = sorted(patch.get_y() + patch.get_height() / 2 for patch in shown)
    assert fmean(at[:9]) == pytest.approx(0) and fmean(at[9:11]) == pytest.approx(1)
    assert len({patch.get_facecolor() for patch in shown}) == 9


@pytest.mark.parametrize("arms", [2, 6, 9, 25])
def test_arms_have_colours_of_their_own_however_many_they_are(arms: int) -> None:
    names = [f"SBS q={i} s=0" for i in range(arms)] + [f"sampler {i}" for i in range(arms)] + ["stock", "uniform"]
    assert len({to_hex(colour) for colour in bars.palette(names).values()}) == 2 * arms + 2


@pytest.mark.parametrize(("labels", "width"), [
    (["SBS q=0.2 s=0.6"] * 6, 3.0), (["stock", "uniform", "SBS"], 8.0), (["a very long name of an arm " * 4] * 3, 3.0),
    (["SBS q=0.2 s=0.6, during stock"] * 30, 6.0)])
def test_a_legend_keeps_all_its_entries_within_the_figure(labels: list[str], width: float) -> None:
    figure = Figure(figsize=(width, 6), layout="constrained")
    handles = figure.subplots().bar(range(len(labels)), 1)
    legend_above(figure, list(handles), labels)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1


def test_the_figure_says_how_many_seeds_and_what_its_whiskers_are(folder: Path, put: Put) -> None:
    three_arms(put)
    three_arms(put, "agem")
    out = draw("bars", folder)
    said = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", (out / "bars_task_il.svg").read_text()))
    for words in ("CIFAR-10-5, 2 seeds", "final Task-IL accuracy, %", "difference to uniform", "difference to stock",
                  "± one standard error", "95% interval", "pooled: mean over methods, seed by seed"):
        assert words in said, words
    assert "hollow" not in said
    put("gem", 0, 60.0)
    put("gem_sbs", 0, 61.0)
    said = " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", (draw("bars", folder) / "bars_task_il.svg").read_text()))
    assert "1 to 2 seeds" in said and "ER (n = 2)" in said and "GEM (n = 1)" in said
    assert "hollow: of those that have the arm" in said  # GEM has no uniform one


def test_the_picture_is_said_in_words(folder: Path, put: Put) -> None:
    three_arms(put)
    with Image.open(draw("bars", folder) / "bars_task_il.png") as image:
        assert image.info["Description"].startswith("Bar chart of final Task-IL accuracy and paired differences in "
                                                    "points. SBS-fix minus uniform on CIFAR-10-5: ER +1.00.")


def test_the_tables_have_the_best_in_bold_and_all_that_is_known_of_a_difference(folder: Path, put: Put) -> None:
    three_arms(put)
    three_arms(put, "agem")
    out = draw("bars", folder)
    text = (out / "bars_task_il.md").read_text()
    assert "CIFAR-10-5: final Task-IL accuracy, %, mean ± standard error, 2 seeds\n" in text
    assert "| ER | 65.00 ± 5.00 | 67.00 ± 4.00 | **68.00 ± 6.00** |" in text
    assert "| pooled | 65.00 ± 5.00 | 67.00 ± 4.00 | **68.00 ± 6.00** |" in text
    assert "CIFAR-10-5: SBS-fix − stock, final Task-IL accuracy, points, 2 seeds\n" in text
    change = paired({0: 74.0, 1: 62.0}, {0: 70.0, 1: 60.0})
    assert f"| ER | +3.00 ± 1.00 | {change.span()} | 2 of 2 | 0.500 | 1.000 |" in text  # 2 methods: p counts twice
    assert f"| pooled | +3.00 ± 1.00 | {change.span()} | 2 of 2 | 0.500 |  |" in text
    assert text.index("| ER |") < text.index("| A-GEM |")
    tex = (out / "bars_task_il.tex").read_text()
    assert r"ER & 65.00 $\pm$ 5.00" in tex
    assert r"\textbf{68.00 $\pm$ 6.00}" in tex
    assert tex.count(r"\\") == 4 * (1 + 3)
    assert "−" not in tex


def test_less_forgetting_is_better(folder: Path, put: Put) -> None:
    three_arms(put)
    for file in folder.iterdir():  # forgotten: what the first task lost
        one = json.loads(file.read_text())
        for setting in one["results"].values():
            setting |= results_of([[95.0], *([value, value] for (value, *_) in setting["matrix"][:1])])
        file.write_text(json.dumps(one))
    text = (draw("bars", folder, "--metric", "forgetting") / "bars_task_il_forgetting.md").read_text()
    means = next(line for line in text.splitlines() if line.startswith("| ER |"))
    best = re.search(r"\*\*([\d.]+)", means)
    assert best and float(best[1]) == min(float(number) for number in re.findall(r"([\d.]+) ±", means))
    assert "CIFAR-10-2: Task-IL forgetting, points, mean ± standard error" in text
    difference = next(line for line in text.split("SBS-fix − stock")[1].splitlines() if line.startswith("| ER |"))
    assert "| -" in difference and "2 of 2" in difference  # it went down in both seeds


def test_equal_results_give_equal_files(folder: Path, put: Put) -> None:
    three_arms(put)
    first = {file.name: file.read_bytes() for file in draw("bars", folder).iterdir()}
    assert {file.name: file.read_bytes() for file in draw("bars", folder).iterdir()} == first
