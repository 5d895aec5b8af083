"""Heat maps of (q, s): paired differences to the uniform buffer."""

from __future__ import annotations

from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import heatmap
from mammoth_sbs.figures.results import load
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
    assert heatmap.collect(load([folder]), "task_il")["CIFAR-10-2, ER, buffer 80"][0.2, 0.0] == {0: 45.0, 1: 55.0}


def test_a_heat_map_needs_the_uniform_point(folder: Path, put: Put) -> None:
    put("er_sbs", 0, 50.0)
    put("er_sbs", 0, 51.0, sbs_q=0.4)
    with pytest.raises(UserError, match=r"^CIFAR-10-5, ER, buffer 80: no run with --sbs-q 0 --sbs-s 0"):
        draw("heatmap", folder)


def test_the_heat_map_shows_differences_red_is_better_and_boxes_uniform(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    values = {(0.0, 0.0): 60.0, (0.0, 0.2): 63.0, (0.2, 0.0): 58.0}
    assert heatmap.differences(values) == {(0.0, 0.0): 0.0, (0.0, 0.2): 3.0, (0.2, 0.0): -2.0}
    axis = Figure().subplots()
    image = heatmap._panel(axis, heatmap.differences(values), "RdBu_r", (-3.0, 3.0), "{:+.1f}", None)
    red, blue = (image.cmap(image.norm(value)) for value in (2.0, -2.0))
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    cells = image.get_array()
    assert cells[1, 0] == 3.0  # s goes up
    assert cells[0, 1] == -2.0  # q goes right
    assert cells.mask[1, 1]  # not tried
    (box,) = axis.patches
    assert (box.get_x(), box.get_y()) == (-0.5, -0.5)
    assert box.get_edgecolor()[:3] == (0, 0, 0)
    png, svg = heatmap.draw({"a": values, "b": {(0.2, 0.2): 1.0, (0.4, 0.2): 2.0}}, tmp_path / "map")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "difference to the mean" in svg.read_text()  # one panel has no (0, 0)
