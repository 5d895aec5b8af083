"""Wrapped methods, part by part: how their code is read, and what one of them is told, may store and is asked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.quota import ClassQuota
from mammoth_sbs.models.wrapped import AtTheEnd, EachStep, Way, calls, is_plain, lineage, sources, steps, way_of, wrap
from mammoth_sbs.models.xder import Announced
from tests.models.test_wrapped import Late, Toy

from models import REGISTERED_MODELS, register_model
from models.utils.continual_model import ContinualModel
from utils.buffer import Buffer

# ---- reading

@pytest.mark.parametrize(("made", "plain"), [
    ("Buffer(3)", True), ("Buffer(3, 'cpu')", True), ("Buffer(buffer_size=3, device='cpu')", True), ("Buffer()", True),
    ("Buffer(3, 'cpu', 'ring')", False), ("Buffer(3, strategy='ring')", False),
    ("Buffer(3, device='cpu', strategy='ring')", False), ("Ring(3)", False), ("Ring(3, 'cpu', 'x')", False),
    ("self.args.buffer", False)])
def test_which_buffers_are_plain(made: str, plain: bool) -> None:
    (node,) = ast.parse(made).body
    assert isinstance(node, ast.Expr) and is_plain(node.value) is plain


class Ringed(Toy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = Ring(3)  # type: ignore[name-defined]  # noqa: F821


class Twice(Toy):
    """Names what it stores the first time only."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        self.buffer.add_data(self.net(inputs))
        return 0.0


class Spread(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=self.net(inputs), **{"labels": labels})
        return 0.0


class InBoth(Toy):
    """Two calls that store other things; and functions that call each other."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, task_labels=labels)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return self.one(inputs)

    def one(self, inputs: Any) -> float:
        return self.other(inputs)

    def other(self, inputs: Any) -> float:
        return self.one(inputs) if inputs is None else float(self.forward(inputs).sum())


@pytest.mark.parametrize(("method", "says"), [
    (Ringed, "its buffer has rules of its own: Ring(3)"),
    (Twice, "it stores what it does not name, which only its own steps can make"),
    (Spread, "it stores what it does not name, which only its own steps can make"),
    (InBoth, Way(True, ("labels", "task_labels")))])
def test_what_is_read_of_a_method(method: type, says: str | Way) -> None:
    assert way_of(method) == says


def test_of_functions_the_nearest_counts_and_a_step_is_all_that_it_calls() -> None:
    found = sources(InBoth)
    assert lineage(InBoth) == [InBoth, Toy] and {"observe", "one", "other", "keep", "end_task"} <= found.keys()
    assert "self.one(inputs)" in ast.unparse(found["observe"])
    code = steps(found)
    assert code.count("def observe") == code.count("def one") == code.count("def other") == 1
    assert "def keep" not in code and "def end_task" not in code
    assert len(calls(found["observe"], "self.buffer.add_data")) == 2 and calls(None, "self.buffer.add_data") == []
    assert lineage(ContinualModel) == []


# ---- steps

@pytest.fixture
def made(start: Callable[..., SimpleNamespace]) -> Iterator[Callable[..., SimpleNamespace]]:
    """The `_sbs` model of a method, at the beginning of a task; `batch` is of it, with places."""

    def made(method: type, flags: str = "", task: int = 0) -> SimpleNamespace:
        register_model("toy_sbs")(wrap("toy", method))
        it = start("toy_sbs", f"--train_per_class 4 --n_tasks 2 --buffer_size 12 {flags}")
        for _ in range(task + 1):
            it.dataset.get_data_loaders()
        it.model._current_task = task
        it.model.meta_begin_task(it.dataset)
        it.data = it.dataset.train_loader.dataset
        it.batch = it.data.batch(torch.arange(3, 9))
        return it

    yield made
    REGISTERED_MODELS.pop("toy-sbs", None)


class Told(Toy):
    """Notes what its step is given, and stores nothing beside labels."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None, place: Any = None) -> Any:
        self.given = inputs, labels, not_aug_inputs, epoch, place
        self.net(inputs)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=None)
        return {"loss": 0.5}


