"""What stands between a method and its buffer while a stream sampler is at work, and how the flags make one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.core.streams import STREAM_SAMPLERS, Look, StreamSpeed
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.stream import Feed, starts
from tests.conftest import Start

from models.er import Er
from models.utils.continual_model import ContinualModel
from utils.buffer import Buffer


class Told:
    """A sampler that notes what it is shown, and changes in the buffer what a test says."""

    def __init__(self, labels: list[int]) -> None:
        self.labels, self.seen = np.array(labels), 0
        self.offered: list[Look] = []
        self.replays: list[tuple[list[int], Look]] = []
        self.changes: dict[int, int] = {}

    def offer(self, look: Look, generator: torch.Generator) -> dict[int, int]:
        assert isinstance(generator, torch.Generator)
        self.offered.append(look)
        self.seen += len(look)
        return self.changes

    def replayed(self, slots: np.ndarray, look: Look) -> None:
        self.replays.append((slots.tolist(), look))


class Doubled(nn.Module):
    """Logits from which the images can be told."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class WithFeatures(Doubled):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return 2 * x, x


def a_feed(net: nn.Module | None = None, size: int = 4) -> SimpleNamespace:
    """A feed, and a buffer with a row of each number from 10, labelled 0, 1, 2 and so on."""
    buffer = Buffer(size)
    buffer.add_data(examples=rows(*range(10, 10 + size)), labels=torch.arange(size))
    it = SimpleNamespace(net=net or Doubled(), buffer=buffer, sampler=Told(list(range(size))))
    it.feed = Feed(it.net, buffer, it.sampler, torch.Generator())  # type: ignore[arg-type]
    return it


def rows(*numbers: float) -> Tensor:
    return torch.tensor([[n, -n] for n in numbers], dtype=torch.float32)


def firsts(look: Look) -> list[float]:
    return look.logits[:, 0].tolist()


# ---- looks

@pytest.mark.parametrize("net", [Doubled(), WithFeatures()])
def test_one_pass_over_the_stream_and_a_replay_is_two_looks(net: nn.Module) -> None:
    it = a_feed(net)
    with it.feed.step(rows(1, 2, 3), torch.tensor([7, 8, 9])):
        (x, _) = it.buffer.get_data(2)
        net(torch.cat([rows(1, 2, 3), x, rows(5)]))  # and something behind both
        it.buffer.add_data(examples=rows(1, 2, 3), labels=torch.tensor([7, 8, 9]))
    (look,) = it.sampler.offered
    assert firsts(look) == [2, 4, 6] and look.labels.tolist() == [7, 8, 9]
    ((slots, replay),) = it.sampler.replays
    assert [10 + slot for slot in slots] == x[:, 0].tolist() and firsts(replay) == (2 * x[:, 0]).tolist()
    assert replay.labels.tolist() == slots


def test_passes_of_their_own_are_looks_in_whichever_order_they_come() -> None:
    it = a_feed()
    with it.feed.step(rows(1, 2), torch.tensor([7, 8])):
        first, second = it.buffer.get_data(2)[0], it.buffer.get_data(3)[0]
        it.net(second)  # not its turn
        assert not it.sampler.replays
        it.net(first)
        it.net(rows(1, 2))
        it.net(second)
        it.net(second)  # once more: it has been looked at
        it.net(rows(1, 2) + 0)
        it.buffer.add_data(examples=rows(1, 2))
    assert [firsts(look) for _, look in it.sampler.replays] == [(2 * x[:, 0]).tolist() for x in (first, second)]
    assert [firsts(look) for look in it.sampler.offered] == [[2, 4]]


def test_a_step_begins_anew_and_leaves_no_trace() -> None:
    it = a_feed()
    with pytest.raises(KeyError), it.feed.step(rows(1), torch.tensor([7])):
        left, _ = it.buffer.get_data(2)
        it.net(rows(1))
        raise KeyError
    assert not it.net._forward_hooks and not {"add_data", "get_data"} & vars(it.buffer).keys()
    it.net(left)
    with it.feed.step(rows(2), torch.tensor([8])):
        it.net(left)  # drawn in the step before
        with pytest.raises(UserError, match="a training step made no forward pass on its batch"):
            it.buffer.add_data(examples=rows(2))
    assert not it.sampler.replays and not it.sampler.offered


@pytest.mark.parametrize(("given", "begins"), [
    (rows(1, 2), True), (rows(1, 2, 3), True), (rows(1), False), (rows(2, 1), False), (rows(3, 1, 2), False)])
def test_a_pass_that_begins_with_a_batch(given: Tensor, begins: bool) -> None:
    assert starts(given, rows(1, 2)) is begins


def test_a_batch_begins_with_itself_whatever_it_holds() -> None:
    x = torch.full((2, 2), torch.nan)
    assert starts(x, x) and not starts(x.clone(), x)


