"""`mammoth_sbs.train`: a run from Python is the run of the command line, quietly."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs import Progress, UserError, train, watch
from tests.conftest import REPO

train_module = import_module("mammoth_sbs.experiments.train")

SMALL = {"dataset": "seq-digits", "buffer_size": 50, "n_epochs": 3, "train_per_class": 30, "stop_after": 3, "seed": 2}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_numbers_are_those_of_the_command_line(run: Callable[..., dict]) -> None:
    flags = "--buffer_size 50 --n_epochs 3 --train_per_class 30 --stop_after 3 --seed 2 --sbs-q 0.3 --lr 0.1"
    typed, result = run("derpp_sbs", flags), train("derpp_sbs", sbs_q=0.3, lr=0.1, **SMALL)
    for setting, found in (("class_il", result.class_il), ("task_il", result.task_il)):
        known = typed["results"][setting]
        assert [row[: i + 1].tolist() for i, row in enumerate(found.matrix)] == known["matrix"]
        assert (found.final, found.forgetting) == (known["final"], known["forgetting"])
        assert (found.average_incremental, found.backward_transfer, found.forward_transfer) == (
            known["average_incremental"], known["backward_transfer"], None)
        assert np.isnan(found.matrix[0, 1:]).all()
    assert result.matrix is result.task_il.matrix and result.record["sbs"] == typed["sbs"]
    assert [task.statistics for task in result.sbs] == typed["sbs"]["tasks"]
    assert result.args["seed"] == 2 and "--sbs-q 0.3" in result.command and result.seconds > 0
    assert str(result).startswith("Result(class_il=Accuracy(")
    assert not any(f", {name}=" in str(result) for name in ("sbs", "args", "record", "model"))  # fits a notebook's cell
    for one, other in zip(result.model.net.parameters(), typed["model"].net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_sbs_measured() -> None:
    result = train("er_sbs", **SMALL)
    assert [task.task for task in result.sbs] == [1, 2, 3]
    for task in result.sbs:
        assert len(task.speed) == len(task.labels) == len(task.indices) == 60
        assert task.speed.mean() == pytest.approx(task.statistics["speed_mean"])
        assert task.band is not None
        low, high = task.band.limits(task.speed)
        stored = task.speed[task.stored]
        assert low <= stored.min() and stored.max() <= high and len(stored) == task.statistics["stored"]
    assert train("er_sbs", sampler="uniform", **SMALL).sbs[0].band is None
    assert train("er", lr=0.1, **SMALL).sbs == []


def test_it_is_quiet_and_leaves_nothing_behind(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = list(sys.argv)
    state = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]
    train("er_sbs", sbs_q="auto", sbs_s=0.2, sbs_grid=[0, 0.2], **{**SMALL, "train_per_class": None, "stop_after": 1})
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == [] and sys.argv == argv
    assert torch.equal(state[0], torch.get_rng_state()) and random.getstate() == state[2]
    assert np.array_equal(state[1], np.random.get_state()[1])  # type: ignore[index]
    train("er_sbs", verbose=True, disable_log=False, **SMALL)
    said = capfd.readouterr()
    assert "Accuracy for 3 task(s)" in said.out and "SBS task 1" in said.out and "Task 3/5" in said.err
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_a_warning_is_one_of_pythons(recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]) -> None:
    train("er_sbs", **{**SMALL, "n_epochs": 1})
    assert any("learning speed is 0 or 1" in str(w.message) for w in recwarn) and capfd.readouterr().out == ""


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Progress] = []

    def progress(now: Progress) -> None:
        seen.append(now)
        if now.event == "task":
            print(f"{now.fraction:.2f}")  # the caller may print

    result = train("derpp_sbs", progress=progress, eval_epochs=2, **SMALL)
    assert capsys.readouterr().out == "0.33\n0.67\n1.00\n"
    steps, epochs, tasks = ([now for now in seen if now.event == event] for event in ("step", "epoch", "task"))
    assert (len(steps), len(epochs), len(tasks)) == (3 * 3 * 2, 3 * 3, 3)  # 60 images in batches of 32
    assert [(now.task, now.epoch, now.step) for now in steps[:3]] == [(1, 1, 1), (1, 1, 2), (1, 2, 3)]
    assert {(now.tasks, now.epochs, now.steps) for now in seen} == {(3, 3, 6)}
    fractions = [now.fraction for now in steps]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert epochs[0].loss == pytest.approx((steps[0].loss + steps[1].loss) / 2)
    assert epochs[2].train_accuracy == result.sbs[0].statistics["train_accuracy"]
    assert [now.class_il is not None for now in epochs[:3]] == [False, True, False]  # --eval_epochs 2
    for i, now in enumerate(tasks):
        assert now.task == i + 1 and now.task_il == result.matrix[i, : i + 1].tolist() and now.sbs is result.sbs[i]
        assert now.loss == epochs[3 * i + 2].loss


@pytest.mark.parametrize(("flags", "message"), [
    ({"model": "derp"}, "--model derp: not known; did you mean der"),
    ({"bufer_size": 3}, "unknown flag --bufer_size; did you mean --buffer_size"),
    ({"sbs_q": 20}, "--sbs-q: a number from 0 to 0.95, auto, rule or share is needed, not 20"),
    ({"buffer_size": None, "model": "er", "lr": 0.1}, "--buffer_size"),
    ({"lr": 1e30}, "the loss became"), ({"help": True}, "help is no flag")])
def test_mistakes_are_exceptions_of_one_class(flags: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        train(**{"model": "er_sbs", **SMALL, **flags})
    assert isinstance(error.value, Exception) and "\n" not in str(error.value)


def test_a_mistake_in_a_thread_is_seen() -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            train("derp", "seq-digits")
        except Exception as e:
            found.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[0], UserError)


def test_another_mammoth_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAMMOTH_ROOT", "/nowhere")
    with pytest.raises(UserError, match="unset MAMMOTH_ROOT"):
        train("er_sbs", **SMALL)


def test_a_module_of_a_hosts_name_is_named(tmp_path: Path) -> None:
    """Hugging Face has a package called datasets too."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").touch()
    code = ("import sys, datasets; from mammoth_sbs import UserError, train\n"
            "try:\n    train('er_sbs', 'seq-digits')\nexcept UserError as e:\n    sys.exit(f'caught: {e}')")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": f"{tmp_path}:{REPO}"})
    assert done.stderr.startswith(f"caught: a module called datasets is imported already ({tmp_path / 'datasets'})")