class Timeless(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any) -> float:  # type: ignore[override]
        self.net(inputs)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return 0.25


def test_a_step_gets_its_batch_and_of_the_fields_those_that_it_takes(made: Callable[..., SimpleNamespace]) -> None:
    it = made(Told)
    inputs, labels, raw, places = it.batch
    assert it.model.observe(inputs, labels, raw, epoch=4, sbs_index=places, place="p", other="o") == 0.5
    assert all(a is b for a, b in zip(it.model.given, (inputs, labels, raw, 4, "p"), strict=True))
    it = made(Timeless)
    assert it.model.observe(inputs, labels, raw, epoch=4, sbs_index=places) == 0.25


def test_a_step_counts_its_batch_once_in_each_epoch(made: Callable[..., SimpleNamespace]) -> None:
    it = made(Timeless)
    it.model.hook.predict = lambda outputs: it.batch[1]
    for epoch in (None, 0, 1, 1, 2):  # no epoch is the first
        it.model.observe(*it.batch[:3], epoch=epoch, sbs_index=it.batch[3])
    n = len(it.data)
    assert it.model.speed.epochs == 3 and it.model.speed.count.tolist() == [0] * 3 + [3] * 6 + [0] * (n - 9)


@pytest.mark.parametrize("during", ["closed", "stock"])
def test_what_a_step_would_store_is_noted_and_stored_if_it_may(made: Callable[..., SimpleNamespace],
                                                               during: str) -> None:
    it = made(Told, f"--sbs-during {during}")
    assert it.model.seen is None and it.model.inserts_each_step
    it.model.observe(*it.batch[:3], epoch=0, sbs_index=it.batch[3])
    assert it.model.seen.keys() == {"examples", "labels"}  # what is None is not stored
    assert it.model.seen["examples"] is it.batch[2] and it.model.seen["labels"] is it.batch[1]
    assert len(it.model.buffer) == (6 if during == "stock" else 0) and "add_data" not in vars(it.model.buffer)
    if during == "stock":
        assert it.model.buffer.labels[:6].tolist() == it.batch[1].tolist()
    with pytest.raises(KeyError), it.model.watched():
        raise KeyError
    assert "add_data" not in vars(it.model.buffer)


# ---- ends of tasks

@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_the_methods_own_end_comes_once_and_after_the_buffer_is_filled(made: Callable[..., SimpleNamespace],
                                                                       epochs: int) -> None:
    it = made(Timeless)
    for epoch in range(epochs):
        it.model.observe(*it.batch[:3], epoch=epoch, sbs_index=it.batch[3])
    it.model.end_task(it.dataset)
    assert it.model.found_at_end == [12 if epochs else 0] and it.model.speed is it.model.hook is None
    assert len(it.model.run_info()["sbs"]["tasks"]) == bool(epochs)


def test_what_only_its_own_steps_can_make_is_refused_when_it_shows(made: Callable[..., SimpleNamespace]) -> None:
    it = made(Timeless)
    task = Task(it.data.targets, speed=torch.rand(len(it.data)))
    unknown = {"examples": 1, "maps": 2, "labels": 3, "heat": 4}
    for seen, says in ((None, "it inserted nothing during a task"), (unknown, "it stores heat, maps, which only its")):
        it.model.seen = seen
        with pytest.raises(UserError, match=f"^--model toy_sbs: {says}.*, so toy cannot be wrapped; take the stock"):
            it.model.fill(it.dataset, task)


