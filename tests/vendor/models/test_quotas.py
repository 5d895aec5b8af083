"""Buffers with a quota per class, number by number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.vendor.models.conftest import CPT, counts_after, per_class


@pytest.mark.parametrize("size", [20, 25, 47])
def test_xder_class_quotas_are_exact(start: Callable, size: int) -> None:
    """Old classes have buffer_size / classes seen each; the new ones share the rest as evenly as it goes."""
    it = start("xder", f"--train_per_class 30 --n_epochs 1 --buffer_size {size}")
    for t, counts in enumerate(counts_after(it, 5, per_class)):
        old, new = counts[: CPT * t], counts[CPT * t : CPT * (t + 1)]
        assert old == [size // (CPT * (t + 1))] * len(old)
        assert sum(counts) == size and max(new) - min(new) <= 1


@pytest.mark.parametrize("size", [20, 25, 47])
def test_gem_class_quotas_are_exact(start: Callable, size: int) -> None:
    """Every class seen has buffer_size / classes seen, rounded down."""
    it = start("gem", f"--train_per_class 30 --n_epochs 1 --buffer_size {size}")
    for t, counts in enumerate(counts_after(it, 5, per_class)):
        seen = CPT * (t + 1)
        assert counts == [size // seen] * seen + [0] * (10 - seen)
    _, labels, tasks = it.model.buffer.get_all_data()
    assert torch.equal(tasks, labels // CPT)


def test_a_class_with_fewer_images_than_its_quota_leaves_room(start: Callable) -> None:
    for model in ("gem", "xder", "rpc"):
        counts = counts_after(start(model, "--train_per_class 4 --n_epochs 1 --buffer_size 40"), 1, per_class)
        assert counts == [[4, 4] + [0] * 8]
