"""The documents' tables and figures come out of the committed runs."""

from __future__ import annotations

import csv
from pathlib import Path

from mammoth_sbs.commands import main
from mammoth_sbs.figures.bars import collect
from mammoth_sbs.figures.results import load, measures
from mammoth_sbs.figures.statistics import POOLED, Mean, compare, paired, probability
from tests.conftest import REPO


def test_the_documents_tables_and_figures_come_out_of_the_committed_runs(tmp_path: Path) -> None:
    """By the command beside them: docs/evidence.md has the tables, README their last row."""
    evidence = REPO / "results" / "small_bars_cifar10_5"
    runs = load([evidence])
    assert {run.dataset for run in runs} == {"CIFAR-10-5"} and len(runs) == 8 * 3 * 10
    assert "mammoth-sbs figure bars results/small_bars_cifar10_5 -o docs/figures" in (REPO / "README.md").read_text()
    main(["figure", "bars", str(evidence), "-o", str(tmp_path)])
    document = (REPO / "docs" / "evidence.md").read_text(encoding="utf-8")
    for setting, shown in (("task_il", (0, 1)), ("class_il", (0, 1, 3))):
        tables = (tmp_path / f"bars_{setting}.md").read_text().split("\n\nCIFAR-10-5: ")
        assert len(tables) == 4  # means, then each arm less uniform or stock
        for i in shown:
            assert tables[i].strip() in document
        for suffix in ("csv", "md", "tex"):
            name = f"bars_{setting}.{suffix}"
            assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / name).read_text()


def test_readmes_block_comes_out_of_the_committed_runs() -> None:
    """Picture, row and what is said about them."""
    text = (REPO / "README.md").read_text(encoding="utf-8")
    block = " ".join(text[text.index("<!-- result") : text.index("<!-- end of result -->")].split())
    tables = (REPO / "docs" / "figures" / "bars_task_il.md").read_text(encoding="utf-8")
    means, less, *_ = tables.split("\n\nCIFAR-10-5: ")
    (row,) = [line for line in means.splitlines() if line.startswith(f"| {POOLED} |")]
    assert row in block and "(docs/figures/bars_task_il.png)" in block
    (gain,) = [line.split(" | ") for line in less.splitlines() if line.startswith(f"| {POOLED} |")]
    assert f"SBS gains {gain[1]} points over all methods, which can not be told from chance" in block
    assert float(gain[4]) > 0.05
    best = {line.split(" | ")[0].strip("| "): line for line in means.splitlines() if "**" in line}
    best.pop(POOLED)
    stock = [method for method, line in best.items() if "**" in line.split(" | ")[1]]
    assert sum("**" in line.split(" | ")[3] for line in best.values()) == 5 and stock == ["DER++", "RPC", "FDR"]
    assert "SBS has the best mean for five methods, *stock* for DER++, RPC and FDR" in block


def test_what_the_documents_say_about_all_methods_together_comes_out_of_the_committed_runs() -> None:
    text = " ".join((REPO / "docs" / "evidence.md").read_text().split())
    runs = load([REPO / "results" / "small_bars_cifar10_5"])
    for measure in [m for metric in ("final", "average_incremental", "forgetting") for m in measures(metric)]:
        chart = collect(runs, measure)["CIFAR-10-5"]
        found = {other: compare(chart, "SBS", other) for other in ("uniform", "stock")}
        cells = [cell for changes in found.values() for cell in (
            changes[POOLED].text(sign=True), changes[POOLED].span(), probability(changes[POOLED].p))]
        assert f"| {measure.title} | {' | '.join(cells)} |" in text
        # "no difference can be told from chance": of no method after the correction, nor of all together
        ps = [change.p if method == POOLED else change.holm for method, change in found["uniform"].items()]
        assert len(ps) == 9 and min(ps) > 0.05
    assert "no difference can be told from chance: not of a method, not of all together, in no metric" in text


def test_what_the_documents_say_about_the_chosen_pairs_comes_out_of_the_committed_runs() -> None:
    """docs/evidence.md: what SBS gains over the uniform buffer, by the pair that the rotation task chose."""
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
    text = (REPO / "docs" / "evidence.md").read_text()
    for name, pairs in gains.items():
        task, both = (Mean.of(column).text(sign=True) for column in zip(*pairs, strict=True))
        assert f"| {name} | {len(pairs)} | {task} | {both} |" in text


def test_the_documents_table_of_pairs_comes_out_of_the_committed_runs(tmp_path: Path) -> None:
    main(["figure", "heatmap", str(REPO / "results" / "small_pairs_cifar10_5"), "-o", str(tmp_path)])
    text = (REPO / "docs" / "evidence.md").read_text()
    rows: dict[str, list[str]] = {}
    for setting in ("task_il", "class_il"):
        file = f"heatmap_{setting}.csv"
        assert (tmp_path / file).read_text() == (REPO / "docs" / "figures" / file).read_text()
        for line in csv.DictReader((tmp_path / file).open()):
            mean, error, less, its_error = (float(line[key] or 0) for key in (
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
