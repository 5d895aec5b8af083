"""Any method that can be recorded: how it is made, what it tells its recorder, and what that makes of pictures."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mammoth_sbs import host
from mammoth_sbs.models.forward import ForwardIsCall
from mammoth_sbs.models.record import INDEX, Recorded, class_names, images_passed, keys, recorded
from tests.conftest import Start

from models.utils.continual_model import ContinualModel


class Stock(ContinualModel):
    NAME = "stock"

    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        return float(self.net(inputs).sum())


class Calling(Stock):
    def observe(self, inputs: Any, labels: Any, not_aug_inputs: Any, epoch: Any = None) -> float:
        return float(self.net.forward(inputs).sum())


def test_a_stock_method_is_extended_once_and_on_mammoth_its_passes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (Stock, Calling):
        made = recorded.__wrapped__(method)
        assert made.__bases__ == (Recorded, method) and made.__name__ == method.__name__
        assert recorded.__wrapped__(made) is made
    monkeypatch.setattr(host, "is_embedded", lambda: False)
    assert recorded.__wrapped__(Stock).__bases__ == (Recorded, Stock)
    assert recorded.__wrapped__(Calling).__bases__ == (ForwardIsCall, Recorded, Calling)


def test_flags_are_added_to_the_parser_that_a_method_makes() -> None:
    own = ArgumentParser()
    given = ArgumentParser()

    class Makes(Stock):
        get_parser = staticmethod(lambda parser: own)  # type: ignore[assignment]

    class Forgets(Stock):
        get_parser = staticmethod(lambda parser: None)  # type: ignore[assignment]

    for method, parser in ((Makes, own), (Forgets, given)):
        assert recorded.__wrapped__(method).get_parser(given) is parser
        assert "--sbs-record" in parser._option_string_actions
        assert ("--sbs-record" in given._option_string_actions) is (parser is given)


def test_a_method_tells_its_recorder_what_happens_and_when(start: Start) -> None:
    it = start("sgd", "--train_per_class 4 --n_epochs 2")
    model, told = it.model, []
    assert model.recorder is None and model.get_extra_state() == {"record": None}
    model.set_extra_state({})  # of a run without a record
    it.dataset.get_data_loaders()
    inputs, labels, raw = it.dataset.train_loader.dataset.batch(torch.arange(3))[:3]

    def life() -> list[Any]:
        model._current_task = 0
        model.meta_begin_task(it.dataset)
        losses = [model.meta_observe(inputs, labels, raw, epoch=epoch, **{INDEX: "places"}) for epoch in (None, 1)]
        model.meta_end_epoch(1, it.dataset)
        model.meta_end_task(it.dataset)
        assert model.current_task == 1
        return losses

    model.end_epoch = lambda *given: told.append(("the epoch ends", *given))
    model.begin_task = lambda *given: told.append(("the task begins", *given))
    model.end_task = lambda *given: told.append(("the task ends", *given))
    alone = [("the task begins", it.dataset), ("the epoch ends", 1, it.dataset), ("the task ends", it.dataset)]
    assert all(isinstance(loss, float) for loss in life()) and told == alone
    told.clear()

    class Told:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *given: told.append((name, *given)) or {"saved": name}

    model.recorder = Told()
    life()
    assert told == [alone[0], ("begin_task", model, it.dataset), ("expect", inputs, labels, "places", 0),
                    ("expect", inputs, labels, "places", 1), alone[1], ("end_epoch", model, it.dataset, 1),
                    ("close_task", model, it.dataset), alone[2], ("end_task", model, it.dataset)]
    assert model.get_extra_state() == {"record": {"saved": "state_dict"}}
    model.set_extra_state({"record": "a state"})
    assert told[-1] == ("load_state_dict", "a state")


def test_on_mammoth_logits_are_outputs_but_for_a_fixed_head(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    model = start("sgd", "--train_per_class 4").model
    outputs = torch.arange(12.0).view(3, 4)
    monkeypatch.setattr(ContinualModel, "classify", lambda self, given: given + 1)
    assert torch.equal(model.classify(outputs), outputs + 1)
    monkeypatch.delattr(ContinualModel, "classify")
    assert model.classify(outputs) is outputs
    model.rpchead = torch.arange(6.0).view(3, 2)
    assert torch.equal(model.classify(outputs), outputs[:, :3] @ model.rpchead)


def test_images_as_evaluation_sees_them(start: Start) -> None:
    it = start("sgd", "--train_per_class 4")
    it.dataset.get_data_loaders()
    data, index = it.dataset.train_loader.dataset, torch.tensor([5, 0])
    data.add_extra_return_field("more", range(len(data)))
    raw = data.not_augmented(index)
    assert torch.equal(it.model.normalized(data, index), it.model.normalization_transform(raw))
    it.model.normalization_transform = None
    assert torch.equal(it.model.normalized(data, index), raw)


# ---- small questions

@pytest.mark.parametrize(("epochs", "every", "follow", "images"), [
    (4, None, None, 300 + 4 * 360), (4, 3, None, 300 + 2 * 360), (None, None, None, 300 + 360), (3, 3, None, 300 + 360),
    (4, 2, 1, 100 + 2 * 230), (2, None, 2, 200 + 2 * (10 + 120 + 220)), (2, None, 7, 300 + 2 * 360)])
def test_the_images_that_a_record_costs(epochs: int | None, every: int | None, follow: int | None, images: int) -> None:
    """Three tasks of 100 and 10: their own data when they end; in a row, those before and test data up to them."""
    args = SimpleNamespace(n_epochs=epochs, sbs_record_every=every, sbs_record_tasks=follow)
    assert images_passed(100, 10, 3, args) == images


def test_the_key_of_a_picture_is_that_of_its_bytes_and_of_its_floats() -> None:
    whole = torch.randint(256, (3, 1, 2, 2), dtype=torch.uint8)
    whole[0, 0, 0] = torch.tensor([255, 254])
    found = list(keys(whole))
    assert found == list(keys(whole.float() / 255)) and len(set(found)) == 3 and len(found[0]) == 16
    features = torch.tensor([[0.1, 0.2], [0.1, 0.2001], [3.0, 4.0]])
    assert len(set(keys(features))) == 3  # rows of features are as they are
    assert len(set(keys(torch.tensor([[[0.1]], [[0.1001]]])))) == 1  # pictures without a channel are not


def test_classes_have_names_where_the_host_has() -> None:
    def none() -> list[str]:
        raise NotImplementedError

    assert class_names(SimpleNamespace(get_class_names=lambda: ["x", "y"]))["classes"].tolist() == ["x", "y"]
    assert class_names(SimpleNamespace()) == class_names(SimpleNamespace(get_class_names=none)) == {}
