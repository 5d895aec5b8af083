"""A run's notes on itself, without any training: where it goes on, what it writes, what it says when it is stopped."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError

from utils import conf
from utils import run as run_module
from utils.run import Run

ONE, TWO = ([1.0], [2.0]), ([1.0, 3.0], [2.0, 4.0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of three tasks; its checkpoints are called c."""
    monkeypatch.setitem(conf._state, "checkpoint_path", str(tmp_path))

    def a_run(**more: Any) -> Run:
        args = Namespace(**{
            "model": "er", "dataset": "seq-x", "dataset_config": None, "buffer_size": 10, "n_epochs": 4, "seed": 3,
            "ckpt_name": "c", "savecheck": None, "resume": False, "loadcheck": None, "start_from": None,
            "stop_after": None, "enable_other_metrics": False, "disable_log": False, "optimizer": "sgd",
            "base_path": str(tmp_path), "results_path": "results", "command": "mammoth-sbs run --model er"} | more)
        model: Any = SimpleNamespace(net=torch.nn.Linear(3, 2))
        dataset: Any = SimpleNamespace(N_TASKS=3, SETTING="class-il", N_CLASSES=6, input_shape=(1, 2, 2))
        return Run(model, dataset, args)

    return a_run


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls of a function of the module, which does nothing more."""

    def noted(name: str, answer: Any = None, on: Any = run_module) -> list[Any]:
        calls: list[Any] = []

        def call(*given: Any, **named: Any) -> Any:
            calls.append((*given, named) if named else given)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(on, name, call)
        return calls

    return noted


def state(tasks: int, inside: Any = None, **more: Any) -> dict[str, Any]:
    return {"results": [ONE, TWO][:tasks], "seconds": 50.0, "tasks_done": tasks, "during": [{"task": 1}],
            "ahead": ["a"], "inside": inside, "run": "old", **more}


def test_a_new_run_has_done_nothing(a_run: Any, clock: SimpleNamespace) -> None:
    run = a_run()
    clock.now = 103.5
    assert (run.first, run.end, run.ahead, run.leg, run.saved, run.inside) == (0, 3, None, 0, "", None)
    assert run.seconds == 3.5
    assert len(run.id) > 8 and run.id != a_run().id
    run = a_run(start_from=2, stop_after=7, enable_other_metrics=True)
    assert (run.first, run.end, run.ahead) == (2, 3, []) and a_run(stop_after=2).end == 2


# ---- where it goes on


@pytest.fixture
def going_on(a_run: Any, noted: Any) -> Any:
    """Finds `found`; notes what it restores, and that it tries the places."""

    def going_on(found: Any, **more: Any) -> tuple[Run, list[Any], list[Any]]:
        run = a_run(**more)
        noted("find", found, run)
        return run, noted("restore"), noted("try_places", on=run)

    return going_on


def finished(run: Run, text: str = '{"a": 1}') -> Path:
    file = run.file("old")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_without_a_checkpoint_it_begins_at_the_beginning(going_on: Any) -> None:
    run, restored, tried = going_on(None)
    own = run.id
    assert run.prepare() is None and not restored and tried == [()]
    assert (run.first, run.results, run.id, run.inside) == (0, [], own, None)


def test_a_checkpoint_says_what_is_done(going_on: Any, clock: SimpleNamespace) -> None:
    for other_metrics in (True, False):
        found = state(1)
        run, restored, tried = going_on(found, enable_other_metrics=other_metrics)
        clock.now += 2.0
        assert run.prepare() is None and restored == [(found, run.model)] and tried == [()]
        assert (run.first, run.results, run.during, run.id, run.inside) == (1, [ONE], [{"task": 1}], "old", None)
        assert run.seconds == 52.0 and run.ahead == (["a"] if other_metrics else None)


def test_a_place_within_a_task_is_kept_until_the_task_comes(going_on: Any) -> None:
    found = state(1, {"leg": 0, "epochs": 2})
    run, *_ = going_on(found)
    assert run.prepare() is None and run.inside is found


def test_of_a_run_that_has_a_result_a_longer_one_gets_its_own(going_on: Any) -> None:
    for resume in (True, False):
        run, _, tried = going_on(state(1), resume=resume)
        own = run.id
        finished(run)
        assert run.prepare() is None and run.id == own and tried == [()]


def test_what_is_finished_is_read(going_on: Any, capsys: pytest.CaptureFixture) -> None:
    run, _, tried = going_on(state(2), resume=True, stop_after=2)
    file = finished(run)
    assert run.prepare() == {"a": 1} and not tried
    assert capsys.readouterr().out == f"finished already; result file: {file}\n"
    file.write_text("{")
    with pytest.raises(UserError, match=f"^{file}: not JSON; remove it, and the same command writes it again$"):
        run.prepare()


def test_all_tasks_without_a_result_are_still_to_be_written_down(going_on: Any) -> None:
    for resume in (True, False):
        run, _, tried = going_on(state(2), resume=resume, stop_after=2)
        assert run.prepare() is None and tried == [()] and run.id == "old"


def test_nothing_to_do_is_said(going_on: Any) -> None:
    cases: list[tuple[Any, bool, dict[str, int], int, int]] = [
        (state(2), False, {"stop_after": 1}, 3, 1), (None, False, {"start_from": 3}, 4, 3),
        (None, False, {"start_from": 2, "stop_after": 1}, 3, 1), (state(2), True, {"stop_after": 2}, 3, 2)]
    for found, has_result, flags, task, end in cases:
        run, _, tried = going_on(found, **flags)
        if has_result:
            finished(run)
        says = f"^nothing to do: the run would start at task {task} and stop after task {end};"
        with pytest.raises(UserError, match=says):
            run.prepare()
        assert not tried


def test_going_back_forgets_what_comes_after(going_on: Any) -> None:
    found = state(2, during=[{"task": 1}, {"task": 2}, {"task": 3}], ahead=["a", "b"])
    run, *_ = going_on(found, start_from=1, enable_other_metrics=True)
    assert run.prepare() is None
    assert (run.first, run.results, run.during, run.ahead) == (1, [ONE], [{"task": 1}], ["a"])
    run, *_ = going_on(found, start_from=0)
    assert run.prepare() is None and (run.first, run.results, run.during, run.ahead) == (0, [], [], None)
    run, *_ = going_on(state(1, {"leg": 0, "epochs": 1}), start_from=0)
    with pytest.raises(UserError, match="^--start_from 0: the checkpoint is from within task 2 and goes on there"):
        run.prepare()


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: Any) -> Any:
    """Checkpoints by name; notes those that are read."""

    def saved(**states: Any) -> tuple[list[str], list[Any]]:
        read: list[str] = []

        def read_checkpoint(file: Path, flag: str = "--loadcheck") -> Any:
            read.append(file.stem)
            found = states.get(file.stem, UserError(f"{flag} {file.name}: no such file"))
            if isinstance(found, Exception):
                raise found
            return found

        for file in tmp_path.glob("*.pt"):
            file.unlink()
        for name in states:
            (tmp_path / f"{name}.pt").touch()
        monkeypatch.setattr(run_module, "read_checkpoint", read_checkpoint)
        return read, noted("check_same_run")

    return saved


def test_a_given_checkpoint_is_loaded_and_may_have_been_compiled_or_not(a_run: Any, noted: Any) -> None:
    loaded = noted("load_checkpoint", "state")
    assert a_run().find() is None and not loaded
    run = a_run(loadcheck="x.pt")
    assert run.find() == "state" and loaded == [("x.pt", run.args, {"may_differ": {"compile"}})]


def test_without_any_checkpoint_a_resumed_run_begins(a_run: Any, saved: Any, capsys: pytest.CaptureFixture) -> None:
    read, _ = saved()
    assert a_run(resume=True, loadcheck="x.pt").find() is None and not read and capsys.readouterr().out == ""


NEWEST: list[tuple[dict[str, Any], int | None, str, str, str]] = [
    ({"c_last": state(1, {"leg": 0, "epochs": 3}), "c_0": state(1)}, None, "c_last", "1 task and 3 epochs", "last 0"),
    ({"c_last": state(1), "c_1": state(2), "c_0": state(1)}, None, "c_1", "2 tasks", "last 1"),  # no older one is read
    ({"c_last": state(2), "c_1": state(2), "c_0": state(1)}, None, "c_last", "2 tasks", "last 1 0"),  # no newer
    ({"c_last": state(2), "c_1": state(2), "c_0": state(1)}, 1, "c_0", "1 task", "last 1 0"),  # not beyond the end
    ({"c_last": state(2), "c_1": state(2)}, 2, "c_last", "2 tasks", "last 1")]


def test_the_newest_is_taken(a_run: Any, saved: Any, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    for states, stop_after, taken, says, reads in NEWEST:
        read, checked = saved(**states)
        run = a_run(resume=True, stop_after=stop_after)
        assert run.find() is states[taken] and read == [f"c_{name}" for name in reads.split()]
        assert run.saved == f"{tmp_path / f'{taken}.pt'} ({says})"
        assert capsys.readouterr().out == f"going on from {run.saved}\n"
        assert checked == [(states[name], run.args, f"--resume {tmp_path / f'{name}.pt'}", "give another --ckpt_name")
                           for name in read]


def test_a_damaged_one_costs_a_warning(a_run: Any, saved: Any, capsys: pytest.CaptureFixture) -> None:
    saved(c_last=UserError("--resume c: damaged; take another"), c_0=state(1))
    assert a_run(resume=True).find() == state(1)
    assert capsys.readouterr().out.startswith("warning: --resume c: damaged; going on without it\ngoing on from ")


# ---- what is tried first


def test_places_are_tried_and_others_checkpoints_spared(a_run: Any, noted: Any, capsys: pytest.CaptureFixture) -> None:
    tried = noted("try_to_write")
    run = a_run(disable_log=True)
    run.try_places()
    assert not tried
    run = a_run()
    run.try_places()
    assert tried == [(run.file(), "result file", "--base_path and --results_path", 100_000)]
    tried.clear()
    assert capsys.readouterr().out == ""
    for resume in (False, True):
        run = a_run(savecheck="last", resume=resume, disable_log=True)
        spared = noted("spare", on=run)
        run.try_places()
        assert spared == ([] if resume else [(file,) for file in run.checkpoints()])
        assert tried == [(run.checkpoint(), "checkpoint", "--checkpoint_path and --ckpt_name", run.size())]
        assert capsys.readouterr().out == "Saving checkpoint into: c\n"
        tried.clear()


def test_what_would_be_overwritten_has_to_be_of_this_run(a_run: Any, saved: Any, capsys: pytest.CaptureFixture) -> None:
    _, calls = saved(c_last=state(2), c_0=state(2))
    cases = [("task", "0", True), ("task", "last", True), ("last", "last", True), ("last", "0", False),
             ("epoch", "0", False), ("task", "1", False)]  # there is no such
    for (savecheck, name, checked), loadcheck in itertools.product(cases, (None, "x.pt")):
        run = a_run(savecheck=savecheck, loadcheck=loadcheck)
        file = run.checkpoint(name)
        run.spare(file)
        assert calls == ([(state(2), run.args, f"--savecheck would overwrite {file}", "give another --ckpt_name")]
                         if checked else [])
        note = f"note: {file} is of this run (2 tasks); --resume would go on from it\n"
        assert capsys.readouterr().out == (note if checked and loadcheck is None else "")
        calls.clear()


def test_names_without_a_buffer_and_room(a_run: Any) -> None:
    run = a_run(ckpt_name=None)
    assert run.name.startswith("er_seq-x_None_10_4_3_") and run.size() == 32 * 2 + 4 * (4 + 6 + 4) * 10 + 100_000
    del run.args.buffer_size
    assert run.name.startswith("er_seq-x_None_0_4_3_") and run.size() == 32 * 2 + 100_000


# ---- on the way


def test_the_trainings_of_a_task_before_the_checkpoint_are_passed_over(a_run: Any, noted: Any) -> None:
    run, restored = a_run(), noted("restore")
    assert run.begin_training("loader", "schedule") == 0 and run.leg == 1 and not restored
    found = state(1, {"leg": 1, "epochs": 3})
    run.inside, run.leg = found, 0
    assert run.begin_training("loader", "schedule") == 4 and run.leg == 1 and not restored and run.inside is found
    assert run.begin_training("loader", "schedule") == 3 and run.leg == 2 and run.inside is None
    assert restored == [(found, run.model, "loader", "schedule")]


def test_only_one_that_asks_for_it_saves_after_every_epoch(a_run: Any, noted: Any) -> None:
    for savecheck in ("epoch", "task", "last", None):
        run = a_run(savecheck=savecheck)
        run.leg = 2
        placed, saved = noted("place_in_task", "place"), noted("save", on=run)
        run.epoch_done(3, "loader", "schedule")
        assert placed == ([(run.model, "loader", "schedule", 3, 1)] if savecheck == "epoch" else [])
        assert saved == [("place",)] * len(placed)


def test_after_each_task(a_run: Any, noted: Any) -> None:
    for savecheck, saves in (("epoch", [1, 1, 1]), ("task", [1, 1, 1]), ("last", [0, 0, 1]), (None, [0, 0, 0])):
        for disable_log in (True, False):
            run = a_run(savecheck=savecheck, disable_log=disable_log)
            saved, written = noted("save", on=run), noted("write", on=run)
            noted("content", {"a": 1}, on=run)
            points = Path(f"{run.checkpoint('last')}.points.jsonl")
            for task in range(3):
                points.touch()
                run.leg = 2
                run.task_done(f"of {task}")
                assert len(saved) == saves[task] and run.leg == 0 and len(run.results) == task + 1
                assert points.exists() is (savecheck != "epoch")
                saved.clear()
            assert run.results == ["of 0", "of 1", "of 2"]
            assert written == ([] if disable_log else [({"a": 1, "unfinished": "1 of 3 tasks"},),
                                                       ({"a": 1, "unfinished": "2 of 3 tasks"},)])


def test_a_checkpoint_that_cannot_be_written_costs_a_warning(a_run: Any, noted: Any, clock: SimpleNamespace,
                                                             capsys: pytest.CaptureFixture) -> None:
    run = a_run(savecheck="task")
    run.results, run.during, run.ahead = [ONE, TWO], ["d"], ["a"]
    clock.now = 107.0
    noted("save_checkpoint", UserError("cannot write it; see there"))
    run.save()
    file = run.checkpoint("1")
    assert run.missing == {file: "cannot write it"} and run.saved == ""
    assert capsys.readouterr().out == "warning: cannot write it; the run goes on without it\n"
    inside = {"leg": 0, "epochs": 1}
    saved = noted("save_checkpoint")
    run.save(inside)
    assert saved == [(file, run.model, run.args, 2, [ONE, TWO],
                      {"inside": inside, "run": run.id, "seconds": 7.0, "during": ["d"], "ahead": ["a"]})]
    assert run.missing == {} and run.saved == f"{file} (2 tasks and 1 epoch)"
    run.save()  # and again
    assert run.saved == f"{file} (2 tasks)"


# ---- the end


def test_what_the_result_file_says(a_run: Any, noted: Any, clock: SimpleNamespace) -> None:
    run = a_run()
    clock.now = 111.0
    recorded, measured = noted("run_record", "record"), noted("metrics", "metrics")
    run.results, run.ahead = [ONE], ["a"]
    assert run.content() == "record" and recorded == [(run.args, "metrics", 11.0, {})]
    run.during = [{"epoch": 1}, {"step": 2}, {"epoch": 3}]
    run.model.run_info = lambda: {"sbs": 5, "test": 0}
    run.content({"test": 6})
    assert recorded[1][3] == {"sbs": 5, "eval_epochs": [{"epoch": 1}, {"epoch": 3}], "eval_steps": [{"step": 2}],
                              "test": 6}
    assert measured[1] == ([ONE], ["a"], run.during)


def test_until_all_is_done_the_file_is_marked(a_run: Any) -> None:
    run = a_run()
    assert run.write({"a": 1, "unfinished": "x"}) == run.marked and not run.file().exists()
    assert json.loads(run.marked.read_text()) == {"a": 1, "unfinished": "x"}
    assert run.write({"a": 2}) == run.file() and json.loads(run.file().read_text()) == {"a": 2}
    assert not run.marked.exists() and run.missing == {}


def test_a_result_that_cannot_be_written_goes_elsewhere_in_the_end(a_run: Any, noted: Any,
                                                                  capsys: pytest.CaptureFixture) -> None:
    run = a_run()
    elsewhere = noted("write_somewhere", (Path("there"), "it is there"))
    for error, says in ((UserError("no room; see there"), "no room"), (OSError("broken"), "broken")):
        noted("write_atomically", error)
        assert run.write({"unfinished": "x"}) == run.marked and not elsewhere
        assert capsys.readouterr().out == f"warning: {says}; the run goes on\n"
    assert run.write({"a": 2}) == Path("there") and run.missing == {Path("there"): "it is there"}
    assert [(call[0], call[2]) for call in elsewhere] == [(run.file(), "result file")]
    with pytest.raises(UserError, match="^the run is finished, but it is there$"):
        run.complain()
    run.missing.clear()
    noted("write_somewhere", (run.file(), None))
    assert run.write({"a": 2}) == run.file() and run.missing == {}
    run.complain()


def test_the_result_is_written_unless_nobody_wants_it(a_run: Any, noted: Any, capsys: pytest.CaptureFixture) -> None:
    for disable_log in (True, False):
        run = a_run(disable_log=disable_log)
        asked, written = noted("content", {"a": 1}, on=run), noted("write", "a file", on=run)
        assert run.finish({"test": 1}) == {"a": 1} and asked == [({"test": 1},)]
        assert written == ([] if disable_log else [({"a": 1},)])
        assert capsys.readouterr().out == ("" if disable_log else "\nresult file: a file\n")


def test_a_run_that_is_stopped_says_what_is_saved_and_how_to_go_on(a_run: Any) -> None:
    run, by = a_run(), KeyboardInterrupt()
    none = "there is no checkpoint to go on from; with --resume a run saves itself after every epoch"
    assert str(run.stopped(by)) == f"stopped in task 1 of 3: {none}" and run.stopped(by).status == 130
    run.marked.parent.mkdir(parents=True)
    run.marked.touch()
    run.results = [ONE, TWO]
    assert str(run.stopped(by)) == f"stopped in task 3 of 3: the results so far are in {run.marked}; {none}"
    run.saved = "x.pt (2 tasks)"
    assert str(run.stopped(by)) == (f"stopped in task 3 of 3; saved: x.pt (2 tasks), {run.marked}. "
                                    "To go on: mammoth-sbs run --model er --resume 1")
    run.results.append(ONE)
    assert str(run.stopped(by)).startswith("stopped; saved: x.pt")


def test_the_command_that_goes_on_has_no_other_place_to_go_on_from(a_run: Any) -> None:
    run = a_run(command="mammoth-sbs run --loadcheck 'my x.pt' --lr .1 --start_from 1 --seed 3 --resume 0 --model er")
    run.checkpoint().touch()  # the signal came with the first one
    assert str(run.stopped(KeyboardInterrupt())) == (
        f"stopped in task 1 of 3; saved: {run.checkpoint()}. "
        "To go on: mammoth-sbs run --lr .1 --seed 3 --model er --resume 1")
