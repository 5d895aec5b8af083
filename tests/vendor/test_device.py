"""A GPU is kept busy: data and buffer are there, and no step waits for an answer. There is none here: the device is
torch's `meta`, on which whatever needs a value (`item`, a mask as index, a copy back) is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mammoth_sbs.core.speed import LearningSpeed, SpeedHook
from mammoth_sbs.errors import UserError
from tests.conftest import Start

from utils import conf, training
from utils.evaluate import evaluate

FLAGS = ("--backbone tiny-resnet18 --num_filters 2 --max_classes 6 --n_tasks 3 --train_per_class 30 --batch_size 20 "
         "--n_epochs 1")
STORED = {"er": "labels", "rpc": "labels", "agem": "labels", "der": "logits", "derpp": "labels logits",
          "fdr": "logits task_labels"}  # GEM solves its program on the CPU, X-DER asks which logits to update
ASKS = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::_unique2", "aten::masked_select"}


class Counting(TorchDispatchMode):
    """What a GPU would be waited for: questions, and copies between devices that somebody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.blocking = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.name().split(".")[0], kwargs or {}
        out = func(*args, **kwargs)
        self.asked += [name] * (name in ASKS)
        if name == "aten::_to_copy" and args[0].device != out.device:
            self.blocking += not kwargs.get("non_blocking")
        return out