@pytest.mark.parametrize("task", [0, 1])
def test_that_a_buffer_holds_what_the_method_would_have_put_there(made: Callable[..., SimpleNamespace], task: int,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    it = made(Toy, task=task)
    it.model.observe(*it.batch[:3], epoch=0, sbs_index=it.batch[3])
    it.model.stores = ()  # is found out
    capsys.readouterr()
    chosen = it.model.fill(it.dataset, Task(it.data.targets, speed=torch.rand(len(it.data))))
    assert len(chosen) == 12 and it.model.stores == ("labels", "logits")
    assert torch.equal(it.model.buffer.labels, it.data.targets[chosen])
    line = "toy_sbs: toy inserts at every step, and stores labels, logits with an image\n"
    assert capsys.readouterr().out == (line if task == 0 else "")  # it does the same at every other
    seen = it.model.seen
    for other in ({"examples": torch.zeros(6, 1, 8, 7)}, {"logits": torch.zeros(6)}, {"task_labels": it.batch[1]}):
        it.model.seen = {**seen, **other}
        with pytest.raises(UserError, match=r"it stores \{'examples': .* is what could be made, so toy cannot be"):
            it.model.check()


def test_at_the_end_a_method_is_handed_a_loader_that_announces(made: Callable[..., SimpleNamespace]) -> None:
    it = made(Late)
    chosen = torch.tensor([5, 1])
    loader = it.model.loader(it.data, chosen)
    assert type(loader) is Announced and loader.args is it.model.args and it.model.handed is chosen
    assert loader.source is it.data and loader.index is chosen and loader.batch_size == it.model.args.batch_size
    assert it.model.old_quota() == 0  # what it keeps is its own affair


def test_at_the_end_what_it_took_is_found_by_its_pictures(made: Callable[..., SimpleNamespace],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    it = made(Late, task=1)
    task = Task(it.data.targets, speed=torch.rand(len(it.data)), first_class=5)
    given: list[Any] = []
    monkeypatch.setattr(ClassQuota, "fill", lambda self, *args: given.append(args))  # which hands the chosen over
    first = int((it.data.targets == 5).nonzero()[0])
    it.model.handed = torch.tensor([first, 11, 7])
    for rows in ([first], [first, 7]):
        it.model.buffer = Buffer(12)
        it.model.buffer.add_data(torch.rand(2, 1, 8, 8), labels=torch.tensor([0, 4]))  # of the task before
        it.model.buffer.add_data(it.data.not_augmented(torch.tensor(rows)), labels=it.data.targets[rows])
        assert it.model.fill(it.dataset, task).tolist() == rows
    assert given == [(it.dataset, task)] * 2


@pytest.mark.parametrize(("old", "new", "says"), [
    ([0, 4], [9], "at the end of a task its buffer holds other examples than those it was handed"),
    ([], [9], "at the end of a task its buffer holds other examples than those it was handed"),
    ([0, 4], [], "its buffer holds nothing of a task that has ended")])
def test_at_the_end_what_it_was_not_handed_is_refused(made: Callable[..., SimpleNamespace], old: list[int],
                                                      new: list[int], says: str) -> None:
    it = made(Late, task=1)
    buffer = it.model.buffer
    for labels in (old, new):
        if labels:
            buffer.add_data(torch.rand(len(labels), 1, 8, 8), labels=torch.tensor(labels))
    with pytest.raises(UserError, match=f"^--model toy_sbs: {says}, so toy cannot"):
        it.model.found(it.data, Task(it.data.targets, first_class=5), torch.tensor([0, 1]))


@pytest.mark.parametrize("task", [0, 1])
def test_at_the_end_what_it_stores_is_said_once(made: Callable[..., SimpleNamespace], task: int,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    it = made(Late, task=task)
    it.model.buffer.add_data(it.data.not_augmented(torch.arange(2)), labels=it.data.targets[:2],
                             task_labels=torch.zeros(2, dtype=torch.int64))
    capsys.readouterr()
    found = it.model.found(it.data, Task(it.data.targets, first_class=5 * task), torch.tensor([2, 1, 0]))
    assert found.tolist() == [1, 0]
    line = "toy_sbs: toy fills at the end of a task, and stores labels, task_labels with an image\n"
    assert capsys.readouterr().out == (line if task == 0 else "")
    delattr(it.model.buffer, "labels")
    with pytest.raises(UserError, match="^--model toy_sbs: its buffer holds no labels, so toy cannot be wrapped"):
        it.model.found(it.data, Task(it.data.targets), torch.tensor([0]))


def test_what_is_made_of_a_method_is_of_its_way() -> None:
    assert issubclass(wrap("toy", Toy), EachStep) and issubclass(wrap("late", Late), AtTheEnd)
