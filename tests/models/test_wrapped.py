"""`_sbs` models made on the fly: of methods that nobody here has seen before, or a line on why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.record import keys
from mammoth_sbs.models.wrapped import Way, listing, way_of, wrap

from models import REGISTERED_MODELS, register_model
from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer


class Toy(ContinualModel):
    """Replays labels and logits, inserts at every step, and counts its tasks."""

    NAME, COMPATIBILITY = "toy", ["class-il", "task-il"]
    get_parser = staticmethod(add_rehearsal_args)

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None) -> None:
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size, self.device)
        self.found_at_end: list[int] = []

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs, labels)
        loss.backward()
        self.opt.step()
        self.keep(not_aug_inputs, labels, outputs)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=outputs.data)
        return loss.item()

    def keep(self, *batch: Any) -> None:
        """Nothing, here."""

    def end_task(self, dataset: Any) -> None:
        self.found_at_end.append(len(self.buffer))


class Late(Toy):
    """Fills at the end of a task, with as many of each class as there is room for."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        return loss.item()

    def end_task(self, dataset: Any) -> None:
        room = self.args.buffer_size // self.n_tasks
        for _, labels, not_aug_inputs, *_ in dataset.train_loader:
            self.buffer.add_data(examples=not_aug_inputs[:room], labels=labels[:room])
            room -= len(labels[:room])


class Liar(Toy):
    """Stores logits that are not the network's outputs."""

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        loss = self.loss(self.net(inputs), labels)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=torch.ones(len(labels), 3))
        return loss.item()


class OwnChoice(Late):
    """Stores at the end what it wants, not what it is handed."""

    def end_task(self, dataset: Any) -> None:
        data = self.dataset.train_loader.dataset
        self.buffer.add_data(examples=data.not_augmented(torch.arange(20)), labels=data.targets[:20])


class NoForward(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return 0.0


class Attentive(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        maps = self.net(inputs)
        self.buffer.add_data(examples=not_aug_inputs, attention_maps=maps)  # type: ignore[call-arg]
        return 0.0


class Noisy(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, true_labels: Any) -> float:  # type: ignore
        return self.loss(self.net(inputs), true_labels).item()


class Choosy(Toy):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = Buffer(self.args.buffer_size, sample_selection_strategy="balanced")  # type: ignore[call-arg]


class Both(Toy):
    def end_task(self, dataset: Any) -> None:
        self.buffer.add_data(examples=dataset.train_loader.dataset.data)


class Without(Toy):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        return self.loss(self.net(inputs), labels).item()


@pytest.mark.parametrize(("method", "says"), [
    (Toy, "yes: filled at every step, with labels, logits"), (Late, "yes: filled at the end of a task, with labels"),
    (NoForward, "its steps make no forward pass"), (Attentive, "it stores attention_maps, which only its own steps"),
    (Noisy, "its steps need true_labels"), (Choosy, "its buffer has rules of its own: Buffer(self.args.buffer_size, s"),
    (Both, "it fills its buffer both at every step and at the end"), (Without, "it fills its buffer neither in obs"),
    (ContinualModel, "it has no buffer"), (ImportError("No module named x"), "does not import (No module named x)")])
def test_it_is_known_before_a_run_whether_a_method_can_be_wrapped(method: Any, says: str) -> None:
    assert str(way_of(method)).startswith(says)
    if not isinstance(way_of(method), Way):
        with pytest.raises(UserError, match=r"^--model toy_sbs: toy cannot be wrapped: "):
            wrap("toy", method)


def test_methods_with_a_buffer_are_listed() -> None:
    known: dict[str, Any] = {"toy": Toy, "choosy": Choosy, "plain": ContinualModel, "er": Toy, "er-sbs": Toy}
    found = dict(listing(known))
    assert found["toy"] == "yes: filled at every step, with labels, logits"
    assert found["choosy"].startswith("no: its buffer has rules") and {"plain", "er"}.isdisjoint(found)


@pytest.fixture
def wrapped(start: Callable[..., SimpleNamespace]) -> Iterator[Callable[..., Any]]:
    """The `_sbs` model of a method after a run of two tasks."""
    from utils.training import train

    def wrapped(method: type) -> Any:
        register_model("toy_sbs")(wrap("toy", method))
        it = start("toy_sbs", "--n_tasks 2 --disable_log 1 --sbs-q .3 --sbs-s .3 --buffer_size 60")
        it.learned = []
        report = it.model.report
        it.model.report = lambda *args: (report(*args), it.learned.append(it.model.learned))
        train(it.model, it.dataset, it.args)
        return it

    yield wrapped
    REGISTERED_MODELS.pop("toy-sbs", None)


@pytest.mark.parametrize("method", [Toy, Late])
def test_a_wrapped_method_stores_what_it_stores_of_the_band_alone(wrapped: Callable[..., Any], method: type,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    it = wrapped(method)
    buffer, parts = it.model.buffer, {"labels", "logits"} if method is Toy else {"labels"}
    assert {name for name in buffer.attributes if hasattr(buffer, name)} == {"examples", *parts}
    for learned in it.learned:
        low, high = learned.statistics["band"]
        speed = learned.speed[learned.stored]
        assert len(speed) and bool(((speed >= low) & (speed <= high)).all())
    last = it.dataset.train_loader.dataset
    in_buffer = set(keys(buffer.examples[: len(buffer)][buffer.labels[: len(buffer)] >= 5]))
    assert in_buffer == set(keys(last.not_augmented(it.learned[-1].stored)))
    said = f"toy_sbs: toy {'inserts at every step' if method is Toy else 'fills at the end of a task'}, and stores"
    assert f"{said} {', '.join(sorted(parts))} with an image" in capsys.readouterr().out
    if method is Toy:  # its own end_task comes after, and finds the buffer filled
        assert it.model.found_at_end == [60, 60]


@pytest.mark.parametrize(("method", "says"), [
    (Liar, r"it stores .*'logits': \(3,\).*is what could be made, so toy cannot be wrapped; take the stock method"),
    (OwnChoice, "at the end of a task its buffer holds other examples than those it was handed")])
def test_a_method_that_does_otherwise_is_stopped(wrapped: Callable[..., Any], method: type, says: str) -> None:
    with pytest.raises(UserError, match=says):
        wrapped(method)
