"""Networks with batch normalisation: what SBS stores and measures is taken in the right mode, and leaves no trace."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.models import scores
from tests.conftest import Start
from tests.models.conftest import SMALL, follow

from datasets.seq_digits import SequentialDigits
from utils.training import train_task

CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 2 --batch_size 8"


def at_the_end_of_a_task(it: SimpleNamespace, tasks: int = 2) -> SimpleNamespace:
    """Trained up to the moment before the buffer is filled; `data` is the last task's."""
    for t in range(tasks):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        train_task(it.model, it.dataset, it.args)
        if t < tasks - 1:
            it.model.meta_end_task(it.dataset)
    it.model.close_task(it.dataset)
    it.data = it.dataset.train_loader.dataset
    return it


def unchanged(net: nn.Module, before: nn.Module) -> bool:
    """Weights, batch statistics, hooks and mode."""
    old = before.state_dict()
    modes = ([(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in of.modules()]
             for of in (net, before))
    return all(torch.equal(old[name], value) for name, value in net.state_dict().items()) and next(modes) == next(modes)


@pytest.mark.parametrize("name", ["der", "derpp", "fdr"])
def test_stored_logits_are_those_of_a_training_step_and_the_network_learns_nothing(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", f"{CONV} --stop_after 1 --buffer_size 20")
    fill, kept = it.model.fill, SimpleNamespace()

    def note(dataset: object, task: Task) -> Tensor:
        kept.before = copy.deepcopy(it.model.net)
        return fill(dataset, task)

    it.model.fill = note
    (entry,) = follow(it)
    assert unchanged(it.model.net, kept.before)
    parts = [7, 7, 6]  # 20 in batches of about 8
    inputs = entry.data.batch(entry.stored)[0].split(parts)  # digits are not augmented
    with torch.no_grad():
        training, evaluation = (torch.cat([net(part) for part in inputs])
                                for net in (kept.before.train(), copy.deepcopy(it.model.net).eval()))
    stored = entry.buffer["logits"][:20]
    torch.testing.assert_close(stored, training)
    assert not torch.allclose(stored, evaluation, atol=1e-2)


@pytest.mark.parametrize("training", [True, False])
def test_what_a_training_step_would_see_and_the_mode_it_was_in(start: Start, training: bool) -> None:
    it = start("derpp_sbs", CONV)
    it.model.net.train(training)
    before = copy.deepcopy(it.model.net)
    x = torch.randn(9, 1, 8, 8)
    outputs = it.model.training_outputs(x)
    assert unchanged(it.model.net, before) and not outputs.requires_grad
    torch.testing.assert_close(outputs, before.train()(x))


def test_stored_logits_are_of_augmented_images(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    it = start("derpp_sbs", CONV)
    given = []
    monkeypatch.setattr(it.model, "training_outputs", lambda inputs: given.append(inputs) or inputs.flatten(1)[:, :10])
    batch = torch.rand(4, 1, 8, 8), torch.arange(4), torch.rand(4, 1, 8, 8)
    stored = it.model.to_store(batch)
    assert given[0] is batch[0] and stored["examples"] is batch[2]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["er", "rpc"])
def test_features_and_logits_are_those_of_evaluation(start: Start, name: str, training: bool) -> None:
    it = at_the_end_of_a_task(start(f"{name}_sbs", f"{CONV} --sampler gss"))
    model = it.model
    model.net.train(training)
    before = copy.deepcopy(model.net)
    task = model.describe(it.data)
    assert unchanged(model.net, before)
    net = copy.deepcopy(model.net).eval()
    images = (it.data.data.float() / 255 - SequentialDigits.MEAN[0]) / SequentialDigits.STD[0]
    seen: list[Tensor] = []
    net.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        outputs = net(images)
    if name == "rpc":
        outputs = outputs[:, :-1] @ model.rpchead
    torch.testing.assert_close(task.features, seen[0])
    torch.testing.assert_close(task.logits, outputs[:, 2:4])  # the second task's classes
    expected = [-float(row.log_softmax(0)[label - 2]) for row, label in zip(task.logits, task.labels, strict=True)]
    torch.testing.assert_close(task.losses, torch.tensor(expected))
    assert task.first_class == 2 and torch.equal(task.speed, model.speed.value)
    net.train()
    with torch.no_grad():
        net(images)
    assert not torch.allclose(task.features, seen[1], atol=1e-2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["er", "rpc"])
def test_the_final_loss_is_that_of_evaluation(start: Start, name: str, training: bool) -> None:
    it = at_the_end_of_a_task(start(f"{name}_sbs", CONV))
    it.model.net.train(training)
    before = copy.deepcopy(it.model.net)
    score = scores.final_loss(it.model, it.data)
    assert unchanged(it.model.net, before)
    images = (it.data.data.float() / 255 - SequentialDigits.MEAN[0]) / SequentialDigits.STD[0]
    with torch.no_grad():
        outputs = before.eval()(images)
        if name == "rpc":
            outputs = outputs[:, :-1] @ it.model.rpchead
    log_p = outputs[:, 2:4].log_softmax(1)
    torch.testing.assert_close(score, log_p[torch.arange(len(log_p)), it.data.targets - 2])


@pytest.mark.parametrize("training", [True, False])
def test_consistency_is_measured_in_evaluation_mode(start: Start, training: bool,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequentialDigits, "PADDING", 2)
    it = at_the_end_of_a_task(start("rpc_sbs", f"{CONV} --n_tasks 2"))
    it.model.net.train(training)
    before = copy.deepcopy(it.model.net)
    torch.manual_seed(1)
    score = scores.consistency(it.model, it.data)
    assert unchanged(it.model.net, before)
    torch.manual_seed(1)
    votes = torch.zeros(100, 5)
    with torch.no_grad():
        for _ in range(scores.VIEWS):
            outputs = before.eval()(it.data.batch(torch.arange(100))[0])[:, :-1] @ it.model.rpchead
            votes[torch.arange(100), outputs[:, 5:].argmax(1)] += 1
    torch.testing.assert_close(score, votes.max(1).values / scores.VIEWS)
    assert len(set(score.tolist())) > 1


def test_the_networks_of_the_c_score_are_asked_about_what_they_did_not_learn_in_evaluation_mode(
        start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    it = at_the_end_of_a_task(start("er_sbs", CONV))
    nets: list[SimpleNamespace] = []
    fresh, fetch, normalized = scores.fresh, scores.fetch, it.model.normalized

    def a_network(net: nn.Module) -> nn.Module:
        nets.append(SimpleNamespace(net=fresh(net), learned=[], asked=[], modes=set()))
        return nets[-1].net

    def learn(data: object, part: Tensor) -> tuple[Tensor, ...]:
        nets[-1].learned += part.tolist()
        nets[-1].modes.add(("learns", nets[-1].net.training))
        return fetch(data, part)

    def ask(data: object, part: Tensor) -> Tensor:
        nets[-1].asked += part.tolist()
        nets[-1].modes.add(("is asked", nets[-1].net.training))
        return normalized(data, part)

    monkeypatch.setattr(scores, "fresh", a_network)
    monkeypatch.setattr(scores, "fetch", learn)
    it.model.normalized = ask
    score = scores.held_out_accuracy(it.model, it.data)
    assert len(nets) == 2 * scores.ROUNDS
    right = torch.zeros(40)
    images = (it.data.data.float() / 255 - SequentialDigits.MEAN[0]) / SequentialDigits.STD[0]
    for net in nets:
        assert len(net.asked) == 20 and set(net.learned) | set(net.asked) == set(range(40))
        assert not set(net.learned) & set(net.asked)
        assert sorted(net.learned) == sorted(2 * list(set(net.learned)))  # two epochs
        assert net.modes == {("learns", True), ("is asked", False)}
        with torch.no_grad():
            right[net.asked] += (net.net.eval()(images[net.asked])[:, 2:4].argmax(1) + 2 == it.data.targets[net.asked])
    torch.testing.assert_close(score, right / scores.ROUNDS)
    assert len({tuple(sorted(net.asked)) for net in nets}) == len(nets)  # other halves in each round


def test_a_fresh_network_is_new_and_forgets_hooks_and_statistics(start: Start) -> None:
    it = start("er_sbs", CONV)
    net = it.model.net
    net.register_forward_hook(lambda *_: None)
    net.train()(torch.randn(8, 1, 8, 8))
    net.eval()
    made = scores.fresh(net)
    assert made.training and not net.training and not made._forward_hooks and net._forward_hooks
    for (name, old), new in zip(net.named_parameters(), made.parameters(), strict=True):
        assert old.shape == new.shape and (not torch.equal(old, new) or "bn" in name or old.dim() == 1)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert not module.running_mean.any() and int(module.num_batches_tracked) == 0


