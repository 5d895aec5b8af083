"""`examples/quickstart.ipynb`, cell by cell, as a notebook would execute it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import REPO


def test_every_cell_runs_and_shows_something(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((REPO / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and not any(cell.get("outputs") for cell in notebook["cells"])
    names: dict = {}
    said = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            said.append(capsys.readouterr().out)
    assert said[0].count("Task-IL") == 5 and "Class-IL" in said[1] and "SBS - uniform: " in said[3]
    assert "did you mean --buffer_size?" in said[4]
    assert names["result"].matrix.shape == (5, 5)
    assert [len(axis.patches) for axis in names["axes"]] == [7] * 5  # six bars and the band
    assert not list(tmp_path.iterdir())
