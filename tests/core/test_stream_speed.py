"""Stream samplers, step by step: what a look is worth, who is inside the band, who leaves, who gets a place."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mammoth_sbs.core.streams import STREAM_SAMPLERS, Look, StreamSpeed
from mammoth_sbs.core.streams.base import draw, rescaled
from tests.core.test_streams import VARIANTS, Stream, stream


def margins(values: Sequence[float], labels: Sequence[int] | None = None) -> Look:
    """Examples whose margins are these."""
    columns = torch.tensor(labels or [0] * len(values))
    logits = torch.zeros(len(values), int(columns.max()) + 2)
    logits[torch.arange(len(values)), columns] = torch.tensor(values)
    return Look(columns, logits)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- what all share

def test_a_look_by_hand() -> None:
    look = Look(torch.tensor([0, 2]), torch.tensor([[0.5, 0.25, 0.25], [0.6, 0.3, 0.1]]).log())
    assert len(look) == 2 and look.labels.tolist() == [0, 2]
    assert look.p.tolist() == pytest.approx([0.5, 0.1]) and look.correct.tolist() == [True, False]
    assert look.loss.tolist() == pytest.approx([np.log(2), np.log(10)])
    assert look.margin.tolist() == pytest.approx([np.log(2), np.log(1 / 6)])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_sampler_draws_from_its_own_generator(name: str) -> None:
    """And from NumPy's, as the stock buffer does: torch's own is the training's."""
    labels, logits = stream(300, 3)
    held = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        held.append(Stream(VARIANTS[name](20), labels, logits).run(10).tolist())
        assert torch.equal(torch.get_rng_state(), before)
    assert held[0] == held[1]
    if name not in ("stream-reservoir",):
        assert Stream(VARIANTS[name](20), labels, logits, seed=3).run(10).tolist() != held[0]


def test_a_reservoir_draws_a_number_for_each_as_the_stock_buffer_does() -> None:
    sampler = STREAM_SAMPLERS["stream-reservoir"](5)
    sampler.seen = 7
    np.random.seed(3)
    found = sampler.candidates(margins([0.0] * 40), 2)
    np.random.seed(3)
    drawn = {i: np.random.randint(0, 7 + i + 1) for i in range(2, 40)}
    assert found == [(i, slot) for i, slot in drawn.items() if slot < 5] and len(found) > 4


def test_a_place_is_drawn_with_probabilities_proportional_to_the_weights() -> None:
    g, counts = seeded(), np.zeros(4)
    for _ in range(2000):
        counts[draw(np.array([1.0, 0.0, 5.0, 2.0]), g)] += 1
    assert counts[1] == 0 and np.abs(counts / 2000 - [1 / 8, 0, 5 / 8, 2 / 8]).max() < 0.04
    assert {draw(np.zeros(3), g) for _ in range(50)} == {0, 1, 2}
    assert draw(np.array([0.0, 3.0]), g) == 1 and draw(np.array([2.0]), g) == 0


def test_rescaled_is_from_0_to_1() -> None:
    assert rescaled(np.array([3.0, -1.0, 1.0])).tolist() == [1, 0, 0.5]
    assert rescaled(np.array([2.0, 2.0])).tolist() == [0, 0]


@pytest.mark.parametrize(("losses", "says"), [
    ((0.0, 0.0, 0.0), (1, 1, 0)),  # the class of two alone
    ((0.1, 0.2, 0.3), None), ((3.0, 1.0, 2.0), None)])
def test_labrs_brings_loss_and_balance_to_one_scale(losses: tuple[float, ...], says: tuple[float, ...] | None) -> None:
    """Buzzega et al.: S = a S_loss + S_balance with a = sum |S_balance| / sum |S_loss|, rescaled to 0..1."""
    sampler: Any = STREAM_SAMPLERS["stream-labrs"](3)
    sampler.labels, sampler.loss = np.array([1, 1, 0]), np.array(losses, dtype=np.float32)
    if says is None:
        score = np.array([2, 2, 1]) - np.array(losses) * 5 / sum(losses)
        says = tuple((score - score.min()) / (score.max() - score.min()))
    assert sampler.leaving().tolist() == pytest.approx(says)


