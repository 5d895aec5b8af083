"""Which methods can be wrapped, from both sides of every rule, and what a wrapped one is told and asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.forward import ForwardIsCall
from mammoth_sbs.models.wrapped import AtTheEnd, EachStep, Way, listing, way_of, wrap
from tests.models.test_wrapped import Late, Toy

from models import REGISTERED_MODELS, register_model
from models.er import Er
from utils.buffer import Buffer, fill_buffer, icarl_replay
from utils.training import train


class NoLabels(Late):
    def end_task(self, dataset: Any) -> None:
        self.buffer.add_data(examples=dataset.train_loader.dataset.data)


class Filled(Late):
    def end_task(self, dataset: Any) -> None:
        fill_buffer(self.buffer, dataset, self.current_task)


class FilledElsewhere(Late):
    def end_task(self, dataset: Any) -> None:
        fill_buffer(Buffer(3), dataset, self.current_task)


class Mixed(Late):
    def begin_task(self, dataset: Any) -> None:
        icarl_replay(self, dataset)


class FilledTwice(Toy):
    def end_task(self, dataset: Any) -> None:
        fill_buffer(self.buffer, dataset, self.current_task)


class Nameless(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        loss = self.loss(self.net(inputs), labels)
        self.buffer.add_data(not_aug_inputs, labels)
        return loss.item()


class ImagesOnly(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        loss = self.loss(self(inputs), labels)
        self.buffer.add_data(examples=not_aug_inputs)
        return loss.item()


class Unlabelled(Toy):
    COMPATIBILITY = ["class-il", "cssl"]


class Curious(Toy):
    """Takes a field more, if there is one."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None, place: Any = None) -> float:
        return super().observe(inputs, labels, not_aug_inputs, epoch)


class Helped(Toy):
    """Its forward pass is in a function that its step calls."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, task_labels=labels)
        return self.step(inputs)

    def step(self, inputs: Any) -> float:
        return self.deeper(inputs)

    def deeper(self, inputs: Any) -> float:
        return float(self.net.forward(inputs).sum())


class Forwards(Toy):
    """As Mammoth's A-GEM: no hook would see its forward pass."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return self.loss(self.net.forward(inputs), labels).item()


