"""Heat maps of (q, s): paired differences to the uniform buffer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import heatmap
from mammoth_sbs.figures.results import Measure, load
from tests.figures.conftest import Put, draw, rows_of


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
    maps = heatmap.collect(load([folder]), Measure("task_il"))
    assert maps["CIFAR-10-2, ER, buffer 80"][0.2, 0.0] == {0: 45.0, 1: 55.0}


def test_a_heat_map_needs_the_uniform_point(folder: Path, put: Put) -> None:
    put("er_sbs", 0, 50.0)
    put("er_sbs", 0, 51.0, sbs_q=0.4)
    with pytest.raises(UserError, match=r"^CIFAR-10-5, ER, buffer 80: no run with --sbs-q 0 --sbs-s 0"):
        draw("heatmap", folder)


def test_the_heat_map_shows_differences_red_is_better_and_boxes_uniform(tmp_path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    values = {(0.0, 0.0): 60.0, (0.0, 0.2): 63.0, (0.2, 0.0): 58.0}
    assert heatmap.differences(values) == {(0.0, 0.0): 0.0, (0.0, 0.2): 3.0, (0.2, 0.0): -2.0}
    axis = Figure().subplots()
    texts = dict.fromkeys(values, "")
    image, gaps = heatmap._panel(axis, heatmap.differences(values), colormaps["RdBu_r"], (-3.0, 3.0), texts, None)
    red, blue = (image.cmap(image.norm(value)) for value in (2.0, -2.0))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    cells = image.get_array()
    assert cells[1, 0] == 3.0  # s goes up
    assert cells[0, 1] == -2.0  # q goes right
    assert cells.mask[1, 1] and gaps  # not run: hatched
    hatched, box = axis.patches
    assert hatched.get_hatch() and (hatched.get_x(), hatched.get_y()) == (0.5, 0.5)
    assert (box.get_x(), box.get_y()) == (-0.5, -0.5)
    assert box.get_edgecolor()[:3] == (0, 0, 0)
    png, svg = heatmap.draw({"a": values, "b": {(0.2, 0.2): 1.0, (0.4, 0.2): 2.0}}, tmp_path / "map")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "difference to the mean" in svg.read_text()  # one panel has no (0, 0)


def texts_of(svg: Path) -> list[str]:
    """What is written in a figure, in the order of drawing."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg.read_text(encoding="utf-8"))


def test_cells_say_how_sure_and_of_how_many_seeds_and_what_they_differ_from(folder: Path, put: Put) -> None:
    for seed in (0, 1, 2):
        put("er_sbs", seed, 50.0 + 3 * seed, sbs_q=0, sbs_s=0)
        put("er_sbs", seed, 52.0 + 4 * seed, sbs_q=0, sbs_s=0.2)
        put("er_sbs", seed, 50.04 + 3 * seed, sbs_q=0.2, sbs_s=0.2)
    out = draw("heatmap", folder)
    said = texts_of(out / "heatmap_task_il.svg")
    assert {"53.0", "± 1.7", "+3.0", "± 0.6", "n = 3", "0.0", "not run"} <= set(said)  # (0, 0) is its own mean
    assert not {"-0.0", "−0.0", "+0.0"} & set(said)
    errors = texts_of(out / "heatmap_task_il_errors.svg")
    assert {"reference", "0.58", "0.00", "not run"} <= set(errors)


def test_a_zero_has_no_sign_and_a_minus_is_one() -> None:
    assert [heatmap.signed(value) for value in (-0.04, 0.04, -1.26, 1.26)] == ["0.0", "0.0", "−1.3", "+1.3"]


def test_numbers_in_the_error_map_can_be_read(folder: Path, put: Put) -> None:
    """Black on its darkest shade, or white: the contrast that web pages must have for text, 4.5 to 1."""
    from matplotlib import colormaps

    darkest = colormaps["YlOrBr"](1 / 1.6)[:3]
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in darkest]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    assert (luminance + 0.05) / 0.05 > 4.5


def test_less_forgetting_is_red(folder: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("er_sbs", 0, 50.0, sbs_q=0, sbs_s=0)
    put("er_sbs", 0, 52.0, sbs_q=0, sbs_s=0.2)
    used = []
    maps = heatmap._maps
    monkeypatch.setattr(heatmap, "_maps", lambda *given: used.append(given[3]) or maps(*given))
    out = draw("heatmap", folder, "--metric", "forgetting")
    assert set(used) == {"RdBu"} and (out / "heatmap_class_il_forgetting.csv").exists()


def test_what_a_map_shows_is_said_in_words(folder: Path, put: Put) -> None:
    for q, s, value in ((0, 0, 50.0), (0, 0.2, 53.0), (0.4, 0, 45.0)):
        put("er_sbs", 0, value, sbs_q=q, sbs_s=s)
    with Image.open(draw("heatmap", folder) / "heatmap_task_il.png") as image:
        assert image.info["Description"] == (
            "Heat map over q and s of the difference to (0, 0), points of final Task-IL accuracy. CIFAR-10-5, ER, "
            "buffer 80: best +3.0 at q = 0, s = 0.2, worst −5.0 at q = 0.4, s = 0.")


def test_only_runs_whose_q_and_s_were_both_given_have_a_place_in_the_map(folder: Path, put: Put) -> None:
    for q, s in ((0.2, 0.4), (0.2, "auto"), ("rule", 0), ("auto", "auto"), (0, 0)):
        put("er_sbs", 1, 50.0, sbs_q=q, sbs_s=s)
    put("er_sbs", 1, 50.0, sampler="uniform")
    assert sorted(run.band for run in heatmap.fixed(load([folder]))) == [(0, 0), (0.2, 0.4)]
