"""`--savecheck epoch` and `--resume`: a run that is killed after every epoch ends as one that was not, bit for bit."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import Interrupted, UserError
from tests.conftest import Start, mammoth_main
from tests.vendor.test_resume import METHODS, assert_same, flags

from utils import run as run_module
from utils.checkpoints import read_checkpoint
from utils.training import train


class Killed(BaseException):
    """As nothing in the program expects it."""


@pytest.fixture
def stumble(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """One command line, given again and again; each time the process dies when it has saved one checkpoint more."""

    def stumble(model: str, flags: str, steps: int = 1) -> dict[str, Any]:
        save, left, starts = run_module.save_checkpoint, 0, 0

        def save_and_die(*args: Any, **kwargs: Any) -> None:
            nonlocal left
            save(*args, **kwargs)
            left -= 1
            if not left:
                raise Killed

        before, it = set(tmp_path.rglob("*.json")), SimpleNamespace()
        monkeypatch.setattr(run_module, "save_checkpoint", save_and_die)
        while not (new := set(tmp_path.rglob("*.json")) - before):
            starts, left = starts + 1, steps
            it = start(model, f"{flags} --resume")
            try:
                train(it.model, it.dataset, it.args)
            except Killed:
                continue
        monkeypatch.setattr(run_module, "save_checkpoint", save)
        (file,) = new
        assert not list(tmp_path.rglob("*.unfinished"))
        return {**json.loads(file.read_text()), "model": it.model, "path": file, "starts": starts}

    return stumble


@pytest.mark.parametrize("model", METHODS)
def test_killed_after_every_epoch(model: str, run: Callable[..., dict], stumble: Callable[..., dict]) -> None:
    whole, killed = run(model, flags(model)), stumble(model, flags(model))
    # 3 tasks of 2 epochs and the end of each; at the end of the last, `joint` has another 2 epochs
    assert killed["starts"] == (12 if model == "joint" else 10)
    assert_same(whole, killed)


@pytest.mark.parametrize(("model", "more"), [
    ("der_sbs", "--sbs-during stock --optimizer adam"),
    ("er_sbs", "--sbs-during stock --lr_scheduler cosine"),
    ("derpp_sbs", "--sampler herding --sbs-scope seen --permute_classes 1"),
    ("derpp_sbs", "--sbs-score c-score"),
    ("agem_sbs", "--sbs-q auto --sbs-s auto --sbs-grid 0 .4 --sbs-tune each"),
    ("xder_sbs", "--sbs-q rule --sbs-s rule"),
    ("er", "--joint 1 --eval_epochs 1"),
    ("gem", "--eval_epochs 1 --enable_other_metrics 1"),
    ("fdr", "--validation 25"),
])
def test_killed_after_every_epoch_with_more_state(model: str, more: str, run: Callable[..., dict],
                                                  stumble: Callable[..., dict]) -> None:
    common = flags(model).replace("--lr_scheduler multisteplr", "") if "--lr_scheduler" in more else flags(model)
    whole, killed = run(model, f"{common} {more}"), stumble(model, f"{common} {more}")
    for record in (whole, killed):
        for task in record.get("sbs", {}).get("tasks", ()):
            for point in (task.get("choice") or {}).get("points", ()):
                point.pop("seconds", None)
    assert_same(whole, killed)
    for key in ("test", "eval_epochs"):
        assert whole.get(key) == killed.get(key)


@pytest.mark.parametrize(("model", "more", "steps"), [
    ("er_sbs", "--sbs-record-scores c-score", 1), ("er_sbs", "--sbs-record-every 2 --sbs-during stock", 1),
    ("fdr", "", 2), ("gem_sbs", "", 2)])
def test_the_record_goes_on_too(model: str, more: str, steps: int, run: Callable[..., dict],
                                stumble: Callable[..., dict], tmp_path: Path) -> None:
    """M of earlier tasks, their rows of later epochs, and which classes count in each."""
    files = [tmp_path / "whole.npz", tmp_path / "killed.npz"]
    run(model, f"{flags(model)} {more} --sbs-record {files[0]}")
    stumble(model, f"{flags(model)} {more} --sbs-record {files[1]}", steps)
    whole, killed = (Record(file).arrays for file in files)
    assert whole.keys() == killed.keys() and len(whole["task1_M"]) == (3 if "every" in more else 6)
    for name, value in whole.items():
        assert np.array_equal(value, killed[name]), name


def test_a_record_without_its_beginning_is_refused(run: Callable[..., dict], tmp_path: Path) -> None:
    common = f"{flags('er_sbs')} --stop_after 2 --savecheck task --ckpt_name a"
    run("er_sbs", common)
    record = tmp_path / "record.npz"
    for more in (f"--loadcheck {tmp_path / 'a_1.pt'} --sbs-record {record}", f"--resume --sbs-record {record}"):
        with pytest.raises(UserError, match=r"--sbs-record .* no record of what was before"):
            run("er_sbs", f"{flags('er_sbs')} --ckpt_name a {more}")
    run("er_sbs", f"{common} --sbs-record {record}")
    content = record.read_bytes()
    with pytest.raises(UserError, match="--sbs-record .* --start_from back to task 2"):
        run("er_sbs", f"{flags('er_sbs')} --loadcheck {tmp_path / 'a_1.pt'} --start_from 1 --sbs-record {record}")
    assert record.read_bytes() == content


def test_a_shared_first_task_without_m_is_refused_by_a_run_that_records(run: Callable[..., dict],
                                                                       tmp_path: Path) -> None:
    common = f"{flags('er_sbs')} --stop_after 1 --shared_first_task {tmp_path / 'first.pt'}"
    run("er_sbs", common)
    with pytest.raises(UserError, match="--sbs-record"):
        run("er_sbs", f"{common} --sbs-record {tmp_path / 'record.npz'}")


# ---- which checkpoint is the newest of this run


def stop_at(save_number: int, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = Killed) -> None:
    """The process ends when it has saved that many checkpoints."""
    save, saved = run_module.save_checkpoint, []

    def save_and_die(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        saved.append(1)
        if len(saved) == save_number:
            raise error

    monkeypatch.setattr(run_module, "save_checkpoint", save_and_die)


@pytest.mark.parametrize("how", ["task", "epoch"])
def test_killed_between_the_last_checkpoint_and_the_result(
        how: str, run: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("er_sbs", f"{flags('er_sbs')}")
    common = f"{flags('er_sbs')} --savecheck {how} --ckpt_name a"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_at(3 if how == "task" else 9, patch)
        run("er_sbs", common)
    (left,) = tmp_path.rglob("*.unfinished")
    assert json.loads(left.read_text())["unfinished"] == "2 of 3 tasks"
    last = tmp_path / ("a_2.pt" if how == "task" else "a_last.pt")
    finished = run("er_sbs", f"{flags('er_sbs')} --loadcheck {last}" if how == "task" else f"{common} --resume")
    assert_same(whole, finished)
    assert finished["path"] == left.with_suffix("")
    assert not left.exists()


def test_the_same_command_again_when_all_is_done(run: Callable[..., dict], start: Start,
                                                 capsys: pytest.CaptureFixture) -> None:
    done = run("er", f"{flags('er')} --resume")
    before = done["path"].read_bytes()
    it = start("er", f"{flags('er')} --resume")
    capsys.readouterr()
    train(it.model, it.dataset, it.args)
    assert f"finished already; result file: {done['path']}\n" in capsys.readouterr().out
    assert done["path"].read_bytes() == before
    done["path"].unlink()
    assert_same(done, run("er", f"{flags('er')} --resume"))  # from the checkpoint
    more = run("er", f"{flags('er')} --resume --stop_after 3 --results_path other")
    assert more["results"] == done["results"]


def test_resume_goes_on_from_the_most_advanced_that_is_whole(
        run: Callable[..., dict], start: Start, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole = run("er", flags("er"))
    run("er", f"{flags('er')} --savecheck task --ckpt_name a --stop_after 2")
    (tmp_path / "a_last.pt").write_bytes(b"PK\x03\x04 damaged")
    capsys.readouterr()
    assert_same(whole, run("er", f"{flags('er')} --resume --ckpt_name a"))
    said = capsys.readouterr()
    assert f"warning: --resume {tmp_path / 'a_last.pt'}: not a checkpoint, or a damaged one; " in said.out
    assert f"going on from {tmp_path / 'a_1.pt'} (2 tasks)\n" in said.out
    # an earlier end: the checkpoint of that task, not a later one
    assert len(run("er", f"{flags('er')} --resume --savecheck task --ckpt_name a --stop_after 1 --results_path other")
               ["results"]["class_il"]["matrix"]) == 1


def test_default_names_tell_runs_apart(run: Callable[..., dict], tmp_path: Path) -> None:
    for sampler in ("uniform", "herding"):
        run("er_sbs", f"{flags('er_sbs')} --stop_after 1 --savecheck last --sampler {sampler}")
    assert sorted(read_checkpoint(file)["args"]["sampler"] for file in tmp_path.glob("*_last.pt")) \
        == ["herding", "uniform"]
    run("er_sbs", f"{flags('er_sbs')} --stop_after 1 --savecheck last --sampler uniform --num_workers 3")
    assert len(list(tmp_path.glob("*_last.pt"))) == 2  # what does not make it another run is not in the name


@pytest.mark.parametrize("more", ["--resume", "--savecheck last"])
def test_a_checkpoint_of_another_run_is_neither_taken_nor_overwritten(more: str, run: Callable[..., dict],
                                                                      tmp_path: Path) -> None:
    run("er_sbs", f"{flags('er_sbs')} --stop_after 1 --savecheck last --ckpt_name a --sampler uniform")
    before = (tmp_path / "a_last.pt").read_bytes()
    with pytest.raises(UserError, match="a_last.pt: of another run: --sampler uniform there and herding here; give "
                                        "another --ckpt_name"):
        run("er_sbs", f"{flags('er_sbs')} {more} --ckpt_name a --sampler herding")
    assert (tmp_path / "a_last.pt").read_bytes() == before


@pytest.mark.parametrize(("line", "says"), [
    ("--resume --loadcheck x.pt", "no such file"), ("--resume --start_from 1 --seed 0", "--start_from"),
    ("--resume", "give --seed"), ("--resume 2 --seed 0", "--resume")])
def test_what_does_not_go_with_resume(line: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        mammoth_main.parse_args(f"--model sgd --dataset seq-digits --lr .1 {line}".split())


# ---- Ctrl-C and SIGTERM


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(run: Callable[..., dict], start: Start,
                                                    monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = run("der_sbs", f"{flags('der_sbs')}")
    it = start("der_sbs", f"{flags('der_sbs')} --savecheck epoch")
    with monkeypatch.context() as patch, pytest.raises(Interrupted) as caught:
        stop_at(5, patch, KeyboardInterrupt)  # the second epoch of the second task
        train(it.model, it.dataset, it.args)
    line = str(caught.value)
    assert caught.value.status == 130 and "\n" not in line
    found = re.fullmatch(r"stopped in task 2 of 3; saved: (\S+_last.pt) \(1 task and 1 epoch\), (\S+.json.unfinished)"
                         r"\. To go on: mammoth-sbs run (.*)", line)
    assert found, line
    args = mammoth_main.parse_args(shlex.split(found[3]))
    assert_same(whole, {**json.loads(Path(found[2]).read_text()), **again(args, tmp_path)})


def again(args: Any, tmp_path: Path) -> dict[str, Any]:
    before = set(tmp_path.rglob("*.json"))
    model, dataset, args = mammoth_main.initialize(args)
    train(model, dataset, args)
    (new,) = set(tmp_path.rglob("*.json")) - before
    return {**json.loads(new.read_text()), "model": model}


def test_ctrl_c_without_a_checkpoint_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    it = start("er", flags("er"))
    monkeypatch.setattr(type(it.model), "end_epoch", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted, match="^stopped in task 1 of 3: there is no checkpoint to go on from; with "
                                          "--resume"):
        train(it.model, it.dataset, it.args)
