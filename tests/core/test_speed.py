"""Learning speed (Eq. 1), the band D'_t and the draw from it: what the paper promises, without any host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import nn

from mammoth_sbs import LearningSpeed, SpeedBand, SpeedHook
from mammoth_sbs.core.band import nearest_first
from mammoth_sbs.core.samplers import Task
from mammoth_sbs.core.samplers.speed import Speed
from tests.conftest import REPO


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- the hand-worked example: E = 4 epochs, N = 10 examples, two classes

M = np.array([  # rows are epochs, columns examples: was it classified correctly?
    [1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
    [1, 1, 0, 1, 1, 1, 1, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
], dtype=bool)
SPEEDS = [1.0, 1.0, 0.75, 0.75, 0.75, 0.5, 0.5, 0.25, 0.0, 0.0]
LABELS = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])


def logits_of(epoch: int) -> torch.Tensor:
    """Logits whose argmax is the label exactly where M has a one."""
    predicted = torch.where(torch.from_numpy(M[epoch]), LABELS, 1 - LABELS)
    return nn.functional.one_hot(predicted, 2) * 3.0 - 1.0


def test_hand_worked_example_from_logits_to_buffer() -> None:
    speed = LearningSpeed(10, matrix=True)
    for epoch in range(4):
        order = torch.randperm(10, generator=generator(epoch))
        for index in order.split(3):  # batches of 3, 3, 3, 1
            speed.update(index, logits_of(epoch)[index].argmax(1) == LABELS[index], epoch)
    assert speed.epochs == 4
    assert speed.count.tolist() == [4, 4, 3, 3, 3, 2, 2, 1, 0, 0]
    assert speed.value.tolist() == SPEEDS
    assert (speed.matrix == M).all()

    # q = .2 and s = .3 of 10: the 2 quickest are 0 and 1, the 3 slowest 7, 8 and 9
    split = SpeedBand(0.2, 0.3).split(speed.value, generator())
    assert set(split.quick.tolist()) == {0, 1}
    assert set(split.slow.tolist()) == {7, 8, 9}
    assert set(split.kept.tolist()) == {2, 3, 4, 5, 6}
    assert SpeedBand(0.2, 0.3).limits(speed.value) == (0.5, 0.75)

    task = Task(LABELS, speed=speed.value)
    buffer = Speed(0.2, 0.3).choose(task, 4, generator())
    assert len(set(buffer.tolist())) == 4
    assert set(buffer.tolist()) <= {2, 3, 4, 5, 6}
    # more slots than the band has examples: all of the band and nothing else
    assert set(Speed(0.2, 0.3).choose(task, 9, generator()).tolist()) == {2, 3, 4, 5, 6}


def test_ties_at_the_edge_are_broken_at_random_not_by_position() -> None:
    speeds = torch.tensor(SPEEDS)
    # q = .3: 0 and 1 go for sure; the third is one of 2, 3, 4, each a third of the time
    third = [next(iter(set(SpeedBand(0.3, 0).split(speeds, generator(i)).quick.tolist()) - {0, 1})) for i in range(600)]
    counts = np.bincount(third, minlength=10)[2:5]
    assert counts.sum() == 600
    assert chisquare(counts).pvalue > 1e-4


def test_an_example_counts_once_per_epoch() -> None:
    speed = LearningSpeed(3)
    yes = torch.tensor([True])
    for _ in range(3):
        speed.update(torch.tensor([1]), yes, epoch=0)
    speed.update(torch.tensor([1, 1, 2]), torch.tensor([True, True, True]), epoch=1)
    assert speed.count.tolist() == [0, 2, 1]
    assert speed.value.tolist() == [0, 1, 0.5]


def test_accuracy_is_that_of_the_last_epoch() -> None:
    speed = LearningSpeed(4)
    everyone, yes, no = torch.arange(4), torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    assert speed.accuracy == 0
    speed.update(everyone, yes, 0)
    assert speed.accuracy == 1
    speed.update(everyone[:2], no[:2], 1)
    speed.update(everyone[2:], torch.tensor([True, False]), 1)
    assert speed.accuracy == 0.25
    loaded = LearningSpeed(4)
    loaded.load_state_dict(speed.state_dict())
    assert loaded.accuracy == 0.25


def test_memory_is_at_most_eight_bytes_per_example() -> None:
    n = 10_000
    speed = LearningSpeed(n)
    assert speed.count.element_size() <= 4
    held = sum(t.numel() * t.element_size() for t in vars(speed).values() if isinstance(t, torch.Tensor))
    assert held <= 8 * n
    with_matrix = LearningSpeed(n, matrix=True)
    for epoch in range(16):
        with_matrix.update(torch.arange(n), torch.ones(n, dtype=torch.bool), epoch)
    assert with_matrix.matrix.shape == (16, n)
    assert sum(row.nbytes for row in with_matrix.rows or []) == 16 * n / 8  # one bit per entry


# ---- properties of the band, for any speeds, q, s and seed

fractions = st.floats(0, 0.99, allow_nan=False)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), fractions, fractions, st.integers(0, 2**31), st.data())
def test_nothing_outside_the_band_is_chosen(counts: list[int], q: float, s: float, seed: int,
                                            data: st.DataObject) -> None:
    if q + s >= 1:
        q, s = q / 2, s / 2
    speeds = torch.tensor(counts, dtype=torch.float32) / 7
    n, band = len(counts), SpeedBand(q, s)
    split = band.split(speeds, generator(seed))
    assert sorted(torch.cat(split).tolist()) == list(range(n))
    # sizes are exact: floor(q N) and floor(s N)
    assert len(split.quick) == int(np.floor(q * n + 1e-9))
    assert len(split.slow) == int(np.floor(s * n + 1e-9))
    # no kept example is quicker than a left-out quick one, nor slower than a left-out slow one
    assert len(split.kept) >= 1
    if len(split.quick):
        assert speeds[split.quick].min() >= speeds[split.kept].max()
    if len(split.slow):
        assert speeds[split.slow].max() <= speeds[split.kept].min()
    k = data.draw(st.integers(0, n + 3))
    task = Task(torch.zeros(n, dtype=torch.long), speed=speeds)
    chosen = Speed(q, s).choose(task, k, generator(seed))
    assert set(chosen.tolist()) <= set(split.kept.tolist())
    assert len(set(chosen.tolist())) == len(chosen) == min(k, len(split.kept))
    assert torch.equal(chosen, Speed(q, s).choose(task, k, generator(seed)))  # the same seed, the same buffer


def test_within_the_band_every_example_is_equally_likely() -> None:
    n, k, draws = 60, 9, 3000
    speeds = torch.arange(n).div(6, rounding_mode="floor") / 10  # ten groups of six ties
    task = Task(torch.zeros(n, dtype=torch.long), speed=speeds)
    times = torch.zeros(n)
    for seed in range(draws):
        times[Speed(0.2, 0.2).choose(task, k, generator(seed))] += 1
    assert times[:12].sum() == 0 and times[48:].sum() == 0
    assert chisquare(times[12:48]).pvalue > 1e-4
    # the edges of the band fall inside a group of ties: its members share the places equally
    times.zero_()
    for seed in range(draws):
        times[Speed(0.25, 0.25).choose(task, k, generator(seed))] += 1
    assert chisquare(times[12:18]).pvalue > 1e-4 and chisquare(times[42:48]).pvalue > 1e-4
    assert 0 < times[12:18].sum() / times[18:24].sum() < 0.7  # half of the group is left out


def test_a_class_that_the_band_lost_is_topped_up_with_its_nearest() -> None:
    speeds = torch.tensor([1.0, 0.9, 0.8, 0.6, 0.5, 0.5, 0.4, 0.3, 0.1, 0.0])
    labels = torch.tensor([7, 7, 7, 8, 8, 8, 8, 8, 9, 9])
    task = Task(labels, speed=speeds, first_class=7)
    sampler = Speed(0.3, 0.2)  # class 7 is too quick, class 9 too slow
    chosen = sampler.choose_per_class(task, {7: 2, 8: 3, 9: 1}, generator())
    assert set(chosen[:2].tolist()) == {2, 1}  # .8 and .9 are nearer to the band (at most .6) than 1.0
    assert set(chosen[2:5].tolist()) <= {3, 4, 5, 6, 7}
    assert chosen[5:].tolist() == [8]
    split = SpeedBand(0.3, 0.2).split(speeds, generator())
    assert nearest_first(split, speeds).tolist() in ([2, 8, 1, 9, 0], [8, 2, 1, 9, 0], [2, 8, 9, 1, 0])


def test_the_default_is_the_papers_fix_and_the_limits_are_those_of_what_is_kept() -> None:
    assert Speed().band == SpeedBand() == SpeedBand(0.2, 0.2)
    speeds = torch.arange(10.0)[torch.randperm(10, generator=generator())] / 10
    assert SpeedBand(0.3, 0.1).limits(speeds) == pytest.approx((0.1, 0.6))  # without .9 .8 .7, and without 0
    assert SpeedBand(0, 0).limits(speeds) == pytest.approx((0, 0.9))


BAD_FRACTIONS: list[tuple[float, float, str]] = [
    (20, 0.2, r"^q .* not 20; did you mean 0.2\?$"), (0.2, 20, r"^s .* not 20; did you mean 0.2\?$"),
    (1, 0, r"^q .* not 1; did you mean 0.01\?$"), (99, 0, r"^q .* not 99; did you mean 0.99\?$"),
    (100, 0, r"^q is a fraction in \[0, 1\), not 100$"), (-0.1, 30, r"^q is a fraction in \[0, 1\), not -0.1$"),
    (0.5, 0.5, "below 1"), (0.9, 0.2, "below 1"), (0.2, 0.9, "below 1"), (30, -0.1, r"^q .* not 30; did you mean 0.3"),
]


def test_bad_fractions_are_refused() -> None:
    """The first that is wrong is named, `q` before `s`."""
    for q, s, says in BAD_FRACTIONS:
        with pytest.raises(ValueError, match=says):
            SpeedBand(q, s)
    assert SpeedBand(0, 0) == SpeedBand(0.0, 0.0) and SpeedBand(0, 0.99).s == SpeedBand(0.99, 0).q


def test_ties_are_broken_by_the_generator_that_is_given() -> None:
    speeds, before = torch.zeros(40), torch.get_rng_state()
    one, same, other = (SpeedBand(0.25, 0.25).split(speeds, generator(seed)).kept.tolist() for seed in (3, 3, 4))
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), before)


def test_the_left_out_come_back_in_the_order_of_their_distance_from_the_band() -> None:
    speeds = torch.tensor([14.0, 11, 9, 8, 6, 6, 4, 2, 0]) / 16
    split = SpeedBand(3 / 9, 2 / 9).split(speeds, generator())
    assert (16 * speeds[nearest_first(split, speeds)]).tolist() == [9, 2, 11, 0, 14]  # 1, 2, 3, 4 and 6 away


def test_rounding_is_free_of_float_dust() -> None:
    assert SpeedBand(0.29, 0.57).left_out(100) == (29, 57)  # 0.29 * 100 is 28.999999999999996


# ---- the hook

def test_the_hook_finds_the_stream_batch_wherever_it_is() -> None:
    net = nn.Linear(4, 3)
    x, memory = torch.randn(5, 4, generator=generator()), torch.randn(7, 4, generator=generator(1))
    y = net(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # one mistake
    index = torch.tensor([3, 1, 4, 0, 2])
    steps = {
        "stream first": lambda: (net(x), net(memory)),
        "memory first": lambda: (net(memory), net(memory[:5]), net(x)),
        "concatenated": lambda: net(torch.cat([x, memory])),
        "stream again in a later pass": lambda: (net(x), net(torch.cat([memory, x])), net(x)),
        "a copy of the stream": lambda: net(x.clone()),
    }
    for name, step in steps.items():
        speed = LearningSpeed(5)
        hook = SpeedHook(net, speed, lambda logits: logits.argmax(1))
        hook.expect(x, y, index, 0)
        step()
        assert speed.count.tolist() == [1, 1, 1, 0, 1], name
        assert not hook.waiting
        hook.remove()
        assert len(net._forward_hooks) == 0  # no trace
    hook = SpeedHook(net, LearningSpeed(5), lambda logits: logits.argmax(1))
    hook.expect(x, y, index, 0)
    net(memory)
    assert hook.waiting and hook.speed.count.sum() == 0  # replayed examples are never counted
    hook.remove()


def test_the_example_for_people_without_mammoth() -> None:
    """examples/plain_pytorch.py: ten lines of a training loop, and the buffer comes from the middle."""
    import runpy

    names = runpy.run_path(str(REPO / "examples" / "plain_pytorch.py"))
    speed, buffer, band = names["speed"], names["buffer"], names["band"]
    assert speed.epochs == names["EPOCHS"]
    assert 0.3 < speed.value.mean() < 1
    low, high = band.limits(speed.value)
    assert len(buffer) == names["BUFFER_SIZE"]
    assert bool(((speed.value[buffer] >= low) & (speed.value[buffer] <= high)).all())


def test_the_stream_may_be_the_last_rows_of_a_pass() -> None:
    """As in MER, which puts replay first."""
    net, speed = torch.nn.Identity(), LearningSpeed(2)
    hook = SpeedHook(net, speed, lambda logits: logits.argmax(1))
    stream, replay = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    hook.expect(stream, torch.tensor([0, 0]), index=torch.tensor([1, 0]), epoch=0)
    net(replay)
    assert hook.waiting
    net(torch.cat([replay, stream]))
    assert not hook.waiting and speed.value.tolist() == [0.0, 1.0]


class OnAGPU(torch.Tensor):
    """A tensor that says so, until it is moved."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def to(self, *args: Any, **given: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_counting_goes_to_where_the_predictions_are() -> None:
    speed = LearningSpeed(3)
    held = [name for name, value in vars(speed).items() if isinstance(value, torch.Tensor)]
    for name in held:
        setattr(speed, name, getattr(speed, name).as_subclass(OnAGPU))
    speed.update(torch.tensor([2, 0]), torch.tensor([True, False]), epoch=0)
    assert len(held) == 4 and all(type(getattr(speed, name)) is torch.Tensor for name in held)
    assert speed.value.tolist() == [0, 0, 1]


