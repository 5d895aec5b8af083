"""`fill_buffer` and `icarl_replay`, with which methods written for Mammoth keep a quota per class."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import Start

from utils import buffer as buffers
from utils.buffer import Buffer, fill_buffer, icarl_replay

FLAGS = "--train_per_class 20 --n_epochs 1 --backbone tiny-resnet18 --num_filters 2"


@pytest.fixture
def it(start: Start) -> SimpleNamespace:
    """A network whose batch statistics are not those of a batch, and a data set at its first task."""
    found = start("sgd", FLAGS)
    found.dataset.get_data_loaders()
    found.data = found.dataset.train_loader.dataset
    found.net = found.model.net.train()
    with torch.no_grad():
        found.net(found.data.batch(torch.arange(8))[0])
    return found


def pictures(of: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(x.flatten().tolist()) for x in of]


def next_task(it: SimpleNamespace) -> None:
    it.dataset.get_data_loaders()
    it.data = it.dataset.train_loader.dataset


def test_every_class_seen_has_the_same_quota_and_keeps_its_first(it: SimpleNamespace) -> None:
    buffer, attributes = Buffer(23), ["examples", "labels", "task_labels"]
    for task, quota in enumerate((11, 5, 3)):
        if task:
            next_task(it)
            before = dict(zip(attributes, buffer.get_all_data(), strict=True))
        fill_buffer(buffer, it.dataset, task, required_attributes=attributes)
        examples, labels, tasks = buffer.get_all_data()
        assert torch.bincount(labels).tolist() == [quota] * (2 * task + 2) and torch.equal(tasks, labels // 2)
        new = labels >= 2 * task
        assert set(pictures(examples[new])) <= set(pictures(it.data.data.float() / 255))
        for c in range(2 * task):
            assert torch.equal(examples[labels == c], before["examples"][before["labels"] == c][:quota])
    assert buffer.buffer_size == 23 and buffer.used_attributes == attributes


def test_images_and_labels_are_stored_if_nothing_else_is_said_and_new_ones_are_drawn(it: SimpleNamespace) -> None:
    stored = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        buffer = Buffer(20)
        fill_buffer(buffer, it.dataset, 0)
        assert buffer.used_attributes == ["examples", "labels"]
        stored.append(pictures(buffer.examples))
    assert stored[0] == stored[1] != stored[2]
    labels = dict(zip(pictures(it.data.data.float() / 255), it.data.targets.tolist(), strict=True))
    assert [labels[picture] for picture in stored[2]] == [0] * 10 + [1] * 10


def test_the_buffer_grows_to_a_multiple_of_the_classes(it: SimpleNamespace) -> None:
    it.dataset.args.buffer_size = 15
    buffer = Buffer(15)
    fill_buffer(buffer, it.dataset, 0, extend_equalize_buffer=True)
    assert (buffer.buffer_size, len(buffer)) == (16, 16)
    next_task(it)
    fill_buffer(buffer, it.dataset, 1, extend_equalize_buffer=True)
    assert (buffer.buffer_size, torch.bincount(buffer.labels).tolist()) == (16, [4] * 4)
    next_task(it)
    fill_buffer(buffer, it.dataset, 2, extend_equalize_buffer=True)
    assert (buffer.buffer_size, torch.bincount(buffer.labels).tolist()) == (18, [3] * 6)


def expected(it: SimpleNamespace, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of an evaluation."""
    net = copy.deepcopy(it.net).eval()
    with torch.no_grad():
        features = net(it.dataset.get_normalization_transform()(images), returnt="features")
        return net.classifier(features), features


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("herding", [True, False])
def test_with_a_network_its_answers_are_stored_too(it: SimpleNamespace, herding: bool, training: bool) -> None:
    it.net.train(training)
    before, buffer = copy.deepcopy(it.net.state_dict()), Buffer(12)
    fill_buffer(buffer, it.dataset, 0, net=it.net, use_herding=herding,
                required_attributes=["examples", "labels", "logits"])
    assert it.net.training is training
    assert all(torch.equal(value, before[name]) for name, value in it.net.state_dict().items())
    examples, labels, logits = buffer.get_all_data()
    torch.testing.assert_close(logits, torch.sigmoid(expected(it, examples)[0]))
    assert labels.tolist() == [0] * 6 + [1] * 6
    chosen = []
    for c in (0, 1):
        images = it.data.data[it.data.targets == c].float() / 255
        features = expected(it, images)[1]
        chosen += pictures(images[buffers._herded(features, 6, normalized=False)])
    assert (pictures(examples) == chosen) is herding


def test_herding_may_look_at_directions_alone() -> None:
    features = torch.tensor([[100.0, 1.0], [1.0, 0.9], [0.1, 0.1], [0.0, 3.0]])
    directions = features / features.norm(dim=1, keepdim=True)
    chosen = buffers._herded(features, 4, normalized=True).tolist()
    assert chosen == buffers._herded(directions, 4, normalized=False).tolist()
    assert chosen != buffers._herded(features, 4, normalized=False).tolist()
    assert features[0].tolist() == [100, 1]


