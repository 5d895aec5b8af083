"""The replay buffer: a fair reservoir, the same as a slow loop, and exact about sizes and types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from utils.buffer import Buffer


def numbers(first: int, count: int) -> torch.Tensor:
    """Examples that carry their own number."""
    return torch.arange(first, first + count, dtype=torch.float32).view(-1, 1, 1, 1)


def held(buffer: Buffer) -> list[int]:
    return buffer.get_all_data()[0].flatten().int().tolist()


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_every_example_of_the_stream_is_equally_likely_to_be_held(batch: int) -> None:
    """60 examples through 10 slots, in batches smaller and larger than the buffer."""
    np.random.seed(0)
    size, n, runs = 10, 60, 600
    counts = np.zeros(n)
    for _ in range(runs):
        buffer = Buffer(size)
        for first in range(0, n, batch):
            buffer.add_data(examples=numbers(first, min(batch, n - first)))
        counts[held(buffer)] += 1
    assert counts.sum() == runs * size
    # a run draws without replacement, so counts vary less than a multinomial's: the statistic shrinks by 1 - size/n
    assert chisquare(counts).statistic / (1 - size / n) < 100  # chi2 with 59 degrees: above 100 once in 1,500


def test_every_slot_is_equally_likely_to_be_overwritten() -> None:
    np.random.seed(0)
    counts = np.zeros(10)
    for _ in range(500):
        buffer = Buffer(10)
        buffer.add_data(examples=numbers(0, 10))
        buffer.add_data(examples=numbers(10, 10))
        counts += buffer.examples.flatten().numpy() >= 10
    assert chisquare(counts).pvalue > 1e-3


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 2**31))
def test_it_equals_a_loop_over_examples_given_the_same_slots(size: int, batches: list[int], seed: int) -> None:
    """What the reservoir does one example at a time: the later of two examples with one slot stays."""
    rng = np.random.RandomState(seed)
    slots = {n: rng.randint(0, n + 1) for n in range(sum(batches))}
    buffer = Buffer(size)
    expected: dict[str, dict[int, float]] = {"examples": {}, "labels": {}, "logits": {}, "task_labels": {}}
    first = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda low, high: np.array([slots[int(h) - 1] for h in high]))
        for count in batches:
            x = numbers(first, count)
            buffer.add_data(examples=x, labels=(x.flatten() + 1).int(), logits=x.view(-1, 1) * 2,
                            task_labels=x.flatten() // 3)
            for n in range(first, first + count):
                slot = n if n < size else slots[n]
                if slot < size:
                    for name, value in (("examples", n), ("labels", n + 1), ("logits", 2 * n), ("task_labels", n // 3)):
                        expected[name][slot] = value
            first += count
    assert buffer.num_seen_examples == first and len(buffer) == min(first, size)
    for name, slots_of_name in expected.items():
        found = getattr(buffer, name).flatten().tolist()
        assert {i: found[i] for i in range(len(buffer))} == slots_of_name


def test_sizes_and_types() -> None:
    buffer = Buffer(5)
    assert buffer.is_empty() and len(buffer) == 0 and buffer.used_attributes == []
    buffer.add_data(examples=torch.rand(3, 1, 2, 2, dtype=torch.float64), labels=torch.tensor([1, 2, 3]).int(),
                    logits=torch.randn(3, 4, dtype=torch.float64), task_labels=torch.ones(3))
    assert not buffer.is_empty() and not buffer.is_full() and len(buffer) == 3 and buffer.num_seen_examples == 3
    assert [(getattr(buffer, name).shape, getattr(buffer, name).dtype) for name in buffer.used_attributes] == [
        ((5, 1, 2, 2), torch.float32), ((5,), torch.int64), ((5, 4), torch.float32), ((5,), torch.int64)]
    buffer.add_data(examples=torch.rand(4, 1, 2, 2), labels=torch.arange(4), logits=torch.rand(4, 4),
                    task_labels=torch.zeros(4))
    assert buffer.is_full() and len(buffer) == 5 and buffer.num_seen_examples == 7
    buffer.empty()
    assert buffer.is_empty() and buffer.used_attributes == []


def test_it_keeps_values_and_not_the_graph_or_the_callers_memory() -> None:
    buffer, logits = Buffer(2), torch.ones(2, 3, requires_grad=True)
    x = torch.zeros(2, 1)
    buffer.add_data(examples=x, logits=logits * 2)
    x += 5
    assert not buffer.logits.requires_grad and buffer.examples.sum() == 0


def test_nothing_is_a_batch_too() -> None:
    buffer = Buffer(4)
    buffer.add_data(examples=numbers(0, 0), labels=torch.zeros(0).long())
    assert buffer.is_empty() and len(buffer) == 0
    buffer.add_data(examples=numbers(0, 2), labels=torch.arange(2))
    assert held(buffer) == [0, 1]


@pytest.mark.parametrize("filled", [1, 6, 10, 25])
def test_a_draw_repeats_nothing_and_stays_within_what_was_stored(filled: int) -> None:
    """Also from a buffer that is not full: its zero rows are never drawn, and never more than there is."""
    np.random.seed(0)
    buffer = Buffer(10)
    buffer.add_data(examples=numbers(100, filled), labels=torch.arange(100, 100 + filled))
    n = min(filled, 10)
    seen = set()
    for size in (1, 4, 10, 50):
        for _ in range(20):
            index, x, y = buffer.get_data(size, return_index=True)
            assert len(index) == len(x) == len(y) == min(size, n)
            assert len(set(index.tolist())) == len(index) and int(index.max()) < n
            assert torch.equal(x.flatten().long(), y) and torch.equal(buffer.labels[index], y)
            assert y.min() >= 100
            seen |= set(index.tolist())
    assert seen == set(range(n))
    assert sorted(held(buffer)) == sorted(buffer.labels[:n].tolist())


def test_draws_are_uniform() -> None:
    np.random.seed(0)
    buffer = Buffer(8)
    buffer.add_data(examples=numbers(0, 8))
    counts = np.zeros(8)
    for _ in range(1000):
        counts[buffer.get_data(2)[0].flatten().int()] += 1
    assert chisquare(counts).pvalue > 1e-3


def test_the_transform_is_for_the_images_only() -> None:
    buffer = Buffer(3)
    buffer.add_data(examples=numbers(0, 3), labels=torch.arange(3))
    x, y = buffer.get_data(3, transform=lambda x: x * 10)
    assert torch.equal(x.flatten(), y * 10.0)
    assert buffer.examples.flatten().tolist() == [0, 1, 2]
    assert buffer.get_all_data(transform=lambda x: x + 1)[0].flatten().tolist() == [1, 2, 3]


def test_serialize_and_load_make_an_equal_buffer_that_goes_on_equally() -> None:
    a = Buffer(4)
    a.add_data(examples=numbers(0, 9), labels=torch.arange(9), logits=torch.randn(9, 3))
    b = Buffer(4)
    b.add_data(examples=numbers(50, 2), task_labels=torch.zeros(2))  # is forgotten
    b.load({name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in a.serialize().items()})
    assert b.used_attributes == ["examples", "labels", "logits"]
    for buffer in (a, b):
        np.random.seed(1)
        buffer.add_data(examples=numbers(9, 20), labels=torch.arange(9, 29), logits=torch.ones(20, 3))
    assert a.num_seen_examples == b.num_seen_examples == 29
    assert all(torch.equal(x, y) for x, y in zip(a.get_all_data(), b.get_all_data(), strict=True))


def test_slots_are_named_by_number_or_by_a_mask() -> None:
    buffer = Buffer(4)
    buffer.add_data(torch.arange(4.0)[:, None], torch.arange(4))
    for slots in (torch.tensor([3, 1]), torch.tensor([False, True, False, True])):
        examples, labels = buffer.get_data_by_index(slots)
        assert sorted(labels.tolist()) == [1, 3] and torch.equal(examples[:, 0], labels.float())
