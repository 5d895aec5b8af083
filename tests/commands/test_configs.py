"""`mammoth-sbs configs`: what is listed, what is copied and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from tests.conftest import REPO


def test_every_file_says_what_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main(["configs"])
    lines = capsys.readouterr().out.splitlines()
    main(["configs", "list"])
    assert capsys.readouterr().out.splitlines() == lines and len(lines) > 20
    for line in lines:
        name, _, title = line.partition(" ")
        assert (REPO / name).is_file() and len(title.split()) > 5, line


def test_a_file_a_folder_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["configs", "copy", "configs/small/table1.yaml", "--to", str(tmp_path)])
    assert (tmp_path / "configs/small/table1.yaml").read_bytes() == (REPO / "configs/small/table1.yaml").read_bytes()
    main(["configs", "copy", "configs/small/", "--to", str(tmp_path)])
    small = {file.name for file in (REPO / "configs/small").iterdir()}
    assert {file.name for file in (tmp_path / "configs/small").iterdir()} == small
    main(["configs", "copy", "--to", str(tmp_path)])
    assert (tmp_path / "examples/plain_pytorch.py").is_file() and (tmp_path / "configs/paper/table1.yaml").is_file()
    assert str(tmp_path / "examples/plain_pytorch.py") in capsys.readouterr().out


def test_what_was_changed_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "configs/small/table1.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UserError, match=f"^{mine}: there is another file of that name"):
        main(["configs", "copy", "configs/small", "--to", str(tmp_path)])
    assert mine.read_text() == "mine" and [*mine.parent.iterdir()] == [mine]
    with pytest.raises(UserError, match=r"copy configs/smal: no such file or folder"):
        main(["configs", "copy", "configs/smal", "--to", str(tmp_path)])
