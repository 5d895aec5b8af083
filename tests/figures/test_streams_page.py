"""The tables of docs/streams.md come out of the committed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.figures.bars import collect
from mammoth_sbs.figures.results import load, measures
from mammoth_sbs.figures.statistics import Mean, compare, paired, probability
from tests.conftest import REPO

PAGE = (REPO / "docs" / "streams.md").read_text(encoding="utf-8")
README = (REPO / "README.md").read_text(encoding="utf-8")
RESERVOIR, SPEED = "stream-reservoir", "stream-speed q=0 s=0.6, band both"
MEASURES = [measure for pair in zip(measures("anytime"), measures("final"), strict=True) for measure in pair]


@pytest.mark.parametrize("buffer", ["500", "2000"])
def test_the_confirmation(buffer: str) -> None:
    """A row for each method and measure."""
    runs = load([REPO / "results" / "streams_confirm_frozen"], where={"buffer_size": buffer})
    assert {run.seed for run in runs} == set(range(200, 210))
    runs = [run for run in runs if run.arm in (RESERVOIR, SPEED)]
    for measure in MEASURES:
        (chart,) = collect(runs, measure).values()
        for method, arms in chart.items():
            change = paired(arms[SPEED], arms[RESERVOIR])
            means = [Mean.of(arms[arm].values()).text() for arm in (RESERVOIR, SPEED)]
            cells = [f"{method}, {int(buffer):,}", measure.title.replace(" accuracy", ""), *means,
                     change.text(sign=True), change.span(), change.better(), probability(change.p)]
            assert f"| {' | '.join(cells)} |" in PAGE
            if (buffer, measure.name) == ("500", "class_il"):
                assert f"{change.text()} points ({method})" in README


def test_the_picture(tmp_path: Path) -> None:
    """By the command beside it."""
    assert "figure bars results/streams_confirm_frozen --where buffer_size=500 -o docs/figures/streams" in PAGE
    main(["figure", "bars", str(REPO / "results" / "streams_confirm_frozen"), "--where", "buffer_size=500",
          "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        name = f"bars_{setting}.csv"
        assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / "streams" / name).read_text()


def test_the_pilot() -> None:
    """Designs less the reservoir; the one with the largest mean of the four was taken."""
    runs = load([REPO / "results" / "streams_pilot_frozen"])
    assert {run.seed for run in runs} == set(range(100, 104))
    charts = [next(iter(collect(runs, measure).values())) for measure in MEASURES]
    means = {}
    for arm in charts[0]["ER"]:
        if arm != RESERVOIR:
            changes = [compare(chart, arm, RESERVOIR)["ER"] for chart in charts]
            means[arm] = sum(change.mean for change in changes)
            assert f"| {arm} | {' | '.join(change.text(sign=True) for change in changes)} |" in PAGE
    assert max(means, key=means.__getitem__) == SPEED
