"""Stream samplers: what each promises of its buffer, whatever the stream and however it is cut into batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from mammoth_sbs.core.streams import STREAM_SAMPLERS, Look, StreamSampler, StreamSpeed

VARIANTS: dict[str, Callable[[int], StreamSampler]] = {
    **STREAM_SAMPLERS,
    "enter": lambda size: StreamSpeed(size, band="both", near=6),
    "margin of replays": lambda size: StreamSpeed(size, q=0, s=0.4, by="margin", looks="replay"),
}


class Stream:
    """Examples that carry their own number through a sampler's buffer, with replays in between."""

    def __init__(self, sampler: StreamSampler, labels: np.ndarray, logits: torch.Tensor, seed: int = 0) -> None:
        self.sampler, self.labels, self.logits = sampler, labels, logits
        self.generator, self.replays = torch.Generator().manual_seed(seed), np.random.RandomState(seed)
        self.held = np.full(sampler.size, -1)
        np.random.seed(seed)

    def look(self, of: np.ndarray) -> Look:
        return Look(torch.from_numpy(self.labels[of]), self.logits[of])

    def run(self, batch: int, first: int = 0, end: int | None = None, replay_every: int = 30) -> np.ndarray:
        """The numbers of what is stored in the end."""
        end = len(self.labels) if end is None else end
        while first < end:
            of = np.arange(first, min(first + batch, end, (first // replay_every + 1) * replay_every))
            before = self.held.copy()
            for slot, source in self.sampler.offer(self.look(of), self.generator).items():
                self.held[slot] = of[source] if source >= 0 else before[~source]
            first = int(of[-1]) + 1
            if first % replay_every == 0:
                slots = self.replays.choice(min(first, self.sampler.size), min(8, first), replace=False)
                self.sampler.replayed(slots, self.look(self.held[slots]))
        return self.held


def stream(n: int, classes: int, seed: int = 0, sorted_by_class: bool = False) -> tuple[np.ndarray, torch.Tensor]:
    """Labels, and logits of examples of which each has a difficulty of its own."""
    rng = np.random.RandomState(seed)
    labels = np.sort(rng.randint(classes, size=n)) if sorted_by_class else rng.randint(classes, size=n)
    logits = torch.from_numpy(rng.standard_normal((n, classes)).astype(np.float32))
    logits[torch.arange(n), torch.from_numpy(labels)] += torch.from_numpy(rng.standard_normal(n).astype(np.float32))
    return labels, logits


@pytest.mark.parametrize("name", VARIANTS)
def test_it_does_not_matter_how_the_stream_is_cut_into_batches(name: str) -> None:
    labels, logits = stream(600, 4)
    whole, ones, sevens = (Stream(VARIANTS[name](40), labels, logits).run(batch).tolist() for batch in (30, 1, 7))
    assert whole == ones == sevens


@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_sampler_knows_of_its_slots_is_true(name: str) -> None:
    """Every slot has one example, nobody is there twice, and the sampler's labels are theirs."""
    labels, logits = stream(500, 5, sorted_by_class=True)
    it = Stream(VARIANTS[name](30), labels, logits)
    held = it.run(10)
    assert (held >= 0).all() and len(set(held)) == 30
    assert it.sampler.labels.tolist() == labels[held].tolist() and it.sampler.seen == 500


@pytest.mark.parametrize("name", VARIANTS)
def test_a_sampler_that_is_saved_and_loaded_goes_on_as_if_nothing_had_happened(name: str) -> None:
    labels, logits = stream(400, 4)
    whole = Stream(VARIANTS[name](25), labels, logits).run(10).copy()
    it = Stream(VARIANTS[name](25), labels, logits)
    it.run(10, end=210)
    state, it.sampler = it.sampler.state_dict(), VARIANTS[name](25)
    it.sampler.load_state_dict(state)
    assert it.run(10, first=210).tolist() == whole.tolist()


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("near", [0, 5])
def test_stream_speed_has_the_reservoirs_class_in_every_slot(classes: int, near: int) -> None:
    """So replays have the classes of the stock method's; only who of a class is there differs."""
    labels, logits = stream(800, classes, sorted_by_class=True)
    reservoir = Stream(STREAM_SAMPLERS["stream-reservoir"](50), labels, logits).run(10)
    ours = Stream(StreamSpeed(50, near=near), labels, logits).run(10)
    assert labels[ours].tolist() == labels[reservoir].tolist() and ours.tolist() != reservoir.tolist()


def test_without_a_band_stream_speed_is_the_reservoir() -> None:
    labels, logits = stream(500, 3)
    reservoir = Stream(STREAM_SAMPLERS["stream-reservoir"](50), labels, logits).run(10)
    assert Stream(StreamSpeed(50, q=0, s=0), labels, logits).run(10).tolist() == reservoir.tolist()


@pytest.mark.parametrize("name", ["stream-reservoir", "stream-speed"])
def test_every_part_of_a_stationary_stream_keeps_its_share(name: str) -> None:
    """Eight parts of a stream of two classes through 64 slots, many times: as many of each as a reservoir has."""
    make = {"stream-speed": lambda: StreamSpeed(64, near=5)}.get(name, lambda: STREAM_SAMPLERS[name](64))
    counts, runs = np.zeros(8), 25
    for seed in range(runs):
        labels, logits = stream(480, 2, seed)
        np.add.at(counts, Stream(make(), labels, logits, seed).run(30) // 60, 1)
    assert counts.sum() == 64 * runs
    # drawn without replacement: the statistic shrinks by 1 - 64/480; chi2 with 7 degrees is above 24 once in 1,000
    assert chisquare(counts).statistic / (1 - 64 / 480) < 24


def test_limits_of_who_enters_follow_with_a_delay() -> None:
    """docs/streams.md: with q = 0 some of the quickest are passed over, one in thirteen of the first 500 of a class."""
    passed = []
    for seed in range(40):
        sampler = StreamSpeed(10, q=0, s=0.4, band="both")
        sampler.limits = np.zeros((4, 1))
        values = np.random.RandomState(seed).standard_normal(500)
        passed += [not sampler.is_inside(0, value) and value > sampler.limits[1, 0] for value in values]
    assert 1 / 15 < np.mean(passed) < 1 / 11


@pytest.mark.parametrize(("q", "s"), [(0.2, 0.2), (0.0, 0.4), (0.4, 0.0)])
def test_who_leaves_lies_outside_the_band_of_its_class(q: float, s: float) -> None:
    labels, logits = stream(900, 3)
    sampler = StreamSpeed(60, q, s)
    it, left = Stream(sampler, labels, logits), []
    original = sampler.instead_of

    def watched(slot: int, generator: torch.Generator) -> int:
        who = original(slot, generator)
        alike = np.flatnonzero(sampler.labels == sampler.labels[slot])
        ranks = np.argsort(np.argsort(sampler.speed[alike], kind="stable"))
        left.append((int(ranks[alike == who][0]), len(alike), sampler.labels[who] == sampler.labels[slot]))
        return who

    sampler.instead_of = watched  # type: ignore[method-assign]
    it.run(10)
    assert len(left) > 100 and all(same for *_, same in left)
    assert all(rank < int(s * n + 1e-9) or rank >= n - int(q * n + 1e-9) for rank, n, _ in left)


def test_the_band_keeps_what_lies_inside_it() -> None:
    """One class whose examples differ in p alone and stay as they are: the slowest leave, and the stored are quick."""
    rng = np.random.RandomState(0)
    logits = torch.from_numpy(np.stack([rng.standard_normal(1000), np.zeros(1000)], 1).astype(np.float32))
    labels = np.zeros(1000, dtype=np.int64)
    mean = {s: float(logits[Stream(StreamSpeed(50, 0, s), labels, logits).run(10), 0].mean()) for s in (0.0, 0.4)}
    assert mean[0.4] > mean[0.0] + 0.5


def test_speed_is_relative_to_what_was_expected_of_the_class_and_the_kind_of_look() -> None:
    """A class that is new is slow, and arrivals are slower than replays; neither makes an example slow."""
    sampler = StreamSpeed(8)
    labels = torch.tensor([0] * 20 + [1] * 20)
    logits = torch.tensor([[9.0, 1.0]] * 20 + [[9.0, 1.0]] * 20).log()  # p is .9, and then, of the new class, .1
    for i in range(0, 40, 4):
        sampler.offer(Look(labels[i : i + 4], logits[i : i + 4]), torch.Generator())
        slots = np.arange(4)
        kept = torch.from_numpy(sampler.labels[slots])
        sampler.replayed(slots, Look(kept, torch.zeros(4, 2)))  # p is one half for all
    assert np.abs(sampler.speed).max() < 1e-6


def test_cbrs_gives_every_class_as_much_as_it_brought_or_an_equal_share() -> None:
    """Chrysakis & Moens, section 3: 2 classes of 4 and 300 and 300 examples, 40 slots."""
    labels = np.random.RandomState(0).permutation(np.repeat([0, 1, 2], [4, 300, 300]))
    held = Stream(STREAM_SAMPLERS["stream-cbrs"](40), labels, torch.zeros(604, 3)).run(10)
    assert np.bincount(labels[held]).tolist() == [4, 18, 18]


def test_within_a_class_cbrs_is_a_reservoir() -> None:
    counts = np.zeros(6)
    for seed in range(60):
        labels = np.tile([0, 1], 120)
        it = Stream(STREAM_SAMPLERS["stream-cbrs"](40), labels, torch.zeros(240, 2), seed)
        np.add.at(counts, it.run(40) // 40, 1)
    assert chisquare(counts).statistic / (1 - 40 / 240) < 20.5  # 5 degrees, once in 1,000


@pytest.mark.parametrize("name", ["stream-lars", "stream-labrs"])
def test_examples_of_low_loss_leave(name: str) -> None:
    """All that is stored has loss 3 but for one well-known example, which goes first."""
    sampler = STREAM_SAMPLERS[name](10)
    well_known = torch.tensor([[5.0, 0.0]])
    unknown = torch.tensor([[0.0, 3.0]])
    logits = torch.cat([unknown.repeat(9, 1), well_known, unknown.repeat(10, 1)])
    held = Stream(sampler, np.zeros(20, dtype=np.int64), logits).run(1)
    entered = (held >= 10).sum()
    assert entered and 9 not in held


def test_a_replay_tells_lars_the_loss_as_it_is_now() -> None:
    sampler = STREAM_SAMPLERS["stream-lars"](2)
    sampler.offer(Look(torch.tensor([0, 0]), torch.tensor([[0.0, 3.0], [0.0, 2.0]])), torch.Generator())
    sampler.replayed(np.array([0]), Look(torch.tensor([0]), torch.tensor([[4.0, 0.0]])))
    assert sampler.leaving().tolist() == [1.0, 0.0]  # type: ignore[attr-defined]


def test_labrs_prefers_to_take_from_the_largest_class() -> None:
    sampler = STREAM_SAMPLERS["stream-labrs"](5)
    labels = torch.tensor([0, 0, 0, 0, 1])
    sampler.offer(Look(labels, torch.zeros(5, 2)), torch.Generator())  # all losses are the same
    assert sampler.leaving().tolist() == [1, 1, 1, 1, 0]  # type: ignore[attr-defined]
