"""Scores of networks that are small enough to be followed by hand; they are in a task that has one before and after."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mammoth_sbs.errors import UserError
from mammoth_sbs.models import scores

PAST, SEEN, CLASSES = 2, 5, 7


class Data:
    """Examples of three numbers; each view of them is another."""

    def __init__(self, n: int, noise: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(n)
        self.images, self.noise = torch.randn(n, 3, generator=generator), noise
        self.targets = [PAST + i % (SEEN - PAST) for i in range(n)]
        self.asked: list[list[int]] = []

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        self.asked.append(index.tolist())
        raw = self.images[index]
        return raw + self.noise * torch.randn(raw.shape), torch.tensor(self.targets)[index], raw, index


class Net(nn.Module):
    """Notes how it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(3, CLASSES)
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.classifier(x)


def a_model(data: Data, **flags: Any) -> SimpleNamespace:
    torch.manual_seed(4)
    args = SimpleNamespace(**{"lr": 0.5, "optim_mom": 0.9, "optim_wd": 0.0, "n_epochs": 2, "batch_size": 3,
                              "lr_scheduler": None, "dataset": "seq-small", **flags})
    return SimpleNamespace(net=Net(), n_past_classes=PAST, n_seen_classes=SEEN, device="cpu", args=args,
                           classify=lambda outputs: -outputs, normalized=lambda data, index: 3 * data.images[index])


def test_how_many_views_and_rounds() -> None:
    """Twelve views as Bang et al.; three rounds of two networks."""
    assert (scores.VIEWS, scores.ROUNDS) == (12, 3)
    named = {"loss": scores.final_loss, "uncertainty": scores.consistency, "c-score": scores.held_out_accuracy}
    assert named == scores.SCORES


@pytest.mark.parametrize("training", [True, False])
def test_the_final_loss_is_among_the_tasks_classes(training: bool) -> None:
    data = Data(300)
    model = a_model(data)
    model.net.train(training)
    found = scores.final_loss(model, data)
    assert model.net.training is training and model.net.calls == [(False, False)] * 2  # 256 and the rest
    with torch.no_grad():
        log_p = -model.net.classifier(3 * data.images)[:, PAST:SEEN]
    expected = log_p.log_softmax(1)[torch.arange(300), torch.tensor(data.targets) - PAST]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [True, False])
def test_consistency_is_the_share_of_the_commonest_class(training: bool) -> None:
    data = Data(300)
    model = a_model(data)
    model.net.train(training)
    torch.manual_seed(6)
    found = scores.consistency(model, data)
    assert model.net.training is training and set(model.net.calls) == {(False, False)}
    torch.manual_seed(6)
    votes = torch.zeros(300, CLASSES)
    for index in torch.arange(300).split(256):
        for _ in range(12):
            with torch.no_grad():
                outputs = -model.net.classifier(data.batch(index)[0])
            votes[index, PAST + outputs[:, PAST:SEEN].argmax(1)] += 1
    torch.testing.assert_close(found, votes.amax(1) / 12)
    assert len(set(found.tolist())) > 3


def test_views_that_are_all_the_same_are_refused_and_the_network_is_left_as_it_was() -> None:
    data = Data(6, noise=0.0)
    model = a_model(data)
    with pytest.raises(UserError, match="^uncertainty: seq-small is not augmented, so all views of an image are the"):
        scores.consistency(model, data)
    assert model.net.training


class Plan:
    """A schedule that counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


def test_networks_of_the_c_score_learn_halves_by_sgd_as_the_flags_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed step by step with the batches that they were given: an odd number of examples, and one alone in the
    last batch of the smaller half, which is passed over."""
    data = Data(15)  # 7 and 8: batches of 3, 3 and 1, of 3, 3 and 2
    model = a_model(data)
    made: list[SimpleNamespace] = []
    fresh, fetch = scores.fresh, scores.fetch

    def a_network(net: nn.Module) -> nn.Module:
        assert net is model.net
        made.append(SimpleNamespace(net=fresh(net), batches=[], plan=Plan()))
        made[-1].twin = copy.deepcopy(made[-1].net)
        return made[-1].net

    def noted(data_: Data, part: Tensor) -> tuple[Tensor, ...]:
        found = fetch(data_, part)
        made[-1].batches.append((part.tolist(), *found[:2]))
        return found

    def a_plan(learner: Any, args: Any) -> Plan:
        assert args is model.args and learner.get_optimizer() is learner.opt
        assert learner.opt.param_groups[0]["params"][0] is made[-1].net.classifier.weight
        return made[-1].plan

    monkeypatch.setattr(scores, "fresh", a_network)
    monkeypatch.setattr(scores, "fetch", noted)
    monkeypatch.setattr(scores, "get_scheduler", a_plan)
    found = scores.held_out_accuracy(model, data)
    assert len(made) == 6
    right = torch.zeros(15)
    for i, it in enumerate(made):
        twin, half = it.twin, 7 + i % 2
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
        for _, inputs, labels in it.batches:
            optimizer.zero_grad()
            F.cross_entropy(twin(inputs)[:, PAST:SEEN], labels - PAST).backward()
            optimizer.step()
        torch.testing.assert_close(it.net.state_dict(), twin.state_dict())
        assert sorted(len(part) for part, *_ in it.batches) == ([3] * 4 if half == 7 else [2, 2, 3, 3, 3, 3])
        assert it.plan.steps == 2 and it.net.calls[-1] == (False, False) and it.net.calls[0] == (True, True)
        assert sum(not training for training, _ in it.net.calls) == 1
        learned = {j for part, *_ in it.batches for j in part}
        with torch.no_grad():
            correct = twin.classifier(3 * data.images)[:, PAST:SEEN].argmax(1) + PAST == torch.tensor(data.targets)
        if half == 8:
            asked = torch.tensor([j not in learned for j in range(15)])
            assert int(asked.sum()) == 7
            right += torch.where(asked, correct, made[i - 1].correct)  # the others are asked of the round's other one
        it.correct = correct
    torch.testing.assert_close(found, right / 3)
    assert 0 < found.mean() < 1


def test_a_flag_without_a_schedule_is_none() -> None:
    data = Data(4)
    assert scores.held_out_accuracy(a_model(data, n_epochs=1), data).shape == (4,)


def test_a_fresh_network_has_new_weights_and_none_of_the_hooks() -> None:
    net = Net().eval()
    net.classifier.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(net.state_dict())
    made = scores.fresh(net)
    assert made.training and not net.training
    assert not made.classifier._forward_hooks and len(net.classifier._forward_hooks) == 1
    assert not torch.equal(made.classifier.weight, net.classifier.weight)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
