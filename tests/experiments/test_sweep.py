"""Sweeps: results are those of their commands, more points continue, failures leave the others alone."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments import store as store_module
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.experiments.store import read_results
from tests.conftest import mammoth_main
from tests.experiments.conftest import BASE, GOOD, content


def test_a_result_is_that_of_its_command(do: Callable[..., Path], tmp_path: Path) -> None:
    folder = do(f"{{base: {BASE} --model er_sbs, grid: {{sbs-q: [0.4, 0]}}, seeds: [3, 4]}}")
    records = read_results(folder).values()
    assert len({json.dumps(record["results"]) for record in records}) == 4
    for record in records:
        words = record["volatile"]["command"].removeprefix("mammoth-sbs run ").split()
        mammoth_main.main(mammoth_main.parse_args([*words, "--base_path", str(tmp_path / record["id"])]))
        (file,) = (tmp_path / record["id"]).rglob("*.json")
        assert json.loads(file.read_text())["results"] == record["results"]


def test_the_data_may_lie_elsewhere(do: Callable[..., Path], config: Callable[[str], Path], tmp_path: Path) -> None:
    text = f"{{base: {BASE} --model er --base_path nowhere}}"
    (run,) = resolve(read_config(config(text)))
    folder = do(text, "--base_path", str(tmp_path / "data"))
    record = read_results(folder)[run.id]  # the same run, wherever its data is
    assert f"--base_path {tmp_path / 'data'}" in record["volatile"]["command"]


def test_more_seeds_and_points_continue(do: Callable[..., Path], capfd: pytest.CaptureFixture) -> None:
    text = f"{{base: {BASE} --model er, grid: {{minibatch_size: [8]}}, seeds: 1}}"
    first = content(do(text))
    folder = do(text.replace("seeds: 1", "seeds: [0, 5]").replace("[8]", "[8, 16]"))
    assert len(content(folder)) == 4
    assert first.items() <= content(folder).items()
    out = capfd.readouterr()
    assert "4 of 4 runs finished (1 before)" in out.out
    assert re.search(r"^4/4 runs, 0:00:\d\d so far, about 0:00:00 left: --minibatch_size 16 --seed 5 finished", out.err,
                     re.M)


def test_a_failing_run_leaves_its_log_and_the_others_go_on(do: Callable[..., Path], tmp_path: Path,
                                                          capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        do(f"{{base: {BASE.replace('--lr 0.05', '')} --model er, grid: {{lr: [0.05, 1.0e+30, 0.06]}}}}")
    assert end.value.code == 1
    out = capfd.readouterr().out
    (log,) = (tmp_path / "out").glob("*.log")
    assert "2 of 3 runs finished" in out and "1 failed:\n  --lr 1.0e+30 --seed 0: the loss became" in out
    assert str(log) in out and "the loss became" in log.read_text()
    assert len(content(tmp_path / "out")) == 2


def test_files_of_a_run_have_its_name(do: Callable[..., Path], tmp_path: Path) -> None:
    text = f"base: {BASE} --model er_sbs --ckpt_name {{id}} --savecheck last --checkpoint_path '{tmp_path}'\nseeds: 2"
    folder = do(text)
    assert {path.stem.removesuffix("_last") for path in tmp_path.glob("*.pt")} == \
        {path.stem for path in folder.glob("*.json")}


@pytest.mark.parametrize("model", ["er_sbs", "sgd"])
def test_a_record_is_part_of_a_finished_run(model: str, do: Callable[..., Path], tmp_path: Path,
                                            capfd: pytest.CaptureFixture) -> None:
    flags = BASE.replace("--buffer_size 50", "") if model == "sgd" else BASE
    text = f"base: {flags} --model {model} --sbs-record 'records/{{id}}.npz'\nseeds: 2"
    folder = do(text)
    before = content(folder)
    records = sorted((folder / "records").iterdir())
    assert [path.stem for path in records] == sorted(name.removesuffix(".json") for name in before)
    for path in records:
        assert before[f"{path.stem}.json"]["sbs_record"] == f"records/{path.name}"
        final = before[f"{path.stem}.json"]["results"]["task_il"]["matrix"][1][0]
        assert abs(100 * Record(path).known(1, 2, test=True).mean() - final) < 1e-9
    assert not list(tmp_path.glob("**/record.npz"))  # what it had on the way
    records[0].unlink()
    capfd.readouterr()
    do(text)
    assert "2 of 2 runs finished (1 before)" in capfd.readouterr().out
    assert records[0].exists() and content(folder) == before
    do(text.replace("--sbs-record 'records/{id}.npz'", ""))  # the same runs without their records
    assert "2 of 2 runs finished (2 before)" in capfd.readouterr().out


def test_two_sweeps_on_one_folder(do: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_FOR_LOCK", 0.2)
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="--results .*out: another sweep is writing there"):
            do(GOOD)
    do(GOOD)