@pytest.fixture
def on_device(start: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A model in its second task, with a full buffer."""
    monkeypatch.setitem(conf._state, "device", torch.device("cpu"))  # so it is again when the test is over

    def on_device(model: str, device: str = "meta") -> Any:
        it = start(model, f"{FLAGS} {'' if model == 'sgd' else '--buffer_size 30'} --device {device}")
        for _ in range(2):
            it.dataset.get_data_loaders()
        it.model._current_task = 1
        stock = model.removesuffix("_sbs")
        if stock in STORED:
            content = {"labels": torch.arange(30) % 2, "task_labels": torch.zeros(30).long(),
                       "logits": torch.rand(30, 6)}
            it.model.buffer.add_data(examples=torch.rand(30, 1, 8, 8),
                                     **{name: content[name] for name in STORED[stock].split()})
        it.model.meta_begin_task(it.dataset)
        it.model.net.train()
        return it

    return on_device


@pytest.mark.parametrize("model", ["sgd", *STORED, *(f"{name}_sbs" for name in STORED)])
def test_a_step_waits_for_nothing(model: str, on_device: Callable[..., Any]) -> None:
    """Batch, buffer, counts and loss are on the device, and nobody waits for the few numbers that are sent there."""
    it = on_device(model)
    loader = it.dataset.train_loader
    names, steps, counting = loader.dataset.extra_return_fields, loader.on(it.model.device), Counting()

    def step() -> None:
        batch = next(steps)
        assert {part.device.type for part in batch} == {"meta"}
        loss = it.model.meta_observe(*batch[:3], epoch=0, **dict(zip(names, batch[3:], strict=True)))
        assert isinstance(loss, Tensor) and loss.device.type == "meta" and not loss.requires_grad

    step()  # brings the data and constants there
    with counting:
        step()
    assert not counting.asked and not counting.blocking
    stored = [getattr(it.model.buffer, name) for name in it.model.buffer.used_attributes] if model != "sgd" else []
    assert {value.device.type for value in stored} <= {"meta"}
    assert model == "sgd" or stored


def test_batches_made_on_a_device_are_those_of_the_cpu(on_device: Callable[..., Any]) -> None:
    """The same sizes and types, from the same draws; and the data set itself stays where methods look for it."""
    here, there = (on_device("er_sbs", device).dataset.train_loader for device in ("cpu", "meta"))
    for ours, theirs in zip(here, there.on("meta"), strict=True):
        assert [(part.shape, part.dtype) for part in ours] == [(part.shape, part.dtype) for part in theirs]
    assert torch.equal(here.generator.get_state(), there.generator.get_state())
    assert there.dataset.data.device.type == there.dataset.targets.device.type == "cpu"
    there.dataset.keep(there.dataset.targets == there.dataset.targets.min())
    assert sum(len(batch[1]) for batch in there.on("meta")) == 30, "the device still has what was taken away"


def test_the_loop_looks_at_a_loss_every_so_many_steps(on_device: Callable[..., Any],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of these and one at the end of the epoch; what it says of the epoch is the same."""
    monkeypatch.setattr(training, "LOOK", 5)
    said = []
    for as_on_a_gpu in (False, True):
        torch.manual_seed(0)
        it = on_device("sgd", "cpu")
        it.dataset.train_loader.batch_size = 4  # 15 steps
        if as_on_a_gpu:
            monkeypatch.setattr(it.model, "number", lambda loss: loss.detach())
        with Counting() as counting:
            said.append(training.train_task(it.model, it.dataset, it.args))
    assert counting.asked == 2 * 3 * ["aten::_local_scalar_dense"]  # a step's loss, and the sum of all so far
    assert said[1] == pytest.approx(said[0], rel=1e-6)


def test_a_loss_that_was_not_finite_is_noticed_when_it_is_looked_at(on_device: Callable[..., Any],
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK", 2)
    it = on_device("sgd", "cpu")
    losses = iter([1.0, float("nan"), 1.0, 1.0])
    monkeypatch.setattr(it.model, "meta_observe", lambda *given, **fields: torch.tensor(next(losses)))
    with pytest.raises(UserError, match="the loss became nan in task 2, epoch 1: lower --lr"):
        training.train_task(it.model, it.dataset, it.args)
    assert len(list(losses)) == 2


@pytest.mark.parametrize("method", ["together", "after a memory"])
def test_learning_speed_is_counted_where_only_the_device_knows_the_batch(method: str) -> None:
    """As ER and GEM pass it: counts are those of the CPU, without asking which pass was the stream's."""
    x, y = torch.eye(3)[[0, 1, 0, 2]], torch.tensor([0, 1, 2, 0])
    other = torch.rand(9, 3)
    found = []
    for kind in ("cpu", "elsewhere"):
        net, speed = nn.Identity(), LearningSpeed(6)
        hook = SpeedHook(net, speed, lambda logits: logits.argmax(1))
        given = [Elsewhere(t) if kind != "cpu" else t for t in (torch.cat([x, other]), other)]
        index = torch.tensor([5, 3, 1, 0])
        for epoch in range(2):
            hook.expect(x, y, index, epoch)
            for batch in given[:1] if method == "together" else [given[1], x]:
                net(batch)
            assert not hook.waiting
        hook.expect(x, y, index, 2)
        assert hook.waiting
        found.append((speed.value.tolist(), speed.accuracy, speed.epochs))
    assert found[0] == found[1] and sorted(found[0][0]) == [0, 0, 0, 0, 1, 1]


class Elsewhere(Tensor):
    """A tensor of the CPU that says it is on a GPU, and fails if it is asked whether it is equal to another."""

    device = torch.device("cuda")  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, value: Tensor) -> Elsewhere:
        return torch.Tensor._make_subclass(cls, value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.equal, "a wait for the device"
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return Elsewhere(out) if func is Tensor.__getitem__ else out


def test_evaluation_asks_once_per_task(start: Start) -> None:
    it = start("sgd", f"{FLAGS} --test_per_class 20")
    for _ in range(2):
        it.dataset.get_data_loaders()
        it.dataset.test_loaders[-1].batch_size = 7
    with Counting() as counting:
        accuracies = evaluate(it.model, it.dataset)
    assert len(accuracies[0]) == 2 and len(counting.asked) <= 2 * 2


def test_code_optimization_has_mammoths_meaning(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32, bfloat16, and that with compiled code. On a CPU the first changes nothing and the others are refused."""
    said: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", said.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for level in range(4):
        conf.set_precision(level, torch.device("cuda"))
    assert said == ["highest", "high", "medium", "medium"]
    assert start("er", "--code_optimization 1").args.compile is False and said[4:] == ["highest"]
    for level in (2, 3):
        with pytest.raises(UserError, match=f"--code_optimization {level}: needs a GPU with bfloat16"):
            start("er", f"-O {level}")
