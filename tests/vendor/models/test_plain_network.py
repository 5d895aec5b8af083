"""GEM and A-GEM take any network, as Mammoth's do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import Start


@pytest.mark.parametrize("name", ["gem", "agem"])
def test_a_plain_module_is_enough(start: Start, name: str) -> None:
    it = start(name, "--stop_after 2 --train_per_class 20")
    it.model.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    it.args.disable_log = True
    before = it.model.net[1].weight.clone()
    from utils.training import train

    train(it.model, it.dataset, it.args)
    assert not torch.equal(before, it.model.net[1].weight) and len(it.model.buffer)


def test_gem_keeps_the_gradients_of_its_last_step(start: Start) -> None:
    """One of each task that has ended, and the stream's, under Mammoth's names."""
    it = start("gem", "--train_per_class 20 --lr .01")
    model, dataset = it.model, it.dataset
    size = sum(p.numel() for p in model.net.parameters())
    assert model.grads_cs == [] and model.grads_da.shape == (size,)
    for t in range(3):
        dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        inputs, labels, not_aug = next(iter(dataset.train_loader))
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(
            model.loss(model.net(inputs), labels), list(model.net.parameters()))])
        model.meta_observe(inputs, labels, not_aug, epoch=0)
        assert len(model.grads_cs) == t and torch.allclose(model.grads_da, expected)
        assert all(g.shape == (size,) and bool(g.any()) for g in model.grads_cs)
        model.meta_end_task(dataset)
        assert len(model.grads_cs) == t + 1