class Sized(Toy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = Buffer(buffer_size=self.args.buffer_size, device=self.device)


class Crowded(Toy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = Buffer(self.args.buffer_size, self.device, "reservoir")


class Handed(Toy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = self.args.buffer


@pytest.mark.parametrize(("method", "says"), [
    (NoLabels, "its buffer holds no labels"), (Filled, "yes: filled at the end of a task"),
    (FilledElsewhere, "it fills its buffer neither in observe nor in end_task"),
    (Mixed, "it mixes its buffer into the data of a task"), (FilledTwice, "it fills its buffer both at every step and"),
    (Nameless, "it stores what it does not name, which only its own steps can make"),
    (ImagesOnly, "yes: filled at every step"), (Unlabelled, "it learns from examples without labels too"),
    (Helped, "yes: filled at every step, with labels, task_labels"), (Sized, "yes: filled at every step, with labels"),
    (Crowded, "its buffer has rules of its own: Buffer(self.args.buffer_size, self.device, 'reservoir')"),
    (Handed, "its buffer has rules of its own: self.args.buffer")])
def test_whether_it_can_be_wrapped(method: type, says: str) -> None:
    found = way_of(method)
    assert str(found) == says if says.startswith("yes: filled at the end") or says.endswith("step") else \
        str(found).startswith(says)
    assert isinstance(found, Way) is says.startswith("yes")


def test_fields_with_a_default_are_not_needed_and_an_sbs_model_is_one() -> None:
    class Plain(Toy):
        def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None, place: Any = None) -> float:
            self.buffer.add_data(examples=not_aug_inputs, labels=labels)
            return self.loss(self.net(inputs), labels).item()

    assert way_of(Plain) == Way(True, ("labels",))
    assert way_of(wrap("toy", Plain)) == "it is an _sbs model"
    assert str(Way(False, ("labels", "logits"))) == "yes: filled at the end of a task, with labels, logits"


def test_a_buffer_of_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Buffer", type("Buffer", (Buffer,), {}))
    assert way_of(Filled) == "its buffer is of a kind of its own" and isinstance(way_of(Late), Way)


def test_what_is_made_of_a_method() -> None:
    made = wrap("my-method", Forwards)
    assert made.__bases__ == (ForwardIsCall, EachStep, Forwards)
    assert (made.__name__, made.NAME, made.stock, made.stores) == (
        "ForwardsSbs", "my_method_sbs", "my_method", ("labels",))
    assert sys.modules["models.my-method-sbs"] is sys.modules["models.my_method_sbs"] is sys.modules[__name__]
    assert wrap("late", Late).__bases__ == (AtTheEnd, Late) and wrap("toy", Toy).__bases__ == (EachStep, Toy)


def test_the_list_is_sorted_and_names_what_does_not_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "broken_one.py").write_text("self.buffer = Buffer(3)")
    (tmp_path / "other.py").write_text("nothing of that kind")
    monkeypatch.setattr(sys.modules["models"], "__file__", str(tmp_path / "__init__.py"))
    known: dict[str, Any] = {"toy": Toy, "broken-one": ImportError("no x"), "other": ImportError("no y"),
                             "made-sbs": wrap("toy", Toy), "er": Er, "er-sbs": wrap("er", Er)}
    assert list(listing(known)) == [("broken-one", "no: does not import (no x)"),
                                    ("toy", "yes: filled at every step, with labels, logits")]


# ---- in a run

@pytest.fixture
def run(start: Callable[..., SimpleNamespace]) -> Iterator[Callable[..., Any]]:
    def run(method: type, flags: str = "--stop_after 1") -> Any:
        register_model("toy_sbs")(wrap("toy", method))
        it = start("toy_sbs", f"--train_per_class 20 --n_tasks 2 --disable_log 1 --buffer_size 40 {flags}")
        train(it.model, it.dataset, it.args)
        return it

    yield run
    REGISTERED_MODELS.pop("toy-sbs", None)


def test_a_step_is_handed_the_epoch_and_the_fields_that_it_takes(run: Callable[..., Any]) -> None:
    told: list[tuple[Any, ...]] = []

    class Telling(Toy):
        def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> Any:
            told.append((epoch, len(inputs)))
            assert not torch.equal(inputs, not_aug_inputs)  # one is normalised
            loss = self.loss(self.net(inputs), labels)
            self.buffer.add_data(examples=not_aug_inputs, labels=labels)
            return {"loss": loss.item()}  # as some of Mammoth's methods do

    it = run(Telling)
    assert {epoch for epoch, _ in told} == {0, 1} and sum(n for _, n in told) == 2 * 100
    assert it.model.speed is None and len(it.model.buffer) == 40 and it.model.stores == ("labels",)


@pytest.mark.parametrize(("method", "says"), [
    (Toy, "inserts at every step, and stores labels, logits"), (Late, "fills at the end of a task, and stores labels")])
def test_what_it_stores_is_said_when_the_first_task_has_ended(run: Callable[..., Any], method: type, says: str,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ("--stop_after 1", "--stop_after 2"):
        run(method, flags)
        assert capsys.readouterr().out.count(f"toy_sbs: toy {says} with an image") == 1


def test_while_a_task_is_learned_the_buffer_is_closed_or_as_the_method_has_it(run: Callable[..., Any]) -> None:
    lengths: dict[str, list[int]] = {"closed": [], "stock": []}
    for during, found in lengths.items():
        class Watching(Toy):
            def keep(self, *batch: Any, found: list[int] = found) -> None:
                found.append(len(self.buffer))

        it = run(Watching, f"--stop_after 1 --sbs-during {during}")
        assert "add_data" not in vars(it.model.buffer) and len(it.model.buffer) == 40
    assert set(lengths["closed"]) == {0} and max(lengths["stock"]) == 40


class Silent(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        if epoch is None:
            self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return self.loss(self.net(inputs), labels).item()


class Backwards(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return self.loss(self.net(inputs.flip(0)), labels).item()


class Lazy(Late):
    """Stores of the first task only."""

    def end_task(self, dataset: Any) -> None:
        if self.current_task == 0:
            self.buffer.add_data(examples=dataset.train_loader.dataset.batch(torch.arange(4))[2],
                                 labels=dataset.train_loader.dataset.targets[:4])


@pytest.mark.parametrize(("method", "says"), [
    (Silent, "--model toy_sbs: it inserted nothing during a task, so toy cannot be wrapped; take the stock method"),
    (Backwards, "--model toy_sbs: a training step made no forward pass on its batch"),
    (Lazy, "--model toy_sbs: its buffer holds nothing of a task that has ended, so toy cannot")])
def test_what_comes_out_while_it_runs_is_one_line(run: Callable[..., Any], method: type, says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(method, "--stop_after 2")