# ---- with a stand-in for the host

SETTING = {"final": 1.0, "average_incremental": 2.0, "forgetting": 3.0, "backward_transfer": 4.0}


def test_keywords_are_typed_as_flags_and_what_is_told_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[list[str]] = []
    told = [SimpleNamespace(sbs=None), SimpleNamespace(sbs="learned")]

    def run(*given: str) -> dict:
        assert given == ("model", "data", "args")
        for now in told:
            for watcher in watch.watchers():
                watcher(now)  # type: ignore[arg-type]
        torch.rand(3), np.random.rand(3), random.random()
        quiet.append(watch.is_quiet())
        return {"results": {"class_il": {"matrix": [[1.0]], **SETTING}, "task_il": {"matrix": [[9.0]], **SETTING}},
                "args": {"lr": 2}, "command": "a command", "wall_time": 7.0}

    stand_in = SimpleNamespace(parse_args=lambda words: typed.append(words) or "args",
                               initialize=lambda args: ("model", "data", args), train=run)
    monkeypatch.setattr(train_module, "load_host", lambda: stand_in)
    quiet: list[bool] = []
    seen: list[object] = []
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    found = train("er_sbs", "digits", progress=seen.append, lr=0.5, lr_milestones=[3, 5], sbs_grid=(0, 0.2),
                  joint=True, validation=False, buffer_size=None)
    assert torch.equal(state[0], torch.get_rng_state()) and random.getstate() == state[2]
    assert np.array_equal(state[1], np.random.get_state()[1])  # type: ignore[index]
    assert " ".join(typed[0]) == ("--model er_sbs --dataset digits --disable_log 1 --non_verbose 1 --lr 0.5 "
                                  "--lr_milestones 3 5 --sbs-grid 0 0.2 --joint 1 --validation 0")
    assert seen == told and found.sbs == ["learned"] and watch.watchers() == ()
    assert (found.class_il.matrix.tolist(), found.matrix.tolist()) == ([[1]], [[9]])
    assert (found.args, found.command, found.seconds, found.model) == ({"lr": 2}, "a command", 7, "model")
    assert found.record["wall_time"] == 7
    train("er", "digits", verbose=True, disable_log=False)
    assert typed[1] == ["--model", "er", "--dataset", "digits", "--disable_log", "0", "--non_verbose", "0"]
    assert quiet == [True, False]


def test_help_is_no_flag() -> None:
    with pytest.raises(UserError, match="help is no flag of a run"):
        train_module.in_words("help", True)


def test_a_run_that_began_later_has_more_columns_than_rows() -> None:
    found = train_module.accuracy({"matrix": [[1.0, 2.0], [3.0, 4.0, 5.0]], **SETTING, "anytime": 6.0, "other": 7.0})
    assert found.matrix.shape == (2, 3) and np.isnan(found.matrix[0, 2])
    assert found.matrix[0, :2].tolist() == [1, 2] and found.matrix[1].tolist() == [3, 4, 5]
    assert (found.final, found.average_incremental, found.forgetting, found.backward_transfer) == (1, 2, 3, 4)
    assert found.anytime == 6 and found.forward_transfer is None
