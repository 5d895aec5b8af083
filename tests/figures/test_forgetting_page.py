"""The tables of docs/forgetting.md say what the files beside its figures say; maps come out of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.figures.agreement import Estimate
from tests.conftest import REPO

PAGE = (REPO / "docs" / "forgetting.md").read_text(encoding="utf-8")
FIGURES = REPO / "docs" / "figures"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def span(row: dict[str, str], *names: str, sign: bool = True) -> str:
    """A number with its interval, or a dash."""
    value, low, high = (float(row[name]) if row[name] else None for name in names)
    return Estimate(value, low, high).text(sign)


def r(row: dict[str, str]) -> str:
    return span(row, "r", "low", "high")


def auc(row: dict[str, str]) -> str:
    return span(row, "auc_mean", "auc_low", "auc_high", sign=False)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("folder", ["", "cifar10", "tinyimg", "forgetting/features"])
def test_speed_and_being_remembered_without_a_buffer(folder: str) -> None:
    groups, examples, known = rows_of(FIGURES / folder / "forgetting_task_il.csv")
    assert groups["networks"] == "10"
    accuracies = [f"{float(groups[name]):.1f}" for name in ("accuracy_after_own", "accuracy_at_end", "remembered")]
    assert line(groups["panel"], *accuracies, *map(r, (groups, examples, known))) in PAGE
    left = {float(row["accuracy_at_end"]) for row in rows_of(FIGURES / folder / "forgetting_class_il.csv")}
    assert max(left) < 0.005  # nothing is left


@pytest.mark.parametrize("folder", ["memory", "memory_cifar10"])
def test_what_larger_buffers_keep(folder: str) -> None:
    for setting in ("task_il", "class_il"):
        sizes, networks, within = rows_of(FIGURES / "forgetting" / folder / f"memory_{setting}.csv")
        assert int(networks["n"]) == 10 * int(sizes["n"])  # ten networks of each size
        assert line(f"{sizes['panel']}, {sizes['setting']}", *map(r, (sizes, networks, within))) in PAGE


@pytest.mark.parametrize(("folder", "scores"), [("scores", 4), ("features", 2)])
def test_the_order_of_scores(folder: str, scores: int) -> None:
    table = (FIGURES / "forgetting" / folder / "matrices_task_il.md").read_text(encoding="utf-8")
    lines = [row for row in table.splitlines() if row.startswith("| CIFAR-100-2 | train |")]
    assert len(lines) == scores and all(row.replace("| CIFAR-100-2 | train |", "|") in PAGE for row in lines)


@pytest.mark.parametrize(("folder", "shown"), [("tasks", (2, 3, 4, 5, 10, 20)), ("buffers", (2,)),
                                               ("networks", (2,)), ("features", (2, 3, 5, 10, 20))])
def test_what_speed_says_after_each_task_and_with_other_networks(folder: str, shown: tuple[int, ...]) -> None:
    rows = [row for row in rows_of(FIGURES / "forgetting" / folder / "matrices_task_il_tasks.csv")
            if int(row["after_task"]) in shown]
    assert len(rows) == {"tasks": 10, "buffers": 7, "networks": 3, "features": 6}[folder]
    assert {row["networks"] for row in rows} == {"10"}
    for row in rows:
        accuracies = [f"{float(row[name]):.1f}" for name in ("accuracy_after_own", "accuracy", "chance")]
        leaving = [span(row, *(f"speed_of_{name}_{part}" for part in ("mean", "low", "high")), sign=False)
                   for name in ("newly_forgotten", "kept") if folder == "features"]
        assert line(row["panel"], row["after_task"], *accuracies, r(row), auc(row), *leaving) in PAGE


MAPS = {"following_features": ("following", ["frozen_following"], []),
        "following": ("following", ["small_following"], []),
        "robustness_features": ("robustness", ["frozen_robustness"], []),
        "robustness": ("robustness", ["small_robustness", "small_following"], ["--where", "second_task=off"])}


def redrawn(folder: str, out: Path) -> list[tuple[dict[str, str], dict[str, str]]]:
    """The figure by the command on the page; its CSV files are the committed ones. What it says of the maps, in Task-IL
    and Class-IL."""
    kind, results, flags = MAPS[folder]
    names = [f"results/{name}" for name in results]
    words = ["mammoth-sbs", "figure", kind, *names, *flags, "-o", f"docs/figures/forgetting/{folder}"]
    assert " ".join(words) in " ".join(PAGE.replace("\\\n", " ").split())
    main(["figure", kind, *(str(REPO / name) for name in names), *flags, "-o", str(out)])
    committed = sorted((FIGURES / "forgetting" / folder).glob("*.csv"))
    assert len(committed) == 4
    for file in committed:
        assert (out / file.name).read_text() == file.read_text(), file.name
    last = {"following": "agreement", "robustness": "shares"}[kind]
    both = [rows_of(out / f"{kind}_{name}_{last}.csv") for name in ("task_il", "class_il")]
    return list(zip(*both, strict=True))


@pytest.mark.parametrize("folder", ["following_features", "following"])
def test_whether_the_task_that_follows_matters(folder: str, tmp_path: Path) -> None:
    for both in redrawn(folder, tmp_path):
        cells = []
        for row in both:
            assert row["pairs"] == "13"
            own = span(row, "rank_correlation", "low", "high") if row["one"] != row["other"] else "–"
            cells += [own, f"{float(row['over_other_seeds']):+.2f}"]
        assert {row["seeds"] for row in both} == {"10"}
        assert line(both[0]["one"], both[0]["other"].partition(" → ")[2], *cells) in PAGE


@pytest.mark.parametrize("folder", ["robustness_features", "robustness"])
def test_whether_other_settings_want_other_buffers(folder: str, tmp_path: Path) -> None:
    for both in redrawn(folder, tmp_path):
        cells = []
        for row in both:
            assert row["pairs"] == "12"
            like = span(row, "reference_rank_correlation", "reference_low", "reference_high") \
                if row["setting"] != "reference" else "–"
            cells += [f"{row['above']} of 12", span(row, "default_pair", "default_pair_low", "default_pair_high"), like]
        assert {row["seeds"] for row in both} == {"10"}
        assert line(both[0]["setting"], *cells) in PAGE