def test_in_cbrs_a_class_stays_full_and_a_small_one_takes_from_the_largest() -> None:
    sampler: Any = STREAM_SAMPLERS["stream-cbrs"](4)
    sampler.offer(margins([0.0] * 4, [0, 0, 0, 2]), seeded())
    assert (sampler.stored.tolist(), sampler.came.tolist()) == ([3, 0, 1], [3, 0, 1])
    changed = sampler.offer(margins([0.0] * 2, [1, 1]), seeded())  # both enter, each in the place of a 0
    assert set(changed.values()) == {0, 1} and sampler.stored.tolist() == [1, 2, 1]
    assert sampler.full.tolist() == [True, False, False] and sampler.came.tolist() == [3, 2, 1]
    sampler.offer(margins([0.0], [2]), seeded())  # the class of two is the largest now
    assert sampler.full.tolist() == [True, True, False] and sampler.stored.tolist() == [1, 1, 2]


# ---- stream-speed: looks

def expected(values: Sequence[float]) -> list[float]:
    """Each look minus the mean of those before: of all while there are twenty, then of about the last twenty."""
    mean, found = 0.0, []
    for n, value in enumerate(values, 1):
        found.append(value - mean if n > 1 else 0.0)
        mean += max(0.05, 1 / n) * (value - mean)
    return found


def test_a_look_is_worth_its_difference_from_what_was_expected_of_the_class() -> None:
    values = np.random.RandomState(0).standard_normal(60).round(2).tolist()
    labels = [0, 3] * 30  # class 3 comes second: there was no room for it
    sampler = StreamSpeed(80, by="margin")
    for i in range(0, 60, 4):
        sampler.offer(margins(values[i : i + 4], labels[i : i + 4]), seeded())
    assert sampler.speed[:60:2].tolist() == pytest.approx(expected(values[::2]), abs=1e-5)
    assert sampler.speed[1:60:2].tolist() == pytest.approx(expected(values[1::2]), abs=1e-5)
    assert not sampler.speed[60:].any() and sampler.since[:60].tolist() == list(range(60))
    arrivals = sampler.speed[[0, 2]]
    for value in (5.0, 7.0):  # replays have a mean of their own, and speed is the mean over all looks
        sampler.replayed(np.array([0, 2]), margins([value, value + 1]))
    assert sampler.count[:4].tolist() == [3, 1, 3, 1]
    of_replays = expected([5.0, 6.0, 7.0, 8.0])
    assert sampler.speed[0] == pytest.approx((arrivals[0] + of_replays[0] + of_replays[2]) / 3, abs=1e-5)
    assert sampler.speed[2] == pytest.approx((arrivals[1] + of_replays[1] + of_replays[3]) / 3, abs=1e-5)


def test_which_looks_count() -> None:
    for given, counts in (
        ({}, [2, 1]), ({"looks": "arrival"}, [1, 1]), ({"looks": "replay"}, [1, 0]), ({"band": "both"}, [2, 1]),
        ({"band": "enter"}, [1, 1]),  # where nobody leaves for its speed, replays are not looked at
    ):
        sampler = StreamSpeed(2, by="margin", **given)  # type: ignore[arg-type]
        sampler.offer(margins([1.0, 3.0]), seeded())
        sampler.replayed(np.array([0]), margins([2.0]))
        assert sampler.count.tolist() == counts, given
        if given.get("looks") == "replay":
            sampler.replayed(np.array([0]), margins([3.0]))
            assert sampler.speed.tolist() == [0.5, 0]  # 0, as nothing was expected, and 3 - 2


