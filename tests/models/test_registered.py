"""How models become known to a host, which of their forward passes hooks see, and whose random numbers they draw."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs import host, models
from mammoth_sbs.models import er, record, wrapped
from mammoth_sbs.models.forward import ForwardIsCall, calls_forward, forward_is_call
from mammoth_sbs.models.randomness import own_randomness
from tests.models.test_wrapped import Choosy, Toy

from models.er import Er
from models.utils.continual_model import ContinualModel
from utils.buffer import Buffer


@pytest.mark.parametrize("embedded", [True, False])
def test_a_host_is_loaded_and_what_fails_meanwhile_is_put_down_to_it(embedded: bool,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    main, told = SimpleNamespace(), []

    @contextmanager
    def blame(folder: Any) -> Iterator[None]:
        told.append(f"in {folder}")
        yield
        told.append("out")

    monkeypatch.setattr(host, "load_main", lambda: main)
    monkeypatch.setattr(host, "root", lambda: "a folder")
    monkeypatch.setattr(host, "blame_host", blame)
    monkeypatch.setattr(host, "is_embedded", lambda: embedded)
    monkeypatch.setattr(models, "register", lambda: told.append("register"))
    assert models.load_host() is main and told == ["in a folder", "register", "out"]
    assert getattr(main, "offer", None) is (None if embedded else models.offer)


@pytest.mark.parametrize("embedded", [True, False])
def test_models_are_found_by_both_spellings_and_with_the_hosts_buffer(embedded: bool,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    extended: list[Any] = []
    monkeypatch.setattr(sys.modules["models"], "extend_models", extended.append)
    monkeypatch.setattr(host, "is_embedded", lambda: embedded)
    monkeypatch.setattr(er, "Buffer", None, raising=False)
    for name in host.MODELS:
        for spelled in (f"models.{name}-sbs", f"models.{name}_sbs"):
            monkeypatch.delitem(sys.modules, spelled)
    models.register()
    assert er.Buffer is Buffer and extended == ([record.recorded] if embedded else [])  # type: ignore[attr-defined]
    for name in host.MODELS:
        module = sys.modules[f"mammoth_sbs.models.{name}"]
        assert sys.modules[f"models.{name}-sbs"] is sys.modules[f"models.{name}_sbs"] is module


def test_what_a_command_line_asks_for_beside_what_is_there() -> None:
    known: dict[str, Any] = {"toy": Toy, "er": Er, "er-sbs": er.ErSbs, "broken": ImportError("no x")}
    for is_recorded in (True, False):
        made = models.offer(known, "toy-sbs", is_recorded)
        assert made is not None and issubclass(made, Toy) and made.NAME == "toy_sbs"  # type: ignore[attr-defined]
        for name in ("nothing", "nothing-sbs", "broken"):
            assert models.offer(known, name, is_recorded) is None
    assert models.offer(known, "toy", True) is record.recorded(Toy) and models.offer(known, "toy", False) is None
    assert models.offer(known, "er-sbs", True) is er.ErSbs and models.offer(known, "er-sbs", False) is None


def test_what_could_be_wrapped_is_a_list() -> None:
    known: dict[str, Any] = {"toy": Toy, "choosy": Choosy}
    found = models.wrappable(known)
    assert isinstance(found, list) and found == list(wrapped.listing(known)) and len(found) == 2


# ---- forward passes

class Calling(ContinualModel):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.net, self._observe_fields = nn.Linear(2, 1), {"epoch"}
        self.task_iteration = self.epoch_iteration = 0

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Any:
        return self.net.forward(inputs), epoch


class Seen(ForwardIsCall, Calling):
    pass


def test_hooks_see_the_steps_of_a_method_that_calls_forward() -> None:
    seen: list[Tensor] = []
    x = torch.ones(3, 2)
    for method, times in ((Calling, 0), (Seen, 1)):
        model = method()
        model.net.register_forward_hook(lambda net, given, output: seen.append(output))
        found, epoch = model.meta_observe(x, x, x, epoch=4)
        assert torch.equal(found, model.net(x)) and epoch == 4
        assert len(seen) == times + 1 and "forward" not in vars(model.net)
        seen.clear()
    assert calls_forward(Calling) is True and calls_forward(Er) is False


def test_a_network_is_called_by_its_forward_as_often_as_it_is_and_whatever_happens() -> None:
    class Fragile(nn.Module):
        def forward(self, x: int, times: int = 2) -> int:
            if x < 0:
                raise ValueError
            return times * x

    net, seen = Fragile(), []
    net.register_forward_hook(lambda _, given, output: seen.append(output))
    with pytest.raises(KeyError), forward_is_call(net):
        assert net.forward(3, times=4) == 12
        with pytest.raises(ValueError):
            net.forward(-1)
        assert net.forward(6) == 12
        raise KeyError
    assert seen == [12, 12] and "forward" not in vars(net)
    assert net.forward(1) == 2 and len(seen) == 2


# ---- random numbers

def test_all_three_sources_are_seeded_by_one_number_of_the_generator() -> None:
    """Below 2^31, which NumPy takes and which earlier versions drew too."""
    for own in (0, 5, 9):
        seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(own)))
        with own_randomness(torch.Generator().manual_seed(own)):
            found = torch.rand(2).tolist(), np.random.rand(2).tolist(), [random.random(), random.random()]
            assert torch.initial_seed() == seed
        fresh = random.Random(seed)
        assert found == (torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist(),
                         np.random.RandomState(seed).rand(2).tolist(), [fresh.random(), fresh.random()])