def test_herding_is_what_the_caller_asks_for(it: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(buffers, "_herded", lambda features, count, normalized: (
        asked.append((len(features), count, normalized)) or torch.arange(count)))
    fill_buffer(Buffer(8), it.dataset, 0, net=it.net, use_herding=True, normalize_features=True)
    fill_buffer(Buffer(8), it.dataset, 0, net=it.net, use_herding=True)
    fill_buffer(Buffer(8), it.dataset, 0, net=it.net)
    assert asked == [(20, 4, True)] * 2 + [(20, 4, False)] * 2


def test_in_domains_it_is_a_class_of_a_domain_that_has_a_quota(it: SimpleNamespace,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks have the same classes: those of earlier domains are told apart by their task."""
    monkeypatch.setattr(type(it.dataset), "SETTING", "domain-il")
    it.dataset.get_offsets = lambda task=None: (0, 2)
    buffer, attributes = Buffer(25), ["examples", "labels", "task_labels"]
    for task, quota in enumerate((12, 6, 4)):
        old = [value.clone() for value in buffer.get_all_data()] if task else None
        fill_buffer(buffer, it.dataset, task, required_attributes=attributes)
        examples, labels, tasks = buffer.get_all_data()
        groups = (tasks * 2 + labels).bincount().tolist()
        assert groups == [quota] * (2 * task + 2)
        if old is not None:
            for group in range(2 * task):
                kept = examples[tasks * 2 + labels == group]
                assert torch.equal(kept, old[0][old[2] * 2 + old[1] == group][:quota])


def test_icarl_learns_the_buffers_images_with_the_task_and_they_are_not_stored_twice(it: SimpleNamespace) -> None:
    buffer = Buffer(8)
    method = SimpleNamespace(buffer=buffer, current_task=0, args=SimpleNamespace(model="icarl"))
    icarl_replay(method, it.dataset)
    assert len(it.data) == 40
    fill_buffer(buffer, it.dataset, 0)
    stored = [value.clone() for value in buffer.get_all_data()]
    next_task(it)
    method.current_task = 1
    icarl_replay(method, it.dataset)
    assert len(it.data) == 48 and it.data.targets[40:].tolist() == [0] * 4 + [1] * 4
    torch.testing.assert_close(it.data.data[40:].float() / 255, stored[0])
    assert it.data.data.dtype == torch.uint8 and (it.data.indexes[40:] == -1).all()
    fill_buffer(buffer, it.dataset, 1)
    assert len(it.data) == 40 and torch.bincount(buffer.labels).tolist() == [2] * 4
    assert np.array_equal(it.data.targets.unique(), [2, 3])
    with pytest.raises(UserError, match="--model icarl: its buffer is to be split into training and validation"):
        icarl_replay(method, it.dataset, val_set_split=0.1)


# ---- the buffer itself

def test_what_is_stored_beside_is_asked_for_by_place() -> None:
    buffer = Buffer(4)
    buffer.add_data(examples=torch.arange(4.0).view(4, 1), labels=torch.arange(4) + 10)
    x, y = buffer.get_data_by_index(torch.tensor([3, 1]), transform=lambda x: -x)
    assert x.flatten().tolist() == [-3, -1] and y.tolist() == [13, 11]
    assert buffer.to("cpu") is buffer and buffer.device == "cpu"
    assert len(buffer.get_data(2)) == 2 and len(buffer.get_data(2, return_index=True)) == 3


def test_a_buffer_is_full_when_as_many_were_seen_as_it_has_slots() -> None:
    buffer = Buffer(3)
    buffer.add_data(examples=torch.zeros(2, 1))
    assert not buffer.is_full()
    buffer.add_data(examples=torch.zeros(1, 1))
    assert buffer.is_full() and len(buffer) == 3


def test_another_way_to_fill_is_refused_and_so_is_content_that_does_not_fit() -> None:
    with pytest.raises(UserError, match="a buffer that is filled by balancoir: this host has reservoir sampling only"):
        Buffer(3, sample_selection_strategy="balancoir")
    content = {"examples": torch.zeros(3, 1), "num_seen_examples": 3}
    Buffer(5).load(content)
    for wrong in ({"examples": torch.zeros(2, 1)}, {"colours": torch.zeros(3)}):
        with pytest.raises(ValueError, match="are not 3"):
            Buffer(5).load({**content, **wrong})


def test_on_another_device_what_is_stored_goes_there_too() -> None:
    buffer = Buffer(3, device="meta")
    buffer.add_data(examples=torch.zeros(2, 1), labels=torch.zeros(2).long())
    assert {value.device.type for value in buffer.get_data_by_index(torch.tensor([0]))} == {"meta"}
    other = Buffer(3)
    other.add_data(examples=torch.zeros(2, 1))
    assert other.to("meta").examples.device.type == "meta" and other.device == "meta"
    assert other.get_data(1, return_index=True)[0].device.type == "meta"
