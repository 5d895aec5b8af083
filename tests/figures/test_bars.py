"""Figure of bars: what is drawn is what was measured."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import pytest

from mammoth_sbs.figures import bars
from mammoth_sbs.figures.results import load
from tests.figures.conftest import Put, draw, rows_of, three_arms


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
