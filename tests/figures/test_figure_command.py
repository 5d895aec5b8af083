"""`mammoth-sbs figure`: bad input is one line, and what it writes can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import output
from tests.conftest import REPO
from tests.figures.conftest import Put, draw, rows_of, three_arms


@pytest.mark.parametrize(("words", "line"), [
    ("bars {folder}/nothing -o {out}", ".*nothing: there is no such folder"),
    ("bars {folder} -o {out}", ".*: holds no finished run"),
    ("bar {folder} -o {out}", "argument KIND: invalid choice: 'bar'"),
    ("bars {folder}", "the following arguments are required: -o/--out"),
    ("bars {folder} -o {out} --where lr", "argument --where: lr: give FLAG=VALUE"),
    ("bars {folder} -o {out} --metric speed", "argument --metric: invalid choice: 'speed'"),
])
def test_bad_input_is_one_line_and_nothing_is_written(folder: Path, words: str, line: str) -> None:
    out = folder.parent / "out"
    with pytest.raises(UserError, match=f"^{line}") as e:
        main(["figure", *words.format(folder=folder, out=out).split()])
    assert "\n" not in str(e.value)
    assert not out.exists()


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path, put: Put) -> None:
    three_arms(put)
    words = [sys.executable, "-m", "mammoth_sbs", "figure", "bars", str(folder), "-o", str(folder.parent / "out")]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert len(process.stderr.read().splitlines()) <= 1  # that nobody reads is said, and is no traceback


def test_a_kind_that_the_runs_do_not_fit_says_what_is_missing(folder: Path, put: Put) -> None:
    put("er", 0, 70.0)
    for kind, line in (("bars", "no method has two arms"), ("heatmap", "no runs of --sampler speed"),
                       ("samplers", "no column has two samplers")):
        with pytest.raises(UserError, match=f"^{kind}: {line}"):
            draw(kind, folder)


def test_latex_escapes_what_latex_would_read() -> None:
    text = output.latex(["a_b", "c"], [["5%", "1 & 2"]], frozenset({(0, 1)}))
    assert r"a\_b & c \\" in text
    assert r"5\% & \textbf{1 \& 2} \\" in text
    assert output.latex(["A-GEM", "-1.5 to -2"], [], frozenset()).count("$-$") == 2  # a number's minus is no hyphen


def test_a_metric_has_figures_of_its_own_name_in_either_spelling(folder: Path, put: Put) -> None:
    three_arms(put)
    for spelling in ("average_incremental", "average-incremental"):
        out = draw("bars", folder, "--metric", spelling)
    assert sorted(file.name for file in out.iterdir()) == sorted(
        f"bars_{setting}_average_incremental.{kind}" for setting in ("task_il", "class_il")
        for kind in ("png", "svg", "csv", "md", "tex"))
    assert {row["metric"] for row in rows_of(out / "bars_task_il_average_incremental.csv")} == {"average_incremental"}


def test_a_metric_that_runs_did_not_measure_is_one_line(folder: Path, put: Put) -> None:
    three_arms(put)
    with pytest.raises(UserError, match="--enable_other_metrics 1"):
        draw("bars", folder, "--metric", "forward_transfer")
    assert not (folder.parent / "figures").exists()
