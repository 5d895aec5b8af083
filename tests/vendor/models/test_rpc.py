"""RPC: one step against a slow reference, the buffer, and the fixed head."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.vendor.models.conftest import Reference, batch, check, counts_after, cross_entropy, per_class


@pytest.mark.parametrize("as_paper", [0, 1])
def test_rpc_step(ready: Callable, drawn: list[Tensor], as_paper: int) -> None:
    """Stock Mammoth trains the plain logits; the paper trains through the fixed polytope."""
    it = ready("rpc", "labels", flags=f"--as_paper {as_paper}")
    ref, (x, y, raw) = Reference(it), batch(it)
    logits = ref.net(torch.cat([x, ref.images(drawn[0])]))
    if as_paper:
        logits = torch.stack([row[:9] @ it.model.rpchead for row in logits])
    expected = ref.descend(cross_entropy(logits, torch.cat([y, ref.buffer["labels"][drawn[0]]])))
    check(it, ref, it.model.observe(x, y, raw), expected)


def test_rpc_buffer_as_mammoth_and_as_the_paper(start: Callable) -> None:
    """Mammoth divides by the tasks before this one, so the second task finds no room at all."""
    flags = "--train_per_class 30 --n_epochs 1 --buffer_size 20"
    assert [c[:6] for c in counts_after(start("rpc", flags), 3, per_class)] == [
        [10, 10, 0, 0, 0, 0], [10, 10, 0, 0, 0, 0], [5, 5, 0, 0, 5, 5]]
    assert [c[:6] for c in counts_after(start("rpc", flags + " --as_paper 1"), 3, per_class)] == [
        [10, 10, 0, 0, 0, 0], [5, 5, 5, 5, 0, 0], [3, 3, 3, 3, 4, 4]]


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_polytope_has_unit_columns_with_equal_angles(n: int) -> None:
    from models.rpc import polytope

    head = polytope(n).double()
    assert head.shape == (n - 1, n)
    gram = head.T @ head
    expected = torch.full((n, n), -1 / (n - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-6)


def test_rpc_predicts_by_the_nearest_vertex(start: Callable) -> None:
    it = start("rpc", "--n_epochs 1")
    vertices = it.model.rpchead.T
    it.model.net.forward = lambda x: F.pad(vertices, (0, 1), value=100.0)  # the last output plays no role
    assert it.model(torch.zeros(10, 1, 8, 8)).argmax(1).tolist() == list(range(10))
