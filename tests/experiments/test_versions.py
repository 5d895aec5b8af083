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


def test_a_run_on_a_users_own_mammoth_executes_more_and_names_its_commit(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module.mammoth_sbs, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "models").mkdir()
    found = []
    for content in ("one", "other"):
        (tmp_path / "models" / "wrapped.py").write_text(content)
        found.append(version.__wrapped__())
    with monkeypatch.context() as there:
        there.setattr(store_module.host, "root", lambda: tmp_path)
        there.setattr(store_module.host, "commit", lambda folder: f"of {folder.name}")
        found.append(version.__wrapped__())
        (tmp_path / "models" / "wrapped.py").write_text("one")
        found.append(version.__wrapped__())
    assert found[0] == found[1] and len(set(found)) == 3
    code, torch_release, *rest = found[2].split("-", 2)
    assert len(code) == 12 and torch_release.startswith("torch") and rest == [f"mammoth-of {tmp_path.name}"]
    assert found[0].count("-") == 1 and "+" not in found[0]