def test_means_and_limits_follow_some_twenty_looks_of_their_kind() -> None:
    sampler = StreamSpeed(2, q=0.3, s=0.2)
    sampler.offer(margins([1.0]), seeded())
    sampler.replayed(np.array([0]), margins([1.0]))
    assert sampler.known.tolist() == [[1], [1]]
    sampler.limits[:, 0] = -1, 1, 2, 100
    sampler.is_inside(0, 4.0)  # the scale goes a twentieth of the way; the limits a twentieth of it, times s and 1 - q
    assert sampler.limits[:, 0].tolist() == pytest.approx([-1 + 0.105 * 0.2, 1 + 0.105 * 0.7, 2.1, 101])


def test_the_defaults_are_the_papers_band_and_leaving_from_the_whole_class() -> None:
    it = StreamSpeed(3)
    assert (it.band.q, it.band.s, it.near, it.by, it.looks) == (0.2, 0.2, 0, "p", "both")
    assert it.leaves and not it.enters


# ---- the band

def slots(speed: Sequence[float], labels: Sequence[int], **given: Any) -> StreamSpeed:
    """A full buffer: what arrived when, and how quick it is."""
    sampler = StreamSpeed(len(speed), **given)
    sampler.labels, sampler.since = np.array(labels), np.arange(len(speed))
    sampler.total, sampler.count = np.array(speed, dtype=np.float32), np.ones(len(speed), dtype=np.int32)
    return sampler


def leaving(sampler: StreamSpeed, slot: int) -> set[int]:
    return {sampler.instead_of(slot, seeded(seed)) for seed in range(40)}


def test_the_quickest_and_the_slowest_of_the_class_leave() -> None:
    speed = [0.9, 0.1, 0.5, 0.3, 0.7, 9.0, -9.0]
    labels = [1, 1, 1, 1, 1, 0, 0]
    assert leaving(slots(speed, labels, q=0.2, s=0.2), 3) == {0, 1}
    assert leaving(slots(speed, labels, q=0.4, s=0.0), 3) == {0, 4}
    assert leaving(slots(speed, labels, q=0.0, s=0.6), 3) == {1, 3, 2}
    assert leaving(slots(speed, labels, q=0.1, s=0.1), 3) == {3}  # nobody lies outside


def test_with_near_only_those_that_arrived_about_then_are_asked() -> None:
    speed = [9.0, 0.1, 0.5, 0.3, 0.7, 0.2]
    assert leaving(slots(speed, [0] * 6, q=0.34, s=0, near=3), 4) == {4}  # of 3, 4, 5; not 0, the quickest of all
    assert leaving(slots(speed, [0] * 6, q=0, s=0.34, near=3), 4) == {5}
    assert leaving(slots(speed, [0] * 6, q=0.2, s=0.2, near=3), 2) == {2}  # a fifth of three is nobody
    assert leaving(slots(speed, [0] * 6, q=0.2, s=0, near=6), 4) == leaving(slots(speed, [0] * 6, q=0.2, s=0), 4) == {0}


def test_as_many_are_near_as_are_asked_for_and_nobody_is_nearer() -> None:
    sampler = slots([0.0] * 30, [0] * 30, near=9)
    sampler.since = np.random.RandomState(0).permutation(30) ** 2
    sampler.band = SimpleNamespace(left_out=lambda n: (0, n))  # type: ignore[assignment]  # all lie outside
    for slot in (0, 11, 29):
        nearest = np.argsort(np.abs(sampler.since - sampler.since[slot]), kind="stable")[:9]
        g = seeded()
        assert {sampler.instead_of(slot, g) for _ in range(200)} == set(nearest.tolist())