def test_a_gpu_is_not_asked_which_batch_it_was_and_counts_nothing_if_it_was_another() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_subclass(torch.Tensor)

    net, speed, seen = Net(), LearningSpeed(3), []
    hook = SpeedHook(net, speed, lambda logits: logits.argmax(1), lambda *of: seen.append(of))
    stream = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    replay = torch.tensor([[1.0, 0.0], [0.0, 3.0], [4.0, 0.0]])  # its first row is the stream's too
    hook.expect(stream, torch.tensor([0, 1, 1]), torch.tensor([2, 1, 0]), 0)
    net(replay[:2].as_subclass(OnAGPU))  # shorter: that is known without a look
    assert hook.waiting
    net(replay.as_subclass(OnAGPU))
    assert speed.count.tolist() == [0, 0, 0] and not seen
    assert not hook.waiting  # it may have been the stream, as far as is known
    net(torch.cat([stream, replay]).as_subclass(OnAGPU))
    assert speed.count.tolist() == [0, 1, 1] and len(seen) == 1


def test_a_stream_batch_that_passes_again_is_replay() -> None:
    net, seen = nn.Identity(), []
    hook = SpeedHook(net, LearningSpeed(2), lambda logits: logits.argmax(1), lambda *of: seen.append(of))
    assert not hook.waiting
    stream = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    hook.expect(stream, torch.tensor([0, 1]), torch.tensor([1, 0]), 0)
    for passed in (stream, stream, stream.clone(), torch.cat([stream, stream])):
        net(passed)
    assert len(seen) == 1
