"""Scores from training dynamics, by hand."""

from __future__ import annotations

import pytest
import torch

from mammoth_sbs.core.dynamics import DYNAMICS, ForgettingEvents


def test_margin_is_the_mean_over_epochs_of_the_labels_logit_minus_the_largest_other() -> None:
    margin = DYNAMICS["margin"](3)
    for logits in ([[4.0, 1.0, 2.0], [0.0, 5.0, 9.0]], [[1.0, 0.0, 3.0], [0.0, 5.0, 3.0]]):
        margin.update(torch.tensor([2, 0]), torch.tensor([0, 1]), torch.tensor(logits))
    assert margin.value.tolist() == [(-4 + 2) / 2, 0, (2 - 2) / 2]
    single = DYNAMICS["margin"](1)
    single.update(torch.tensor([0]), torch.tensor([0]), torch.tensor([[3.0]]))
    assert single.value.tolist() == [0]  # a task of one class


def test_el2n_is_minus_the_length_of_the_error() -> None:
    el2n = DYNAMICS["el2n"](2)
    el2n.update(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log())
    assert el2n.value.tolist() == pytest.approx([-(0.25**2 * 2) ** 0.5, -(0.75**2 * 2) ** 0.5])


def test_el2n_is_of_the_own_label_of_each_example() -> None:
    el2n, logits = DYNAMICS["el2n"](3), torch.tensor([[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]).log()
    el2n.update(torch.tensor([2, 0, 1]), torch.tensor([1, 1, 0]), logits)
    right, wrong = -(0.5**2 + 2 * 0.25**2) ** 0.5, -(0.75**2 + 0.5**2 + 0.25**2) ** 0.5
    assert el2n.value.tolist() == pytest.approx([right, wrong, wrong])


def test_forgetting_events_count_from_right_to_wrong_and_never_right_is_worst() -> None:
    events, right = ForgettingEvents(4), ["1011", "1111", "0000", "0101"]  # epochs of each example
    for epoch in range(4):
        logits = torch.tensor([[float(bits[epoch] == "1"), 0.5] for bits in right])
        events.update(torch.arange(4), torch.zeros(4, dtype=torch.int64), logits)
    assert events.value.tolist() == [-1, 0, -4, -1]


@pytest.mark.parametrize("name", DYNAMICS)
def test_what_is_saved_is_a_copy_and_goes_on(name: str) -> None:
    one, other = DYNAMICS[name](5), DYNAMICS[name](5)
    g = torch.Generator().manual_seed(0)
    batches = [(torch.randperm(5, generator=g)[:3], torch.randint(4, (3,), generator=g), torch.randn(3, 4, generator=g))
               for _ in range(8)]
    for batch in batches[:4]:
        one.update(*batch)
    state = one.state_dict()
    for batch in batches[4:]:
        one.update(*batch)
    other.load_state_dict(state)
    for batch in batches[4:]:
        other.update(*batch)
    assert torch.equal(one.value, other.value) and one.value.abs().sum() > 0
