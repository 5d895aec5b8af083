"""FDR: one step against a slow reference, and the buffer number by number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.vendor.models.conftest import (
    BUFFER,
    MINI,
    STEP,
    Reference,
    at_task,
    batch,
    check,
    counts_after,
    cross_entropy,
)


@pytest.mark.parametrize("as_paper", [0, 1])
def test_fdr_step(ready: Callable, drawn: list[Tensor], as_paper: int) -> None:
    """Two updates; in stock Mammoth alpha has no effect, with `--as_paper 1` it weighs the second."""
    it = ready("fdr", "logits", "task_labels", flags=f"--alpha 0.4 --as_paper {as_paper}")
    ref, (x, y, raw) = Reference(it), batch(it)
    ref.descend(cross_entropy(ref.net(x), y))
    now, then = ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]]
    distances = [((a.exp() / a.exp().sum() - b.exp() / b.exp().sum()) ** 2).sum().sqrt()
                 for a, b in zip(now, then, strict=True)]
    expected = ref.descend((0.4 if as_paper else 1) * sum(distances) / MINI)
    check(it, ref, it.model.observe(x, y, raw), expected)


def per_task(it: SimpleNamespace) -> list[int]:
    tasks = it.model.buffer.get_all_data()[it.model.buffer.used_attributes.index("task_labels")]
    return torch.bincount(tasks, minlength=3).tolist()


def test_fdr_buffer_as_mammoth_and_as_the_paper(start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mammoth gives every task buffer_size / t with t from 0, and lets the reservoir sort out what is too much."""
    size, n = 20, 60

    def slot(seen: int) -> int:
        return (7 * seen + 3) % (seen + 1)

    monkeypatch.setattr(np.random, "randint", lambda low, high: np.array([slot(int(h) - 1) for h in high]))
    flags = f"--train_per_class {n // 2} --n_epochs 1 --buffer_size {size} --batch_size 8"
    tasks: list[int] = []
    expected = []
    for t in range(3):
        share = size // t if t else size
        offered = [k for task in sorted(set(tasks)) for k in [x for x in tasks if x == task][:share]]
        offered += [t] * min(share, n)
        tasks = []
        for seen, task in enumerate(offered):
            place = seen if seen < size else slot(seen)
            if place < size:
                tasks[place : place + 1] = [task]
        expected.append([tasks.count(k) for k in range(3)])
    assert expected[0] == [20, 0, 0] and expected[1][1] > 0 and expected[2][2] > 0
    assert counts_after(start("fdr", flags), 3, per_task) == expected
    assert counts_after(start("fdr", flags + " --as_paper 1"), 3, per_task) == [[20, 0, 0], [10, 10, 0], [6, 6, 6]]


@pytest.mark.parametrize("size, passes", [(12, 3), (16, 4)])
def test_fdr_stores_the_training_outputs_of_the_images(start: Callable, size: int, passes: int) -> None:
    """Logits of augmented images in training mode. Running statistics learn from it, and as in Mammoth from one batch
    more than could be stored: the third of 8 if 12 are, the fourth if 16 are."""
    flags = STEP.replace(f"--buffer_size {BUFFER}", f"--buffer_size {size}").replace("class 12", "class 20")
    it = start("fdr", flags)
    at_task(it, 0)
    net, loader = copy.deepcopy(it.model.net), it.dataset.train_loader
    order = loader.generator.get_state()
    it.model.end_task(it.dataset)
    loader.generator.set_state(order)
    batches = list(loader)
    assert len(batches) == 5
    with torch.no_grad():
        logits = torch.cat([net(x) for x, *_ in batches[:passes]])
    examples, stored, tasks = it.model.buffer.get_all_data()
    assert torch.equal(examples, torch.cat([raw for _, _, raw in batches])[:size])
    torch.testing.assert_close(stored, logits[:size])
    assert tasks.tolist() == [0] * size
    for ours, theirs in zip(it.model.net.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
