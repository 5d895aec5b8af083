"""GEM and A-GEM: one step against a slow reference, awkward gradients, and A-GEM's buffer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.vendor.models.conftest import (
    BUFFER,
    CPT,
    STEP,
    Reference,
    at_task,
    batch,
    check,
    counts_after,
    cross_entropy,
    flat,
    per_class,
)


def nearest_in_cone(g: np.ndarray, memories: np.ndarray, margin: float, eps: float) -> np.ndarray:
    """GEM's dual program by trying every set of active bounds: min v'(MM' + eps)v/2 + (Mg)'v with v >= margin."""
    n = len(memories)
    gram, linear = memories @ memories.T + eps * np.eye(n), memories @ g
    best, best_value = None, math.inf
    for bound in itertools.product([True, False], repeat=n):
        free = ~np.array(bound)
        v = np.full(n, margin)
        if free.any():
            v[free] = np.linalg.solve(gram[np.ix_(free, free)], -linear[free] - gram[np.ix_(free, ~free)] @ v[~free])
        value = v @ gram @ v / 2 + linear @ v
        if (v >= margin - 1e-12).all() and value < best_value:
            best, best_value = v, value
    assert best is not None
    return g + best @ memories


@pytest.mark.parametrize("gamma", [0.5, 0.0])
def test_gem_step(ready: Callable, drawn: list[Tensor], gamma: float) -> None:
    """Third task: one constraint per old task, from all that the buffer holds of it."""
    it = ready("gem", "labels", "task_labels", task=2, tasks=2, flags=f"--gamma {gamma}")
    ref, (x, y, raw) = Reference(it), batch(it)
    memories = []
    for t in (0, 1):
        rows = torch.tensor([i for i in range(BUFFER) if ref.buffer["task_labels"][i] == t])
        memories.append(flat(ref.grads(cross_entropy(ref.net(ref.images(rows)), ref.buffer["labels"][rows]))))
    loss = cross_entropy(ref.net(x), y)
    g = flat(ref.grads(loss))
    assert min(m @ g for m in memories) < 0  # the constraint is at work
    projected = torch.from_numpy(nearest_in_cone(g, np.stack(memories), gamma, 1e-3)).float()
    parts = projected.split([p.numel() for p in ref.net.parameters()])
    ref.update([part.view_as(p) for part, p in zip(parts, ref.net.parameters(), strict=True)])
    check(it, ref, it.model.observe(x, y, raw), float(loss.detach()))


def test_gem_leaves_a_gradient_that_hurts_no_task(start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([2.0, 0.0, 5.0])
    assert observed_gradient(start("gem", STEP), monkeypatch, "gem", [*memories, g]).tolist() == g.tolist()


def observed_gradient(it: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, module: str, given: list[Tensor]) -> Tensor:
    """What the optimiser gets if the method's backward passes gave these gradients, padded to the network's size."""
    at_task(it, len(given) - 1)
    tasks = torch.arange(BUFFER) % (len(given) - 1)
    it.model.buffer.add_data(examples=torch.rand(BUFFER, 1, 8, 8), labels=tasks * CPT,
                             **({"task_labels": tasks} if module == "gem" else {}))
    size = sum(p.numel() for p in it.model.net.parameters())
    left = iter(given if module == "gem" else given[::-1])  # GEM asks for the memories first, A-GEM for the stream
    monkeypatch.setattr(f"models.{module}.gradient", lambda net, loss: F.pad(next(left), (0, size - len(given[0]))))
    monkeypatch.setattr(it.model.opt, "step", lambda: None)
    it.model.observe(*batch(it))
    return it.model.net.get_grads()[: len(given[0])]


AWKWARD = {
    "opposite": ([[1, 0, 0], [0, 1, 0]], [-1, 0, 0]),
    "parallel": ([[1, 2, 3], [2, 4, 6]], [-1, 1, -1]),
    "equal": ([[1, 2, 3], [1, 2, 3]], [-1, -2, -3]),
    "zero memory": ([[0, 0, 0], [1, 1, 0]], [-1, 0, 1]),
    "zero stream": ([[1, 0, 0], [0, 1, 0]], [0, 0, 0]),
    "all zero": ([[0, 0, 0], [0, 0, 0]], [0, 0, 0]),
    "huge": ([[1e22, 0, 0], [0, 3e22, 1e22]], [-1e22, -2e22, 1e22]),
    "huge and parallel": ([[1e22, 2e22, 3e22], [2e22, 4e22, 6e22]], [-1e22, 1e22, -1e22]),
    "huge beside tiny": ([[1e22, 0, 0], [0, 1e-22, 0]], [-1e22, -1e-22, 1.0]),
    "tiny": ([[1e-22, 0, 0], [0, 3e-22, 1e-22]], [-1e-22, -2e-22, 1e-22]),
    "contradicting": ([[1, 0, 0], [-1, 0, 0]], [1, 1, 0]),
}


@pytest.mark.parametrize("case", AWKWARD)
def test_gem_survives_awkward_gradients_and_keeps_its_constraints(
        case: str, start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = (torch.tensor(v, dtype=torch.float32) for v in AWKWARD[case])
    out = observed_gradient(start("gem", f"{STEP} --gamma 0.5"), monkeypatch, "gem", [*memories, g])
    assert torch.isfinite(out).all()
    out, memories = out.double(), memories.double()
    lengths = memories.norm(dim=1) * out.norm()
    assert (memories @ out >= -5e-3 - 1e-5 * lengths).all()  # 5e-3: GEM's own regularisation, 1e-3 times v


@pytest.mark.parametrize("part", [3, 7, 8192])
@pytest.mark.parametrize("seed", range(5))
def test_gem_projection_is_the_nearest_gradient_that_hurts_no_task(seed: int, part: int,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parameters it takes at a time."""
    from models.gem import project_to_cone

    monkeypatch.setattr("models.gem.PART", part)
    rng = np.random.default_rng(seed)
    memories, g = rng.normal(size=(4, 7)), rng.normal(size=7)
    for margin in (0.0, 0.5):
        out = project_to_cone(torch.from_numpy(g), torch.from_numpy(memories), margin).numpy()
        np.testing.assert_allclose(out, nearest_in_cone(g, memories, margin, 1e-3), rtol=1e-6, atol=1e-9)
    assert (memories @ project_to_cone(torch.from_numpy(g), torch.from_numpy(memories), 0.0).numpy() > -5e-3).all()


def test_gem_hands_gradients_that_are_not_numbers_on() -> None:
    from models.gem import project_to_cone

    for bad in (float("nan"), float("inf")):
        memories = torch.tensor([[1.0, bad], [0.0, 1.0]])
        assert project_to_cone(torch.tensor([-1.0, 1.0]), memories, 0.5).isnan().all()


def test_agem_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("agem", "labels")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    g = flat(ref.grads(loss))
    old = flat(ref.grads(cross_entropy(ref.net(ref.images(drawn[0])), ref.buffer["labels"][drawn[0]])))
    assert g @ old < 0  # the constraint is at work
    projected = torch.from_numpy(g - (g @ old) / (old @ old) * old).float()
    parts = projected.split([p.numel() for p in ref.net.parameters()])
    ref.update([part.view_as(p) for part, p in zip(parts, ref.net.parameters(), strict=True)])
    check(it, ref, it.model.observe(x, y, raw), float(loss.detach()))


@pytest.mark.parametrize("case", AWKWARD)
def test_agem_survives_awkward_gradients_and_keeps_its_constraint(
        case: str, start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, g = (torch.tensor(v, dtype=torch.float32) for v in AWKWARD[case])
    for memory in memories:
        out = observed_gradient(start("agem", STEP), monkeypatch, "agem", [memory, g])
        assert torch.isfinite(out).all()
        overlap = memory.double() @ g.double()
        expected = g.double() - min(float(overlap), 0) / float(memory.double() @ memory.double() or 1) * memory.double()
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5 * float(g.abs().max()))


def test_agem_buffer_as_mammoth_and_as_the_paper(start: Callable) -> None:
    """Mammoth stores one batch of a task, whatever the buffer's size; the paper its share."""
    flags = "--train_per_class 30 --n_epochs 1 --buffer_size 50 --batch_size 8"
    sums = [[sum(c[i : i + 2]) for i in (0, 2, 4)] for c in counts_after(start("agem", flags), 3, per_class)]
    assert sums == [[8, 0, 0], [8, 8, 0], [8, 8, 8]]
    paper = counts_after(start("agem", flags + " --as_paper 1"), 3, per_class)
    assert [[sum(c[i : i + 2]) for i in (0, 2, 4)] for c in paper] == [[10, 0, 0], [10, 10, 0], [10, 10, 10]]
    it = start("agem", flags + " --as_paper 1")
    counts_after(it, 1, per_class)
    assert len(it.model.buffer.get_all_data()[0].flatten(1).unique(dim=0)) == 10  # ten different images


def test_of_parameters_that_a_loss_does_not_reach_the_gradient_is_zero() -> None:
    from models.utils.continual_model import gradient

    net = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    x = torch.tensor([[3.0, 5.0]])
    assert torch.equal(gradient(net, net[0](x).sum()), torch.tensor([3.0, 5.0, 0.0]))
