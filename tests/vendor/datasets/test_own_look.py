"""`mammoth-sbs data DIR`: what it shows of a user's own pictures."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mammoth_sbs.commands.data import main as data_command
from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import write
from tests.vendor.datasets.own import tree


def test_the_command_shows_what_a_run_would_find(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(base / "a", {"ant": 10, "bee": 5, "cat": 5, "dog": 5}, sizes=((30, 20), (8, 8)))
    data_command([str(base / "a"), "--size", "16", "--n_tasks", "2"])
    shown = capsys.readouterr().out
    for line in ("a folder tree, without a test split: 20 % of each class, drawn by seed 0",
                 "25 pictures, 8 x 8 to 30 x 20, resized to 16 x 16, the middle cut out", "ant 8 2",
                 "2 tasks:", "1: ant, bee", "2: cat, dog",
                 f"run: mammoth-sbs run --model er_sbs --dataset seq-folder --data {base / 'a'} --size 16 --n_tasks 2"):
        assert line in " ".join(shown.split()), line
    with pytest.raises(UserError, match="--n_tasks 3 does not divide the 4 classes; use one of 1, 2, 4"):
        data_command(["look", str(base / "a"), "--n_tasks", "3"])
    bad = write(base / "a" / "bee" / "9.png", b"no picture")
    capsys.readouterr()
    with pytest.raises(UserError, match="1 broken picture, see above; a run would stop at the first"):
        data_command([str(base / "a")])
    assert f"broken: {bad}: cannot identify image file" in capsys.readouterr().out
    with pytest.raises(UserError, match="--data nowhere: there is no such file or folder"):
        data_command(["nowhere"])


def test_the_run_that_the_command_names_can_be_pasted(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for domain in ("photo", "art"):
        tree(base / "my pictures" / domain, {"cat": 5, "dog": 5})
    data_command(["my pictures", "--base_path", str(base), "--domains", "folder", "--n_tasks", "3"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(last.partition("--dataset ")[2]) == [
        "seq-folder", "--data", "my pictures", "--domains", "folder", "--base_path", str(base)]


def test_the_command_says_what_it_leaves_out(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(base / "a", {"cat": 3, "dog": 3})
    for i in range(4):
        write(base / "a" / "cow" / f"{i}.heic", b"x")
    data_command([str(base / "a")])
    shown = capsys.readouterr().out
    assert "  4 files are no pictures: 0.heic, 1.heic, 2.heic, ...\n  class cow has none\n" in shown


def test_the_command_shows_domains(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for domain in ("photo", "art"):
        tree(base / "a" / domain, {"cat": 5, "dog": 5} if domain == "art" else {"cat": 5})
    data_command([str(base / "a"), "--domains", "folder"])
    shown = capsys.readouterr().out
    assert "2 tasks, a domain each, of the same 2 classes: art, photo" in shown
    assert "photo/dog 0 0 not there" in " ".join(shown.split())
