"""A run is known by what is in the files that it learns from, wherever they lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import png, write
from tests.vendor.datasets.own import picture, run, tree

from datasets.utils.content import code_of


def a_picture_more(top: Path) -> None:
    write(top / "cat" / "new.png", png(picture(True, 12, 12, 9)))


def another_size(top: Path) -> None:
    write(top / "cat" / "0.png", png(picture(True, 13, 12, 9)))


def another_name(top: Path) -> None:
    (top / "dog").rename(top / "cow")


def other_labels(top: Path) -> None:  # as many bytes as before
    (top / "labels.parquet").write_bytes(b"abd")


@pytest.fixture
def zoo(base: Path) -> Path:
    tree(base / "zoo", {"cat": 3, "dog": 2})
    (base / "zoo" / "labels.parquet").write_bytes(b"abc")
    return base / "zoo"


def test_the_same_files_elsewhere_are_the_same_data(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo, tmp_path / "copy")
    (tmp_path / "copy" / ".DS_Store").write_bytes(b"what a file manager leaves")
    assert code_of(tmp_path / "copy") == code_of(zoo)


@pytest.mark.parametrize("change", [a_picture_more, another_size, another_name, other_labels])
def test_other_files_are_other_data(zoo: Path, change: Callable[[Path], None]) -> None:
    before = code_of(zoo)
    change(zoo)
    assert code_of(zoo) != before


def test_a_run_does_not_go_on_with_other_pictures_or_another_order(base: Path) -> None:
    top = tree(base / "zoo", {name: 8 for name in ("ant", "bee", "cat", "dog")})
    order = base / "order.txt"
    order.write_text("cat\ndog\nant\nbee\n")
    flags = {"n_tasks": 2, "class_order": str(order), "checkpoint_path": str(base)}
    run("er_sbs", top, savecheck="task", ckpt_name="half", stop_after=1, **flags)
    go_on = {"loadcheck": str(base / "half_0.pt"), "start_from": None, **flags}
    result = run("er_sbs", top, **go_on)
    assert len(result.matrix) == 2
    order.write_text("dog\ncat\nant\nbee\n")
    with pytest.raises(UserError, match="class_order_code"):
        run("er_sbs", top, **go_on)
    order.write_text("cat\ndog\nant\nbee\n")
    a_picture_more(top)
    with pytest.raises(UserError, match="data_code"):
        run("er_sbs", top, **go_on)


def test_a_sweep_makes_runs_of_other_pictures_anew(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from mammoth_sbs.commands import main

    top = tree(base / "zoo", {name: 8 for name in ("ant", "bee", "cat", "dog")})
    config = tmp_path / "sweep.yaml"
    config.write_text(f"name: zoo\nbase:\n  model: sgd\n  dataset: seq-folder\n  data: zoo\n  base_path: {base}\n"
                      "  lr: .1\n  batch_size: 8\n  n_tasks: 2\n  backbone: mnistmlp\n  n_epochs: 1\nseeds: [0]\n")
    sweep = ["sweep", str(config), "--results", str(tmp_path / "results"), "--jobs", "1"]
    main(sweep)
    main([*sweep, "--dry-run"])
    assert "1 finished, 0 to do" in capsys.readouterr().out
    a_picture_more(top)
    main([*sweep, "--dry-run"])
    assert "0 finished, 1 to do" in capsys.readouterr().out
