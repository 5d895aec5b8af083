"""GEM on features: gradients as factors learn what whole gradients learn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import Start

from backbone.pretrained import Head
from models.utils import factors
from models.utils.factors import Factors, Stored
from utils.buffer import Buffer

SIZES = [5, 9, 4]  # of the old tasks in the buffer


@pytest.fixture
def gem(start: Start) -> Callable[[], SimpleNamespace]:
    """GEM with three old tasks, whose rows are mixed, in double precision, and batches of the fourth."""

    def make(hidden: int = 6, gamma: float = 0.5) -> SimpleNamespace:
        it = start("gem", f"--buffer_size {sum(SIZES)} --gamma {gamma} --lr .3")
        rng = torch.Generator().manual_seed(3)
        it.model.net, it.model.transform = Head(7, hidden, 10).double(), None
        for p in it.model.net.parameters():
            p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64)
        it.model.opt = it.model.get_optimizer()
        tasks = torch.tensor([t for t, size in enumerate(SIZES) for _ in range(size)])
        tasks = tasks[torch.randperm(len(tasks), generator=rng)]
        it.model.buffer = Buffer(len(tasks))
        it.model.buffer.add_data(torch.randn(len(tasks), 7, generator=rng), tasks * 2, task_labels=tasks)
        it.model.buffer.examples = it.model.buffer.examples.double()
        it.batches = [(torch.randn(4, 7, generator=rng, dtype=torch.float64), torch.randint(6, 8, (4,), generator=rng))
                      for _ in range(5)]
        return it

    return make


def weights_after(it: SimpleNamespace) -> tuple[list[float], torch.Tensor, float]:
    """Losses, weights and the next random number, after all batches."""
    np.random.seed(5)
    losses = [it.model.observe(x, y, x) for x, y in it.batches]
    return losses, it.model.net.get_params().detach(), np.random.rand()


@pytest.mark.parametrize("gamma", [0.5, 0.0])
def test_a_step_by_factors_is_the_step_by_whole_gradients(gem: Callable, gamma: float,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    projected = []
    solve = factors.Factors.combined
    monkeypatch.setattr(Factors, "combined", lambda *given: projected.append(1) or solve(*given))
    losses, weights, then = weights_after(gem(gamma=gamma))
    assert projected  # a constraint was at work
    monkeypatch.setattr(Factors, "fit", lambda *_: False)
    by_whole = weights_after(gem(gamma=gamma))
    np.testing.assert_allclose(losses, by_whole[0], rtol=1e-12)
    torch.testing.assert_close(weights, by_whole[1], rtol=0, atol=1e-12)
    assert then == by_whole[2]


def test_a_step_that_hurts_no_task_is_the_streams(gem: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factors, "combined", lambda *_: pytest.fail("nothing is to be added"))
    monkeypatch.setattr(Factors, "products", lambda *_: np.eye(len(SIZES) + 1))
    it = gem()
    x, y = it.batches[0]
    before = [p.detach().clone() for p in it.model.net.parameters()]
    grads = torch.autograd.grad(it.model.loss(it.model.net(x), y), list(it.model.net.parameters()))
    it.model.observe(x, y, x)
    for p, old, g in zip(it.model.net.parameters(), before, grads, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.3 * g, rtol=0, atol=1e-12)


def test_what_was_stored_since_is_seen(gem: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """In new tensors, and in place."""
    it = gem()
    it.model.observe(*it.batches[0], it.batches[0][0])
    first = it.model.stored
    it.model.observe(*it.batches[1], it.batches[1][0])
    assert it.model.stored is first
    it.model.buffer.examples[0] += 1
    it.model.observe(*it.batches[2], it.batches[2][0])
    second = it.model.stored
    assert second is not first and torch.equal(second.products, second.x @ second.x.T) and second.sizes == SIZES
    it.model.buffer.examples = it.model.buffer.examples.clone()
    assert not second.is_of(it.model.buffer)


def test_diverged_gradients_end_as_no_numbers(gem: Callable) -> None:
    it = gem()
    it.model.net.classifier.weight.data[0, 0] = float("inf")
    it.model.observe(*it.batches[0], it.batches[0][0])
    assert it.model.net.hidden.weight.isnan().all()


def test_only_heads_with_a_hidden_layer_and_few_examples_have_factors(gem: Callable,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    it = gem()
    buffer = it.model.buffer
    assert Factors.fit(it.model.net, buffer)
    assert not Factors.fit(gem(hidden=0).model.net, buffer)
    assert not Factors.fit(torch.nn.Linear(7, 10), buffer)
    monkeypatch.setattr(factors, "MOST", sum(SIZES) - 1)
    assert not Factors.fit(it.model.net, buffer)


def test_rows_are_in_order_of_tasks(gem: Callable) -> None:
    buffer = gem().model.buffer
    stored = Stored.of(buffer)
    assert stored.y.tolist() == sorted(buffer.labels.tolist())
    assert all((buffer.examples == row).all(1).sum() == 1 for row in stored.x)
