"""What holds for every sampler, whatever the task: distinct indices, quotas, its own generator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mammoth_sbs.core.samplers import Task, get_sampler
from mammoth_sbs.core.samplers.base import by_class, spread
from tests.core.conftest import FIELDS, NAMES, choose, make_task, seeded


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Tasks of any size, with repeated rows, rows of zeros, single classes and constant fields."""
    n, d, classes = draw(st.integers(0, 24)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    first_class = draw(st.integers(0, 9))
    g = seeded(draw(st.integers(0, 2**31)))
    distinct = draw(st.integers(1, 24))
    rows = torch.randint(distinct, (n,), generator=g)
    scale = draw(st.sampled_from([0.0, 1e-6, 1.0, 1e4]))
    features = scale * torch.randn(24, d, generator=g)[rows]
    features[torch.rand(n, generator=g) < draw(st.sampled_from([0.0, 0.3]))] = 0
    logits = scale * torch.randn(24, classes, generator=g)[rows]
    columns = torch.randint(classes, (n,), generator=g)
    losses = F.cross_entropy(logits, columns, reduction="none")
    speed, uncertainty = torch.rand(n, generator=g), torch.randint(5, (n,), generator=g) / 5
    return Task(columns + first_class, speed, features, logits, losses, first_class, uncertainty)


@pytest.mark.parametrize("name", NAMES)
@given(task=tasks(), k=st.integers(0, 30), seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_any_k_gives_distinct_indices_and_the_same_for_the_same_generator(
    name: str, task: Task, k: int, seed: int
) -> None:
    outside = torch.random.get_rng_state()
    chosen = get_sampler(name).choose(task, k, seeded(seed))
    assert torch.equal(torch.random.get_rng_state(), outside)
    assert chosen.dtype == torch.int64 and chosen.device.type == "cpu"
    assert len(chosen) == min(k, len(task)) == len(set(chosen.tolist()))
    assert all(0 <= i < len(task) for i in chosen.tolist())
    assert torch.equal(chosen, get_sampler(name).choose(task, k, seeded(seed)))


@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=8), data=st.data())
def test_quotas_are_as_even_as_the_classes_allow(counts: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, sum(counts)))
    quotas = spread(torch.tensor(counts), k, seeded(data.draw(st.integers(0, 50)))).tolist()
    assert sum(quotas) == k
    for quota, count in zip(quotas, counts, strict=True):
        assert 0 <= quota <= count
        assert quota == count or quota >= max(quotas) - 1


def test_quotas_by_hand() -> None:
    assert spread(torch.tensor([3, 3]), 6, seeded()).tolist() == [3, 3]
    assert spread(torch.tensor([2, 10, 10]), 8, seeded()).tolist() == [2, 3, 3]  # the first has no more to give
    assert spread(torch.tensor([2, 10]), 0, seeded()).tolist() == [0, 0]
    rests = {tuple(spread(torch.tensor([2, 10, 10]), 9, seeded(seed)).tolist()) for seed in range(20)}
    assert rests == {(2, 3, 4), (2, 4, 3)}
    single = {tuple(spread(torch.tensor([5, 5, 5]), 1, seeded(seed)).tolist()) for seed in range(30)}
    assert single == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


def test_each_class_comes_with_its_examples_in_random_order() -> None:
    labels = torch.tensor([9, 4, 9, 4, 9, 9, 4, 9])
    orders = set()
    for seed in range(10):
        (fours, of_four), (nines, of_nine) = by_class(labels, 4, seeded(seed))
        assert (of_four, of_nine, sorted(fours.tolist()), sorted(nines.tolist())) == (2, 2, [1, 3, 6], [0, 2, 4, 5, 7])
        orders.add(tuple(nines.tolist()))
    assert len(orders) > 5


def test_samplers_draw_from_the_generator_that_is_given_and_from_no_other() -> None:
    task, before = make_task(24), torch.get_rng_state()
    for name in [*NAMES, "speed"]:
        sampler = get_sampler(name)
        for draw in (lambda g, it=sampler: it.choose(task, 10, g),
                     lambda g, it=sampler: it.choose_per_class(task, {0: 2, 2: 5}, g)):
            assert torch.equal(draw(seeded(3)), draw(seeded(3))), name
            assert torch.equal(torch.get_rng_state(), before), name


def test_no_example_and_one_can_be_asked_for() -> None:
    task = make_task(12)
    for name in [*NAMES, "speed"]:
        assert choose(name, task, 0) == [] and len(choose(name, task, 1)) == 1, name


def test_what_a_task_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="this sampler needs `features`, which the task does not have"):
        Task(torch.arange(3), speed=torch.ones(3)).need("features")


@pytest.mark.parametrize("name", ["herding", "ipm"])
def test_the_rest_of_k_goes_to_random_classes(name: str) -> None:
    task = make_task(40, classes=4)
    extra = set()
    for seed in range(20):
        sizes = task.labels[choose(name, task, 9, seed)].bincount(minlength=4)
        assert sorted(sizes.tolist()) == [2, 2, 2, 3]
        extra.add(int(sizes.argmax()))
    assert extra == {0, 1, 2, 3}


@pytest.mark.parametrize("name", NAMES)
def test_quotas_per_class_are_met(name: str) -> None:
    task = make_task(30, classes=3, first_class=6)
    chosen = get_sampler(name).choose_per_class(task, {8: 2, 6: 5, 7: 99}, seeded())
    assert len(chosen.unique()) == len(chosen)
    assert task.labels[chosen].tolist() == [8] * 2 + [6] * 5 + [7] * 10
    assert get_sampler(name).choose_per_class(task, {}, seeded()).tolist() == []


def test_a_part_of_a_task_keeps_its_fields() -> None:
    task = make_task(9, first_class=5)
    part = task.subset(torch.tensor([4, 2]))
    assert (part.first_class, part.labels.tolist()) == (5, [6, 7])
    assert torch.equal(part.need("logits"), task.need("logits")[[4, 2]])
    assert len(task) == 9 and Task(task.labels).subset(torch.tensor([0])).features is None


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_named(name: str) -> None:
    sampler = get_sampler(name)
    with pytest.raises(ValueError, match="k must not be negative"):
        sampler.choose(make_task(9), -1, seeded())
    for field in sampler.needs:
        for bad in (math.nan, math.inf):
            task = make_task(9)
            getattr(task, field).view(-1)[3] = bad
            with pytest.raises(ValueError, match=f"`{field}` has values that are not finite"):
                sampler.choose(task, 3, seeded())
        setattr(task, field, None)
        with pytest.raises(ValueError, match=f"needs `{field}`"):
            sampler.choose(task, 3, seeded())


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_reads_only_what_it_needs(name: str) -> None:
    task = make_task(12)
    for field in set(FIELDS) - get_sampler(name).needs:
        setattr(task, field, None)
    assert len(choose(name, task, 5)) == 5
