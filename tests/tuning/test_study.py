"""The study of docs/tune.md."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.conftest import REPO


def test_the_tables_of_the_study_come_out_of_its_committed_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script = SourceFileLoader("tune_study", str(REPO / "scripts" / "tune_study"))
    study = module_from_spec(spec_from_loader(script.name, script))
    script.exec_module(study)
    study.report(REPO / "results" / "tune" / "study.jsonl", tmp_path / "study")
    assert capsys.readouterr().out.strip() in (REPO / "docs" / "tune.md").read_text()
