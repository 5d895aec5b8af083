"""Table 1: samplers, with the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path

from mammoth_sbs.figures import table1 as samplers
from mammoth_sbs.figures.results import Measure
from tests.figures.conftest import Put, draw, rows_of


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
    assert "CIFAR-10-5 32 (2%): difference to Random, final Task-IL accuracy, points, n = 2" in text
    assert "| SBS-fix | +5.00 ± 0.00 | +5.00 to +5.00 | 2 of 2 | 0.500 | 1.000 |" in text
    assert [lines["SBS-fix"][f"minus_random_{key}"] for key in ("low", "high", "p")] == ["5.0", "5.0", "0.5"]


def test_the_papers_sbs_stands_beside_q_and_s_by_share(folder: Path, put: Put) -> None:
    for seed in (0, 1):
        put("er_sbs", seed, 70.0 + seed, sampler="uniform", buffer_size=32)
        put("er_sbs", seed, 74.0 + seed, buffer_size=32, sbs_q="share", sbs_s="share")
    out = draw("samplers", folder)
    text = (out / "samplers_task_il.md").read_text()
    assert "| SBS share | **74.50** | **83.59** |" in text and "| SBS share | 0.50 | 0.10 |" in text
    assert rows_of(out / "samplers_task_il.csv")[1]["paper"] == "83.59"


def test_a_buffer_that_the_paper_has_not_gets_no_column_of_the_paper() -> None:
    assert samplers.papers_column(Measure("task_il"), "CIFAR-10-5", 0.05) == ("", {})
    assert samplers.papers_column(Measure("task_il"), "TinyImageNet-2", 0.10)[0] == "10k"
    assert samplers.papers_column(Measure("class_il"), "CIFAR-10-2", 0.02)[1] == {}  # not in the paper
    forgotten = Measure("task_il", "forgetting")  # nor is this
    assert samplers.papers_column(forgotten, "CIFAR-10-5", 0.02) == ("", {})


def test_the_papers_tables_are_whole_and_sbs_is_best_in_each_column() -> None:
    paper = samplers.paper()
    assert len(paper["columns"]) == 10
    for name in ("task_il", "task_il_standard_error", "class_il"):
        assert [*paper[name], samplers.BY_SHARE] == list(samplers.ROWS)
        assert {len(row) for row in paper[name].values()} == {10}
    for setting in ("task_il", "class_il"):
        for column in zip(*paper[setting].values(), strict=True):
            assert None in column or max(column) == column[-1]