# ---- draws

class Asked(Buffer):
    """Notes what its own draw is asked for."""

    asked: tuple

    def get_data(self, size: Any, transform: Any = None, return_index: Any = False, device: Any = None) -> Any:
        self.asked = size, transform, return_index, device
        return super().get_data(size, transform, return_index, device)


def negative(x: Tensor) -> Tensor:
    return -x


@pytest.mark.parametrize(("args", "kwargs", "size", "transform", "device", "wanted"), [
    ((2,), {}, 2, None, None, False),
    ((2, negative), {}, 2, negative, None, False),
    ((2, negative, False), {}, 2, negative, None, False),
    ((2, negative, True), {}, 2, negative, None, True),
    ((3, None, True), {}, 3, None, None, True),
    ((2, negative, False, "cpu"), {}, 2, negative, "cpu", False),
    ((2, negative, True, "cpu"), {}, 2, negative, "cpu", True),
    ((2, negative, True), {"device": "cpu"}, 2, negative, "cpu", True),
    ((2,), {"return_index": True}, 2, None, None, True),
    ((2, negative), {"return_index": True, "device": "cpu"}, 2, negative, "cpu", True),
    ((2,), {"transform": negative, "return_index": False}, 2, negative, None, False),
])
def test_a_draw_is_the_buffers_own_however_it_is_asked_for(args: tuple, kwargs: dict, size: int, transform: Any,
                                                           device: Any, wanted: bool) -> None:
    """The method gets what it asked for, with the examples' places or without; the feed always knows the places."""
    it = a_feed()
    it.buffer.__class__ = Asked
    np.random.seed(3)
    expected = Buffer.get_data(it.buffer, size, transform, True)
    np.random.seed(3)
    with it.feed.step(rows(1), torch.tensor([7])):
        found = it.buffer.get_data(*args, **kwargs)
        it.net(found[1] if wanted else found[0])
    assert it.buffer.asked == (size, transform, True, device)
    assert isinstance(found, tuple)
    assert all(torch.equal(a, b) for a, b in zip(found, expected if wanted else expected[1:], strict=True))
    assert [slots for slots, _ in it.sampler.replays] == [expected[0].tolist()]


# ---- what is stored

def test_what_is_offered_goes_where_the_sampler_says() -> None:
    it = SimpleNamespace(net=Doubled(), buffer=Buffer(4), sampler=Told([-1] * 4))
    it.feed = Feed(it.net, it.buffer, it.sampler, torch.Generator())

    def offer(changes: dict[int, int], *numbers: int) -> None:
        x = rows(*numbers).requires_grad_()
        it.sampler.changes = changes
        with it.feed.step(x, torch.tensor(numbers)):
            logits = it.net(x)
            it.buffer.add_data(examples=x.detach().double(), labels=torch.tensor(numbers, dtype=torch.int32),
                               logits=logits, task_labels=None)

    offer({0: 0, 1: 1, 3: 2}, 1, 2, 3)
    assert it.buffer.labels.tolist() == [1, 2, 0, 3] and it.buffer.num_seen_examples == 3
    offer({2: ~1, 1: 0}, 4, 5)  # what slot 1 held goes to slot 2, and it gets the first of the batch
    assert it.buffer.labels.tolist() == [1, 4, 2, 3] and it.buffer.num_seen_examples == 5
    assert it.buffer.examples[:, 0].tolist() == [1, 4, 2, 3] and it.buffer.logits[:, 1].tolist() == [-2, -8, -4, -6]
    offer({}, 6)
    assert it.buffer.labels.tolist() == [1, 4, 2, 3] and it.buffer.num_seen_examples == 6
    assert (it.buffer.examples.dtype, it.buffer.labels.dtype) == (torch.float32, torch.int64)
    assert not it.buffer.logits.requires_grad and not hasattr(it.buffer, "task_labels")


# ---- in a method

ONCE = "--n_epochs 1 --buffer_size 20 --train_per_class 4"


@pytest.mark.parametrize("name", ["stream-speed", "stream_speed"])
def test_the_flags_of_stream_speed_are_its_sampler(start: Start, name: str) -> None:
    model = start("er_sbs", f"{ONCE} --sampler {name} --sbs-q .1 --sbs-s .3 --sbs-look margin --sbs-looks replay "
                            "--sbs-band both --sbs-near 3").model
    sampler = model.feed.sampler
    assert isinstance(sampler, StreamSpeed) and sampler.size == 20
    assert (sampler.band.q, sampler.band.s) == (0.1, 0.3)
    assert (sampler.by, sampler.looks, sampler.near) == ("margin", "replay", 3) and sampler.enters and sampler.leaves
    assert (model.feed.net, model.feed.buffer, model.feed.generator) == (model.net, model.buffer, model.generator)
    plain = start("er_sbs", f"{ONCE} --sampler {name}").model.feed.sampler
    assert (plain.by, plain.looks, plain.near, plain.enters, plain.leaves) == ("p", "both", 0, False, True)


