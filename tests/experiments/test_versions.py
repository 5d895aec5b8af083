"""Results of other code are told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import store as store_module
from mammoth_sbs.experiments.store import read_results, version
from tests.experiments.conftest import BASE


def test_results_of_other_code_are_told_apart(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er, seeds: 2}}"
    folder = do(text)
    file = next(folder.glob("*.json"))
    file.write_text(file.read_text().replace(version(), "0123456789ab-torch1.0"))
    with pytest.raises(UserError, match=r"out: holds results of other code: .*1 of 0123456789ab-torch1\.0.*"
                                        r"--accept-version 0123456789ab-torch1\.0"):
        do(text.replace("2", "3"))
    with pytest.raises(UserError, match="holds results of other code: 1 of .*, 1 of "):
        read_results(folder)
    assert len(read_results(folder, {version(), "0123456789ab-torch1.0"})) == 2
    capfd.readouterr()
    do(text, "--accept-version", "0123456789ab-torch1.0")
    assert "2 of 2 runs finished (2 before)" in capfd.readouterr().out
    file.write_text("{")
    with pytest.raises(UserError, match=f"{file}: not JSON; move it away"):
        do(text)


def test_what_changes_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a run executes does; the sweep's own code and what else lies about do not."""
    monkeypatch.setattr(store_module.mammoth_sbs, "__file__", str(tmp_path / "__init__.py"))

    def after(file: str) -> str:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        return version.__wrapped__()

    first = version.__wrapped__()
    assert after("experiments/new.py") == after("commands/new.py") == after("core/x.pyc") == first
    second = after("core/samplers/new.py")
    assert len({first, second, after("vendor/mammoth/models/config/er.yaml")}) == 3
