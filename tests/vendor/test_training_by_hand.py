"""The loop over tasks, epochs and batches, with stand-ins for all that it calls: who is told what, and when."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mammoth_sbs import watch
from mammoth_sbs.errors import Interrupted, UserError
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK

from utils import training


@pytest.fixture
def told() -> list[Any]:
    """All that happened, in order."""
    return []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch, told: list[Any]) -> Any:
    """A function of the module that notes its arguments under its name, and does nothing more."""

    def noted(name: str, answer: Any = None, on: Any = training) -> None:
        def call(*given: Any, **named: Any) -> Any:
            told.append((name, *given, *([named] if named else [])))
            if isinstance(answer, BaseException):
                raise answer
            return answer.pop(0) if isinstance(answer, list) else answer

        monkeypatch.setattr(on, name, call)

    return noted


# ---- one task


class Bar:
    """In place of the progress that is shown."""

    def __init__(self, told: list[Any], title: str, total: int, silent: bool, note: str, done: int) -> None:
        told.append(("progress", title, total, silent, note, done))
        self.total, self.done, self.told = total, done, told
        self.bar = SimpleNamespace(clear=lambda: told.append("clear"))

    def step(self, loss: float) -> None:
        self.done += 1
        self.told.append(("shown", loss))

    def close(self) -> None:
        self.told.append("closed")


class Model:
    """In its second task. Its losses are given."""

    def __init__(self, told: list[Any], losses: Any, run: Any = None) -> None:
        self.told, self.losses, self.run = told, iter(losses), run
        self.device, self.current_task = torch.device("cpu"), 1
        self.opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        self.get_debug_iters = lambda: 2
        self.meta_begin_epoch = lambda epoch, dataset: told.append(("begin", epoch, dataset.NAME))
        self.meta_end_epoch = lambda epoch, dataset: told.append(("end", epoch, dataset.NAME))

    def meta_observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int, number: Tensor) -> Any:
        self.told.append((float(inputs), float(labels), float(not_aug_inputs), epoch, float(number),
                          self.opt.param_groups[0]["lr"]))
        self.opt.step()
        return next(self.losses)


class Loader(list):
    dataset = SimpleNamespace(extra_return_fields=("number",))


def dataset(steps: int) -> Any:
    return SimpleNamespace(NAME="d", N_TASKS=5, train_loader=Loader(
        tuple(torch.tensor(i + part) for part in (0.0, 0.25, 0.5, 0.75)) for i in range(steps)))


def arguments(**more: Any) -> Namespace:
    return Namespace(**{"n_epochs": 2, "debug_mode": False, "non_verbose": "quiet", "eval_steps": None, "lr": 0.1,
                        "eval_epochs": None, "lr_scheduler": None, "joint": 0, "stop_after": None,
                        "shared_first_task": None, "enable_other_metrics": False, "validation": None} | more)


@pytest.fixture
def one_task(monkeypatch: pytest.MonkeyPatch, told: list[Any], noted: Any) -> Any:
    monkeypatch.setattr(training, "Progress", lambda *given: Bar(told, *given))
    for name, answer in (("heed", None), ("print_mean_accuracy", None)):
        noted(name, answer)
    monkeypatch.setattr(training, "evaluate", lambda model, data: told.append("evaluate") or (
        [float(model.current_task)], [float(data.N_TASKS)]))
    monkeypatch.setattr(training, "tell", lambda event, model, data, args, *rest: told.append(
        ("tell", event, model.current_task, data.NAME, args.n_epochs, *rest)))

    def one_task(losses: Any, steps: int = 3, run: Any = None, given: Any = None, **flags: Any) -> float:
        return training.train_task(Model(told, losses, run), dataset(steps), arguments(**flags),  # type: ignore
                                   **(given or {}))

    return one_task


def test_every_step_is_taken_shown_and_told(one_task: Any, told: list[Any]) -> None:
    assert one_task([1.0, 2.0, 3.0, 4.0, 6.0, 8.0], lr_scheduler="multisteplr", lr_milestones=[1],
                    sched_multistep_lr_gamma=0.5) == 6.0  # the mean of the last epoch
    expected: list[Any] = [("progress", "Task 2/5", 6, "quiet", "", 0)]
    losses = iter([1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
    for epoch, rate in ((0, 1.0), (1, 0.5)):
        expected.append(("begin", epoch, "d"))
        for i in range(3):
            loss = next(losses)
            expected += [(i, i + 0.25, i + 0.5, epoch, i + 0.75, rate), ("heed",), ("shown", loss),
                         ("tell", "step", 1, "d", 2, epoch + 1, 3 * epoch + i + 1, 6, loss)]
        expected += [("end", epoch, "d"),
                     ("tell", "epoch", 1, "d", 2, epoch + 1, 3 * epoch + 3, 6, 2.0 + 4 * epoch, None)]
    assert told == [*expected, "closed"]


def seen(told: list[Any]) -> list[Any]:
    return [(note[3], int(note[0])) for note in told if isinstance(note, tuple) and len(note) == 6 and note[0] != "tell"
            and note[0] != "progress"]


def test_a_title_and_a_note_may_be_given_and_a_run_says_where_to_begin(one_task: Any, told: list[Any]) -> None:
    run = SimpleNamespace(begin_training=lambda loader, schedule: told.append(("from", len(loader), schedule)) or 1,
                          epoch_done=lambda done, loader, schedule: told.append(("done", done, len(loader), schedule)))
    assert one_task([3.0] * 3, run=run, given={"note": ", acc 5", "title": "Once more"}) == 3.0
    assert told[:2] == [("from", 3, None), ("progress", "Once more", 6, "quiet", ", acc 5", 3)]
    assert seen(told) == [(1, 0), (1, 1), (1, 2)] and ("done", 2, 3, None) in told
    run.begin_training = lambda loader, schedule: 2
    assert math.isnan(one_task([], run=run))  # all was done


def test_debugging_takes_a_few_steps_and_no_more_than_there_are(one_task: Any, told: list[Any]) -> None:
    one_task([1.0] * 4, debug_mode=True)
    assert seen(told) == [(0, 0), (0, 1), (1, 0), (1, 1)] and told[0][2] == 4
    told.clear()
    one_task([1.0] * 2, steps=1, debug_mode=True)
    assert seen(told) == [(0, 0), (1, 0)] and told[0][2] == 2


def gpu(*losses: float) -> list[Tensor]:
    """Losses that nobody looks at in every step."""
    return [torch.tensor(loss) for loss in losses]


DIVERGED: list[tuple[Any, int, int, str]] = [
    ([1.0, math.nan, 1.0], 3, 2, "nan"), ([math.inf], 3, 1, "inf"), ([1.7e308, 1.7e308], 3, 2, "inf"),  # the sum
    (gpu(1.0, math.nan, 1.0), 3, 3, "nan"), (gpu(*[math.nan] * 50), 60, 50, "nan"), (gpu(math.nan), 1, 1, "nan"),
    (gpu(1.0, -math.inf, 1.0), 3, 3, "-inf")]


def test_a_loss_that_is_no_number_ends_the_run_when_it_is_looked_at(one_task: Any, told: list[Any]) -> None:
    for losses, steps, taken, says in DIVERGED:
        told.clear()
        line = rf"^the loss became {says} in task 2, epoch 1: lower --lr \(now 0.1\); checkpoints of earlier tasks"
        with pytest.raises(UserError, match=line):
            one_task(losses, steps=steps)
        assert len(seen(told)) == taken and told[-1] == "closed"


def test_on_a_gpu_the_loss_that_is_shown_is_the_one_looked_at_last(one_task: Any, told: list[Any]) -> None:
    assert one_task(gpu(*map(float, range(120))), steps=120, n_epochs=1) == pytest.approx(59.5)
    shown = [note[1] for note in told if note[0] == "shown"]
    assert all(math.isnan(loss) for loss in shown[:49])
    assert shown[49:] == [49.0] * 50 + [99.0] * 20 + [119.0]


def test_accuracy_is_measured_every_so_many_steps(one_task: Any, told: list[Any]) -> None:
    during: list[Any] = []
    one_task([1.0] * 6, given={"during": during}, eval_steps=4)
    assert during == [{"task": 2, "step": 4, "class_il": [1.0], "task_il": [5.0]}]
    at = told.index("evaluate")
    assert told[at - 1] == ("shown", 1.0) and told[at + 1][:3] == ("tell", "step", 1)
    one_task([1.0] * 6, eval_steps=1, eval_epochs=1)  # nobody takes it
    one_task([1.0] * 6, given={"during": during})  # nobody asks for it
    assert told.count("evaluate") == 1


def test_accuracy_is_measured_every_so_many_epochs_but_the_last(one_task: Any, told: list[Any]) -> None:
    during: list[Any] = []
    one_task([1.0] * 6, steps=1, n_epochs=6, given={"during": during}, eval_epochs=2, joint=1)
    assert during == [{"task": 2, "epoch": done, "class_il": [1.0], "task_il": [5.0]} for done in (2, 4)]
    found = ([1.0], [5.0])
    at = told.index("evaluate")
    assert told[at - 1 : at + 3] == [("end", 1, "d"), "evaluate", "clear",
                                     ("print_mean_accuracy", found, 2, True, {"epoch": 2})]
    assert [note[-1] for note in told if note[:2] == ("tell", "epoch")] == [None, found, None, found, None, None]


# ---- who watches


def test_who_watches_is_told_where_the_run_stands() -> None:
    model: Any = SimpleNamespace(current_task=2, speed=SimpleNamespace(accuracy=0.75), learned="what")
    plain: Any = SimpleNamespace(current_task=2)
    data: Any = SimpleNamespace(N_TASKS=5)
    cases = ("step", 3, None, None), ("epoch", 3, 75.0, None), ("task", 2, None, "what")
    for event, task, accuracy, learned in cases:
        first: list[Any] = []
        second: list[Any] = []
        with watch.watched([first.append, second.append]):
            training.tell(event, model, data, arguments(stop_after=4), 1, 7, 9, 0.5, ([1.0], [2.0]))
        assert first == second == [
            watch.Progress(event, task, 4, 1, 2, 7, 9, 0.5, accuracy, [1.0], [2.0], learned)]  # type: ignore[arg-type]
        with watch.watched([first.append]):
            training.tell(event, plain, data, arguments(), 1, 7, 9, 0.5)
            training.tell(event, plain, data, arguments(stop_after=8), 1, 7, 9, 0.5)
        assert first[1] == first[2] == watch.Progress(event, task, 5, 1, 2, 7, 9, 0.5)
        training.tell(event, None, None, None, 1, 7, 9, 0.5)  # type: ignore[arg-type]  # nobody watches


# ---- the first task


@pytest.fixture
def first_task(noted: Any) -> Any:
    """A model in `run`, beside a shared task that may be there already."""

    def first_task(found: Any, run: Any, shared: Any, during: Any = None) -> tuple[Any, Any, Any, float]:
        noted("from_another_run", found)
        for name, answer in (("train_task", 0.5), ("restore", None), ("place_in_task", "place"),
                             ("save_checkpoint", None)):
            noted(name, answer)
        model, data = SimpleNamespace(run=run), SimpleNamespace(train_loader="loader")
        args = arguments(shared_first_task=shared)
        return model, data, args, training.learn_first_task(model, data, args, during)  # type: ignore[arg-type]

    return first_task


def test_a_first_task_that_nobody_shares_is_learned(first_task: Any, told: list[Any]) -> None:
    for run in (None, SimpleNamespace(inside=None, leg=0)):
        told.clear()
        during: list[Any] = []
        model, data, args, loss = first_task({}, run, None, during)
        assert loss == 0.5 and told == [("train_task", model, data, args, {"during": during})]


def test_a_shared_first_task_is_learned_and_saved(first_task: Any, told: list[Any], tmp_path: Path) -> None:
    for run, during in itertools.product((None, SimpleNamespace(inside=None, leg=0)), (None, [], ["d"])):
        told.clear()
        model, data, args, loss = first_task({}, run, str(tmp_path / "first.pt"), during)
        assert loss == 0.5 and told == [
            ("train_task", model, data, args, {"during": during}), ("place_in_task", model, "loader", None, 2),
            ("save_checkpoint", tmp_path / "first.pt", model, args, 0, [],
             {"inside": "place", "run": "", "seconds": 0.0, "during": during or [], "ahead": None})]


def test_a_shared_first_task_that_is_there_is_taken(first_task: Any, told: list[Any], tmp_path: Path) -> None:
    (tmp_path / "first.pt").touch()
    found: dict[str, Any] = {"during": ["e"]}
    for run in (None, SimpleNamespace(inside=None, leg=0)):
        for during in (None, ["d"]):
            told.clear()
            model, _, args, loss = first_task(found, run, str(tmp_path / "first.pt"), during)
            assert math.isnan(loss) and told == [("from_another_run", tmp_path / "first.pt", args),
                                                 ("restore", found, model, "loader")]
            assert during in (None, ["d", "e"]) and (run is None or run.leg == 1)


def test_a_run_that_is_within_the_task_goes_on_and_a_damaged_one_is_learned_again(first_task: Any, told: list[Any],
                                                                                 tmp_path: Path) -> None:
    (tmp_path / "first.pt").touch()
    first_task({"during": []}, SimpleNamespace(inside={"a": 1}, leg=0), str(tmp_path / "first.pt"))
    assert [note[0] for note in told] == ["train_task", "place_in_task", "save_checkpoint"]
    told.clear()
    first_task(None, None, str(tmp_path / "first.pt"))
    assert [note[0] for note in told] == ["from_another_run", "train_task", "place_in_task", "save_checkpoint"]


def test_a_first_task_that_cannot_be_shared_costs_a_warning(noted: Any, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    noted("train_task", 0.5)
    noted("place_in_task")
    noted("save_checkpoint", UserError("no room; see there"))
    model: Any = SimpleNamespace(run=None)
    data: Any = SimpleNamespace(train_loader=None)
    assert training.learn_first_task(model, data, arguments(shared_first_task=str(tmp_path / "x"))) == 0.5
    assert capsys.readouterr().out == "warning: no room; the run goes on without it\n"


def test_the_first_task_of_another_run_has_to_fit(noted: Any, told: list[Any], capsys: pytest.CaptureFixture) -> None:
    noted("read_checkpoint", "state")
    noted("check_same_run")
    file, args = Path("x.pt"), arguments()
    assert training.from_another_run(file, args) == "state"
    assert told == [("read_checkpoint", file, "--shared_first_task"),
                    ("check_same_run", "state", args, "--shared_first_task x.pt", "leave these flags out",
                     NOT_OF_THE_FIRST_TASK)]
    noted("read_checkpoint", UserError("damaged; take another"))
    assert training.from_another_run(file, args) is None
    assert capsys.readouterr().out == "warning: damaged; the task is learned again\n"


# ---- a run


class Run(SimpleNamespace):
    """From its first task to its third, unless told otherwise."""


@pytest.fixture
def a_run(told: list[Any]) -> Any:
    def a_run(args: Namespace, **more: Any) -> Any:
        model = SimpleNamespace(
            net=SimpleNamespace(train=lambda: told.append("train")), _current_task=None,
            meta_begin_task=lambda data: told.append(("begin", data is run.dataset, model._current_task)),
            meta_end_task=lambda data: told.append(("end", data is run.dataset)),
            meta_end_eval=lambda data, found: told.append(("eval", data is run.dataset, found)))
        data = SimpleNamespace(get_data_loaders=lambda: told.append("loaders"), train_loader=[0] * 7)
        run = Run(**{"model": model, "dataset": data, "args": args, "first": 0, "end": 3, "results": [], "ahead": None,
                     "during": ["d"], "prepare": lambda: None,
                     "task_done": lambda found: told.append(("done", found)) or run.results.append(found),
                     "finish": lambda info: ("record", info),
                     "stopped": lambda by: Interrupted(" here", by)} | more)
        return run

    return a_run


def test_a_run_is_prepared_shown_and_learned(monkeypatch: pytest.MonkeyPatch, noted: Any, told: list[Any],
                                             a_run: Any) -> None:
    board = SimpleNamespace(close=lambda: told.append("closed"))
    model: Any = SimpleNamespace(run=None)
    data: Any = SimpleNamespace()
    noted("evaluate_untrained", "untrained")
    noted("boards", (board,))
    monkeypatch.setattr(watch, "watched", lambda by: told.append(("watched", list(by))) or nullcontext())
    for other_metrics in (True, False):
        args = arguments(enable_other_metrics=other_metrics)
        run = a_run(args, end=2)
        runs = {(id(model), id(data), id(args)): run}
        monkeypatch.setattr(training, "Run", lambda *given, runs=runs: runs[tuple(map(id, given))])
        noted("learn", "record")
        told.clear()
        assert training.train(model, data, args) == "record" and model.run is run  # type: ignore[comparison-overlap]
        untrained = [("evaluate_untrained", model, args, 2)] if other_metrics else []
        assert told == [*untrained, ("boards", args), ("watched", [board]),
                        ("learn", run, "untrained" if other_metrics else []), "closed"]
        noted("learn", KeyboardInterrupt())
        told.clear()
        with pytest.raises(Interrupted, match="^stopped here$"):
            training.train(model, data, args)
        assert told[-1] == "closed"
        run.prepare = lambda: {"a": 1}  # finished already
        told.clear()
        assert training.train(model, data, args) == {"a": 1} and told == untrained


@pytest.fixture
def learning(noted: Any) -> None:
    found = [([10.0 * k], [10.0 * k + 1]) for k in range(1, 9)]
    losses = [0.25, 0.125, 0.0, 0.0]
    for name, answer in (("evaluate", found), ("learn_first_task", 0.5), ("train_task", losses), ("tell", None),
                         ("print_mean_accuracy", None), ("print_table", None), ("print_metrics", None),
                         ("metrics", "metrics"), ("evaluate_on_test", ([70.0], [80.0]))):
        noted(name, answer)


def test_tasks_are_learned_one_after_the_other(learning: None, told: list[Any], a_run: Any,
                                              capsys: pytest.CaptureFixture) -> None:
    args = arguments()
    run = a_run(args)
    model, data = run.model, run.dataset
    assert training.learn(run, []) == ("record", {})
    rows = [([10.0], [11.0]), ([20.0], [21.0]), ([30.0], [31.0])]
    expected: list[Any] = ["train"]
    for task, (row, loss) in enumerate(zip(rows, (0.5, 0.25, 0.125), strict=True)):
        expected += ["loaders", ("begin", True, 0)]
        if task == 0:
            expected.append(("learn_first_task", model, data, args, ["d"]))
        else:
            expected.append(("train_task", model, data, args, f", acc {10 * task}.0", {"during": ["d"]}))
        expected += [("end", True), ("evaluate", model, data), ("eval", True, row),
                     ("print_mean_accuracy", row, task + 1, False), ("done", row),
                     ("tell", "task", model, data, args, 2, 14, 14, loss, row)]
    assert told == [*expected, ("print_table", rows), ("metrics", rows, None, ["d"]), ("print_metrics", "metrics")]
    assert capsys.readouterr().out == ""


def test_a_run_that_goes_on_begins_at_its_task(learning: None, told: list[Any], a_run: Any) -> None:
    run = a_run(arguments(joint=1), first=2, end=3, results=[([1.0], [1.0]), ([2.0, 4.0], [1.0, 1.0])])
    training.learn(run, [])
    assert told[:5] == ["train", "loaders", "loaders", "loaders", ("begin", True, 2)]
    assert told[5][0] == "train_task" and told[5][4] == ", acc 3.0"
    assert [note for note in told if note[0] == "print_mean_accuracy"] == [
        ("print_mean_accuracy", ([10.0], [11.0]), 3, True)]
    run = a_run(arguments(), first=1, end=2)  # of a run whose results are not known
    told.clear()
    training.learn(run, [])
    assert next(note for note in told if note[0] == "train_task")[4] == ""


def test_forward_transfer_looks_at_a_task_before_it_is_learned(learning: None, told: list[Any], a_run: Any,
                                                              capsys: pytest.CaptureFixture) -> None:
    run = a_run(arguments(enable_other_metrics=True), end=2, ahead=[])
    training.learn(run, ["u0", "u1"])  # type: ignore[list-item]
    assert run.ahead == [("u0", "u0"), (([20.0], [21.0]), "u1")]
    asked = [note for note in told if note[0] == "evaluate"]
    assert asked[1] == ("evaluate", run.model, run.dataset, {"last": True}) and len(asked) == 3
    assert ("metrics", run.results, run.ahead, ["d"]) in told and capsys.readouterr().out == ""
    run = a_run(arguments(enable_other_metrics=True), first=1, end=2, ahead=["a", "b"], results=[([1.0], [1.0])])
    training.learn(run, ["u0", "u1"])  # type: ignore[list-item]
    assert run.ahead == ["a", "b"]  # the checkpoint within the task has it already
    run = a_run(arguments(enable_other_metrics=True), first=1, end=2)
    training.learn(run, ["u0", "u1"])  # type: ignore[list-item]
    assert capsys.readouterr().out.startswith("forward transfer is not known: the checkpoint was saved without")


def test_after_validation_the_test_set_has_the_last_word(learning: None, told: list[Any], a_run: Any) -> None:
    args = arguments(validation=10.0, joint=1)
    run = a_run(args, first=1, end=2)
    assert training.learn(run, []) == ("record", {"test": {"class_il": [70.0], "task_il": [80.0]}})
    assert told[-2:] == [("evaluate_on_test", run.model, args, 2),
                         ("print_mean_accuracy", ([70.0], [80.0]), 2, True, "FINAL ")]


def test_the_untrained_network_and_the_test_set_are_asked_on_data_of_their_own(monkeypatch: pytest.MonkeyPatch,
                                                                              noted: Any, told: list[Any]) -> None:
    made: list[Namespace] = []
    data = SimpleNamespace(get_data_loaders=lambda: told.append("loaders"))
    monkeypatch.setattr(training, "get_dataset", lambda args: made.append(args) or data)
    noted("evaluate", ["a", "b", "c"])
    args, model = arguments(validation=10.0), SimpleNamespace()
    assert training.evaluate_untrained(model, args, 2) == ["a", "b"]  # type: ignore[arg-type]
    assert told == ["loaders", ("evaluate", model, data, {"last": True})] * 2 and made == [args]
    told.clear()
    assert training.evaluate_on_test(model, args, 2) == "c"  # type: ignore[arg-type, comparison-overlap]
    assert told == ["loaders", "loaders", ("evaluate", model, data)]
    assert made[1].validation is None and args.validation == 10.0 and made[1].lr == 0.1
