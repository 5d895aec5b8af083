"""ER, DER and DER++: one step against a slow reference, and what it puts into the buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.vendor.models.conftest import BATCH, BUFFER, Reference, batch, check, cross_entropy, mean_square


def test_er_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("er", "labels")
    ref, (x, y, raw) = Reference(it), batch(it)
    logits = ref.net(torch.cat([x, ref.images(drawn[0])]))  # one pass: batch norm sees both together
    expected = ref.descend(cross_entropy(logits, torch.cat([y, ref.buffer["labels"][drawn[0]]])))
    check(it, ref, it.model.observe(x, y, raw), expected)


def test_der_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("der", "logits")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    loss = loss + 0.3 * mean_square(ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]])
    check(it, ref, it.model.observe(x, y, raw), ref.descend(loss))


def test_derpp_step(ready: Callable, drawn: list[Tensor]) -> None:
    it = ready("derpp", "labels", "logits")
    ref, (x, y, raw) = Reference(it), batch(it)
    loss = cross_entropy(ref.net(x), y)
    loss = loss + 0.2 * mean_square(ref.net(ref.images(drawn[0])), ref.buffer["logits"][drawn[0]])
    loss = loss + 0.5 * cross_entropy(ref.net(ref.images(drawn[1])), ref.buffer["labels"][drawn[1]])
    check(it, ref, it.model.observe(x, y, raw), ref.descend(loss))


@pytest.mark.parametrize("model, fields", [("er", ["labels"]), ("der", ["logits"]), ("derpp", ["labels", "logits"])])
def test_what_a_step_puts_into_the_buffer(
        model: str, fields: list[str], ready: Callable, drawn: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Images neither augmented nor normalised, labels, and the outputs that the step itself had before its update."""
    it = ready(model, *fields)
    ref, (x, y, raw) = Reference(it), batch(it)
    expected = {"examples": raw, "labels": y, "logits": ref.net(x).detach()}
    monkeypatch.setattr(np.random, "randint", lambda low, high: np.arange(BATCH))  # the reservoir's slots
    it.model.observe(x, y, raw)
    assert it.model.buffer.used_attributes == ["examples", *fields]
    for name in it.model.buffer.used_attributes:
        torch.testing.assert_close(getattr(it.model.buffer, name)[:BATCH], expected[name])
    assert it.model.buffer.num_seen_examples == BUFFER + BATCH
