"""`figure hosts`: the one place where runs of two hosts are put together."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.errors import UserError
from tests.figures.conftest import Record, record, rows_of, write

CODE = "0123456789ab-torch2.13.0-mammoth-e75a491c69fd"


def theirs(model: str, seed: int, task: float, **flags: object) -> Record:
    """A run on Mammoth: it fills in other flags than the embedded host does."""
    found = record(model, seed, task, host="mammoth", noise_type="symmetric", model_config="default", **flags)
    volatile = {**found["volatile"], "versions": {"host": "Mammoth e75a491c69fd"}}
    return {**found, "version": CODE, "volatile": volatile}


def two(tmp_path: Path, more_of_theirs: tuple[Record, ...] = (), **flags: object) -> tuple[Path, Path]:
    """Results of both hosts: ER and its _sbs model, three seeds."""
    values = {"er": [(60.0, 61.0), (62.0, 62.5), (61.0, 64.0)], "er_sbs": [(70.0, 69.0), (71.0, 72.0), (72.0, 70.0)]}
    ours = [record(model, seed, pair[0], model_config="best") for model, pairs in values.items()
            for seed, pair in enumerate(pairs)]
    other = [theirs(model, seed, pair[1], **flags) for model, pairs in values.items()
             for seed, pair in enumerate(pairs)]
    return write(tmp_path / "ours", *ours), write(tmp_path / "theirs", *other, *more_of_theirs)


def test_means_and_paired_differences_by_method_and_arm(tmp_path: Path) -> None:
    folders = two(tmp_path, more_of_theirs=(theirs("derpp", 0, 50.0),))  # what one host alone has is left out
    main(["figure", "hosts", *map(str, folders), "-o", str(tmp_path / "out")])
    rows = {(row["method"], row["arm"]): row for row in rows_of(tmp_path / "out" / "hosts_task_il.csv")}
    assert {method for method, _ in rows} == {"ER", "ER, SBS-fix", "pooled"}
    assert float(rows["ER", "embedded"]["mean"]) == 61.0
    assert float(rows["ER", "Mammoth e75a491c69fd"]["mean"]) == 62.5
    row = rows["ER", "embedded"]
    assert float(row["minus_Mammoth e75a491c69fd"]) == fmean([-1.0, -0.5, -3.0])  # seed by seed
    assert float(row["minus_Mammoth e75a491c69fd_standard_error"]) == pytest.approx(stdev([-1.0, -0.5, -3.0]) / 3**0.5)
    table = (tmp_path / "out" / "hosts_task_il.md").read_text()
    assert "| ER, SBS-fix |" in table and "embedded − Mammoth e75a491c69fd" in table


def test_what_is_not_comparable_is_refused(tmp_path: Path) -> None:
    ours, other = two(tmp_path, lr=0.3)
    with pytest.raises(UserError, match=r"CIFAR-10-2, ER: --lr is 0\.\d on .* and 0\.\d on .*; compare sweeps of one"):
        main(["figure", "hosts", str(ours), str(other), "-o", str(tmp_path / "out")])
    with pytest.raises(UserError, match="hosts: two folders with runs are compared, not 1"):
        main(["figure", "hosts", str(ours), "-o", str(tmp_path / "out")])
    with pytest.raises(UserError, match="holds results of other code"):  # any other figure
        main(["figure", "bars", str(ours), str(other), "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
