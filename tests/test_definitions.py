"""Small definitions, by hand: the same few images of each class, metrics, edges of learning speed and of samplers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mammoth_sbs.core.samplers import get_sampler
from mammoth_sbs.core.samplers.base import clamp
from mammoth_sbs.core.samplers.ccs import CCS, STRATA
from mammoth_sbs.core.samplers.gss import error_direction
from mammoth_sbs.core.samplers.task import Task
from mammoth_sbs.core.speed import LearningSpeed, SpeedHook
from mammoth_sbs.few import per_class
from mammoth_sbs.metrics import METRICS, anytime

LABELS = np.array([7] * 30 + [3] * 10 + [5])


@pytest.mark.parametrize(("count", "each"), [(3, [3, 3, 1]), (0.1, [3, 1, 1]), (0.25, [8, 3, 1]), (1.0, [30, 10, 1])])
def test_so_many_or_such_a_part_of_each_class_is_taken(count: float, each: list[int]) -> None:
    """A part is rounded up; 0.1 * 30 is 3.0000000000000004 and means 3."""
    rows = per_class(LABELS, count, 0)
    assert [(LABELS[rows] == c).sum() for c in (7, 3, 5)] == each
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_each_seed_takes_others_and_the_same_again() -> None:
    state = np.random.get_state()[1].copy()
    taken = {seed: per_class(LABELS, 3, seed).tolist() for seed in (0, 1, 2**31, 2**32 - 1)}
    assert len({tuple(rows) for rows in taken.values()}) == 4
    for seed, rows in taken.items():
        assert per_class(LABELS, 3, seed + 2**32).tolist() == per_class(LABELS, 3, seed).tolist() == rows
    assert (np.random.get_state()[1] == state).all()  # drawn with their own generator
    everywhere = {row for seed in range(60) for row in per_class(LABELS, 3, seed).tolist()}
    assert everywhere == set(range(41))


def test_which_metrics_are_accuracies_and_which_are_better_when_low() -> None:
    assert {name for name, metric in METRICS.items() if metric.accuracy} == {"final", "average_incremental", "anytime"}
    assert {name for name, metric in METRICS.items() if not metric.higher_is_better} == {"forgetting"}
    assert {name for name, metric in METRICS.items() if metric.of is None} == {"forward_transfer", "anytime"}
    assert anytime([[90.0], [50.0, 70.0]]) == 75


# ---- learning speed

def test_one_example_of_one_epoch() -> None:
    speed = LearningSpeed(1)
    speed.update(torch.tensor([0]), torch.tensor([True]), 0)
    assert speed.accuracy == 1 and speed.value.tolist() == [1] and len(speed) == 1


def test_before_anything_was_learned() -> None:
    speed = LearningSpeed(11, matrix=True)
    assert speed.value.tolist() == [0] * 11 and speed.accuracy == 0 and speed.matrix.shape == (0, 11)
    assert LearningSpeed(3, matrix=True).matrix.shape == (0, 3)
    with pytest.raises(ValueError, match="M was not kept: use"):
        LearningSpeed(3).matrix  # noqa: B018


def test_m_that_was_not_kept_cannot_be_gone_on_with() -> None:
    with pytest.raises(ValueError, match="M was not kept by what saved this"):
        LearningSpeed(3, matrix=True).load_state_dict(LearningSpeed(3).state_dict())
    whole, other = LearningSpeed(3, matrix=True), LearningSpeed(3)
    whole.update(torch.tensor([0, 2]), torch.tensor([True, True]), 0)
    other.load_state_dict(whole.state_dict())  # more than is needed
    assert other.value.tolist() == [1, 0, 1] and other.rows is None


def test_what_goes_on_after_an_epoch_is_as_if_it_had_not_stopped() -> None:
    g = torch.Generator().manual_seed(0)
    batches = [(torch.randperm(20, generator=g)[:13], torch.rand(13, generator=g) < 0.5, epoch) for epoch in range(6)]
    whole, part, rest = (LearningSpeed(20, matrix=True) for _ in range(3))
    for n, batch in enumerate(batches):
        whole.update(*batch)
        (part if n < 3 else rest).update(*batch)
        if n == 2:
            rest.load_state_dict(part.state_dict())
            before = rest.count.clone()
            part.count += 5  # what was saved is a copy
            part._seen |= True
            assert torch.equal(rest.count, before) and not rest._seen.all()
    assert (whole.matrix == rest.matrix).all() and torch.equal(whole.value, rest.value) and rest.epochs == 6
    assert whole.accuracy == rest.accuracy


def test_others_are_shown_the_stream_batch_alone_and_outputs_may_come_with_features() -> None:
    seen: list[tuple] = []

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, -x

    net, speed = Net(), LearningSpeed(5)
    hook = SpeedHook(net, speed, lambda logits: logits.argmax(1), lambda *of: seen.append(of))
    stream, replay = torch.tensor([[3.0, 0.0], [0.0, 3.0]]).requires_grad_(), torch.tensor([[1.0, 0.0]] * 3)
    net(stream)  # nothing was announced
    assert not hook.waiting and not seen
    hook.expect(stream, torch.tensor([0, 0]), torch.tensor([4, 1]), 0)
    net(replay[:1])  # shorter than the batch
    net(replay)
    assert hook.waiting and not seen
    net(torch.cat([stream, replay]))
    ((index, labels, logits),) = seen
    assert (index.tolist(), labels.tolist(), logits.tolist()) == ([4, 1], [0, 0], stream.tolist())
    assert not logits.requires_grad and speed.value.tolist() == [0, 0, 0, 0, 1]
    hook.expect(stream, torch.tensor([0, 0]), torch.tensor([4, 1]), 1)
    hook.remove()
    assert not hook.waiting
    net(stream)
    assert speed.epochs == 1


# ---- samplers

def test_as_many_as_there_are_and_none_is_a_number_too() -> None:
    task = Task(torch.arange(3))
    assert [clamp(k, task) for k in (0, 1, 3, 4)] == [0, 1, 3, 3]
    assert Task(torch.arange(3)).first_class == 0


def test_the_direction_of_an_error_is_that_of_the_others_softmax() -> None:
    task = Task(torch.tensor([4, 6]), logits=torch.tensor([[9.0, 1.0, 3.0], [1.0, 3.0, 9.0]]).log(), first_class=4)
    assert error_direction(task).flatten().tolist() == pytest.approx([-1, 0.25, 0.75, 0.25, 0.75, -1])
    for outside in (3, 7):
        with pytest.raises(ValueError, match=r"labels outside 4\.\.6, the classes"):
            error_direction(Task(torch.tensor([4, outside]), logits=task.logits, first_class=4))


def test_examples_with_a_feature_that_is_zero_have_a_gradient() -> None:
    """Only where all features are 0 there is none."""
    task = Task(torch.tensor([0, 0, 1]), features=torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]),
                logits=torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    for seed in range(5):
        assert set(get_sampler("gss").choose(task, 2, torch.Generator().manual_seed(seed)).tolist()) == {0, 2}


def test_ccs_has_fifty_strata_of_equal_width_and_the_papers_cut() -> None:
    assert STRATA == 50 and (CCS().band.q, CCS().band.s) == (0, 0.2)
    stratum = torch.arange(510).div(10, rounding_mode="floor").clamp_max(49)
    speed = stratum / 49
    speed[490:500] = 0.99  # the quickest, at 1, share their stratum with these
    g = torch.Generator().manual_seed(0)
    chosen = CCS(s=0.0).choose(Task(torch.zeros(510), speed), 100, g)
    assert stratum[chosen].tolist() == [c for c in range(50) for _ in range(2)]  # from slow to quick
    assert len(CCS(s=0.0).choose(Task(torch.zeros(510), speed), 1, g)) == 1
    assert CCS().choose(Task(torch.zeros(4), speed[:4]), 0, g).tolist() == []


@pytest.mark.parametrize("name", ["rainbow", "herding", "ipm"])
def test_ties_are_broken_at_random(name: str) -> None:
    task = Task(torch.zeros(20), features=torch.ones(20, 3), uncertainty=torch.zeros(20))
    chosen = {int(get_sampler(name).choose(task, 1, torch.Generator().manual_seed(seed))) for seed in range(12)}
    assert len(chosen) > 3


def test_ipm_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        get_sampler("ipm").choose(Task(torch.zeros(4), features=torch.rand(4, 3)), 2, torch.Generator())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_task_with_one_number_that_is_not_finite_has_diverged() -> None:
    task = Task(torch.arange(3), losses=torch.tensor([1.0, float("inf"), 2.0]))
    with pytest.raises(ValueError, match="`losses` has values that are not finite"):
        task.need("losses")