def test_other_stream_samplers_take_a_size_and_kinds_of_stream_speed_all_flags(
        start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stream-cbrs", "stream_cbrs"):
        sampler = start("er_sbs", f"{ONCE} --sampler {name}").model.feed.sampler
        assert type(sampler) is STREAM_SAMPLERS["stream-cbrs"] and sampler.size == 20
    monkeypatch.setitem(STREAM_SAMPLERS, "stream-mine", type("Mine", (StreamSpeed,), {}))
    assert start("er_sbs", f"{ONCE} --sampler stream-mine --sbs-q .4").model.feed.sampler.band.q == 0.4


@pytest.mark.parametrize("sampler", ["stream-speed", "speed"])
@pytest.mark.parametrize(("q", "s", "fits"), [(0.9, 0.05, True), (0.05, 0.9, True), (0.95, 0, True), (0.9, 0.2, False),
                                              (0.2, 0.9, False), (0.48, 0.48, False)])
def test_q_and_s_leave_a_twentieth(start: Start, sampler: str, q: float, s: float, fits: bool) -> None:
    flags = f"{ONCE} --n_epochs 2 --sampler {sampler} --sbs-q {q} --sbs-s {s}".replace("--n_epochs 1", "")
    if fits:
        model = start("er_sbs", flags).model
        band = (model.feed.sampler if model.feed else model.sampler).band
        assert (band.q, band.s) == (q, s)
    else:
        with pytest.raises(UserError, match=f"--sbs-q {q:g}, --sbs-s {s:g}: q \\+ s must be at most 0.95"):
            start("er_sbs", flags)


@pytest.mark.parametrize("flags", ["--sampler stream-speed", "--sbs-during closed", "--sbs-during stock"])
def test_the_stock_step_is_handed_the_batch_as_it_came(start: Start, flags: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple] = []

    def observe(self: Any, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        given.append((inputs, labels, not_aug_inputs, epoch))
        self.net(inputs)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return 0.25

    monkeypatch.setattr(Er, "observe", observe)
    it = start("er_sbs", f"{ONCE} {flags}")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    inputs, labels, raw = it.dataset.train_loader.dataset.batch(torch.arange(5))[:3]
    assert it.model.observe(inputs, labels, raw, epoch=6, sbs_index=torch.arange(5)) == 0.25
    ((first, second, third, epoch),) = given
    assert first is inputs and second is labels and third is raw and epoch == 6
    assert len(it.model.buffer) == (0 if "closed" in flags else 5)
    assert not vars(it.model.buffer).keys() & {"add_data", "get_data"}
    if "stream" not in flags:
        assert it.model.speed.epochs == 1 and it.model.hook is not None
    else:
        assert it.model.speed is it.model.hook is None and it.model.feed.sampler.seen == 5
        assert it.model.buffer.labels[:5].tolist() == labels.tolist()


def test_the_beginning_and_the_end_of_a_task_are_the_stock_methods(start: Start, monkeypatch: pytest.MonkeyPatch,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    monkeypatch.setattr(ContinualModel, "begin_task", lambda self, dataset: told.append("begins"))
    monkeypatch.setattr(ContinualModel, "end_task", lambda self, dataset: told.append("ends"))
    it = start("er_sbs", f"{ONCE} --sampler stream-reservoir")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    assert told == ["begins"] and it.dataset.train_loader.dataset.extra_return_fields == ()
    sampler = it.model.feed.sampler
    sampler.labels, sampler.seen = np.array([-1, 0, 0, 2, 5, 0, -1]), 9
    capsys.readouterr()
    it.model.meta_end_task(it.dataset)
    assert told == ["begins", "ends"]
    assert capsys.readouterr().out == "SBS stream: 9 examples seen, 5 stored of 3 classes, 1 to 3 of each\n"


def test_the_state_of_a_stream_is_its_samplers_and_its_generators(start: Start) -> None:
    one, other = (start("er_sbs", f"{ONCE} --sampler stream-cbrs").model for _ in range(2))
    one.feed.sampler.labels[3], one.feed.sampler.seen = 7, 11
    torch.rand(3, generator=one.generator)
    other.set_extra_state(one.get_extra_state())
    assert other.feed.sampler.labels[3] == 7 and other.feed.sampler.seen == 11
    assert torch.equal(other.generator.get_state(), one.generator.get_state())
    plain = start("er_sbs", ONCE).model
    state = plain.get_extra_state()
    assert state["stream"] is None
    plain.set_extra_state(state)
