"""The tables of docs/pretrained.md come out of the committed runs."""

from __future__ import annotations

import pytest

from mammoth_sbs.figures.bars import collect, with_pooled
from mammoth_sbs.figures.results import Run, load, measures
from mammoth_sbs.figures.statistics import POOLED, Mean, compare
from tests.conftest import REPO

PAGE = (REPO / "docs" / "pretrained.md").read_text(encoding="utf-8")
CHOSEN, UNIFORM = "SBS q=0 s=0.4", "uniform"
SEEDS = {"5_500": range(100, 110), "20_500": range(100, 104)}  # by split and buffer; those of 2,000 are not run yet


def runs_of(name: str) -> list[Run]:
    runs = load([REPO / "results" / f"frozen_bars_cifar100_{name}"])
    assert {run.seed for run in runs} == set(SEEDS[name])
    return runs


def differences(setting: str) -> dict[str, list[str]]:
    """By method: what is chosen less uniform, a cell for each split and buffer."""
    (measure,) = (measure for measure in measures("final") if measure.setting == setting)
    rows: dict[str, list[str]] = {}
    for name in SEEDS:
        (chart,) = collect(runs_of(name), measure).values()
        found = compare(chart, CHOSEN, UNIFORM)
        for method in (*collect(runs_of("5_500"), measure)["CIFAR-100-5"], POOLED):
            rows.setdefault(method, []).append(found[method].text(sign=True))
    return rows


def arms(name: str) -> list[list[str]]:
    """Pooled over the methods: each arm's accuracy in both settings."""
    charts = [with_pooled(*collect(runs_of(name), measure).values())[POOLED] for measure in measures("final")]
    return [[arm, *(Mean.of(chart[arm].values()).text() for chart in charts)] for arm in charts[0]]


@pytest.mark.parametrize("setting", ["task_il", "class_il"])
def test_the_differences(setting: str) -> None:
    for method, cells in differences(setting).items():
        assert f"| {method} | {' | '.join(cells)} |\n" in PAGE


def test_the_pooled_means() -> None:
    by_arm: dict[str, list[str]] = {}
    for name in SEEDS:
        for arm, *cells in arms(name):
            by_arm.setdefault(arm, []).extend(cells)
    for arm, cells in by_arm.items():
        assert f"| {arm} | {' | '.join(cells)} |\n" in PAGE


def test_the_commands_of_the_tables() -> None:
    for name in SEEDS:
        assert f"mammoth-sbs sweep configs/frozen/bars_cifar100_{name}.yaml" in PAGE