def test_two_that_change_places_take_all_that_is_known_along() -> None:
    sampler = slots([1.0, 2.0, 3.0], [0, 0, 1])
    sampler.count, sampler.sources = np.array([1, 2, 3]), {1: 5}
    sampler.exchange(0, 1)
    assert sampler.total.tolist() == [2, 1, 3] and sampler.count.tolist() == [2, 1, 3]
    assert sampler.since.tolist() == [1, 0, 2] and sampler.sources == {0: 5, 1: ~0}
    sampler.exchange(2, 2)
    assert sampler.sources == {0: 5, 1: ~0}


def test_limits_follow_the_arrivals_by_small_steps() -> None:
    sampler = StreamSpeed(2, q=0.3, s=0.2, band="enter")
    sampler.make_room(margins([0.0], [1]))
    sampler.is_inside(1, 2.0)  # the scale is 2: the limits rise by 0.05 * 2 * s and 0.05 * 2 * (1 - q)
    assert sampler.limits[:, 1].tolist() == pytest.approx([0.02, 0.07, 2, 1]) and not sampler.limits[:, 0].any()
    sampler.is_inside(1, -1.0)  # below both
    assert sampler.limits[:, 1].tolist() == pytest.approx([0.02 - 0.075 * 0.8, 0.07 - 0.075 * 0.3, 1.5, 2])
    for _ in range(100):
        sampler.is_inside(0, 1.0)
    sampler.is_inside(0, 2.0)
    assert sampler.limits[2:, 0].tolist() == pytest.approx([1.05, 101])  # of about the last twenty


def test_the_limits_end_at_the_quantiles_s_and_1_minus_q() -> None:
    sampler = StreamSpeed(2, q=0.3, s=0.1, band="enter")
    sampler.make_room(margins([0.0]))
    values = np.random.RandomState(0).standard_normal(6000)
    inside = np.array([sampler.is_inside(0, value) for value in values])[2000:]
    late = values[2000:]
    assert abs(inside.mean() - 0.6) < 0.03
    assert abs((~inside & (late < 0)).mean() - 0.1) < 0.03 and abs((~inside & (late > 0)).mean() - 0.3) < 0.03


def test_twenty_arrivals_of_a_class_are_inside_before_it_is_judged() -> None:
    for n, says in ((19, True), (20, False)):
        sampler = StreamSpeed(2, band="enter")
        sampler.make_room(margins([0.0]))
        assert all([sampler.is_inside(0, 0.0) for _ in range(n)])
        assert sampler.is_inside(0, 5.0) is says
    sampler = StreamSpeed(2, band="enter")
    sampler.make_room(margins([0.0]))
    assert all([sampler.is_inside(0, 0.0) for _ in range(30)])  # on the limits is inside


def test_a_place_drawn_for_an_example_outside_goes_to_the_next_of_its_class_that_is_inside() -> None:
    labels = [0, 1, 0, 1, 0, 0]
    places = set()
    for seed in range(40):
        sampler = StreamSpeed(4, band="enter")
        look = margins([0.0] * 6, labels)
        sampler.make_room(look)
        sampler.arrivals = [-1.0, 1.0, -1.0, 1.0, 1.0, 1.0]
        sampler.is_inside = lambda c, value: value > 0  # type: ignore[method-assign]
        (fourth, slot), *rest = sampler.handed_on(look, 0, [(0, 2), (3, 1)], seeded(seed))
        assert (fourth, slot) == (3, 1)  # it was drawn and is inside: as the reservoir says
        ((fifth, place),) = rest  # the first drawn was outside, as is the next of its class; the second that was not
        assert fifth == 4 and not sampler.owed.any()
        places.add(place)
    assert places == {0, 1, 2, 3}
    sampler = StreamSpeed(4, band="enter")
    sampler.make_room(margins([0.0] * 6, labels))
    sampler.arrivals = [-1.0] * 6
    sampler.is_inside = lambda c, value: value > 0  # type: ignore[method-assign]
    assert list(sampler.handed_on(margins([0.0] * 6, labels), 2, [(3, 1), (4, 0), (5, 2)], seeded())) == []
    assert sampler.owed.tolist() == [2, 1]
