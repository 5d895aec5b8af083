"""The documents' tables and figures come out of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

from mammoth_sbs.commands import main
from mammoth_sbs.figures.results import Mean, load, paired
from tests.conftest import REPO


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
