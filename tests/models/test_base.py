"""The layer that all `_sbs` models share: its guards from both sides, its own randomness, and what it reports."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.chosen import Chosen, View, even_parts, fetch, not_augmented
from mammoth_sbs.models.quota import rank_in_class
from mammoth_sbs.models.randomness import own_randomness
from tests.conftest import Start
from tests.models.conftest import SMALL, follow


def test_the_entry_and_the_line_of_a_task(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("er_sbs", "--train_per_class 21 --n_epochs 3 --stop_after 2 --buffer_size 30 --sbs-q .1 --sbs-s .3")
    epoch, right, observe = -1, 0, it.model.observe

    def watch(inputs, labels, not_aug_inputs, epoch=None, sbs_index=None) -> float:  # noqa: ANN001
        nonlocal right
        with torch.no_grad():
            first, end = it.model.get_offsets(it.model.current_task)
            hits = int((it.model.net(inputs)[:, first:end].argmax(1) + first == labels).sum())
        right = hits + (right if epoch == watch.epoch else 0)
        watch.epoch = epoch
        watch.accuracy[it.model.current_task] = 100 * right / 42
        return observe(inputs, labels, not_aug_inputs, epoch=epoch, sbs_index=sbs_index)

    watch.epoch, watch.accuracy = epoch, {}
    it.model.observe = watch
    notes = follow(it)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("SBS task")]
    entries = it.model.run_info()["sbs"]["tasks"]
    assert len(entries) == len(lines) == 2
    for t, (note, entry, line) in enumerate(zip(notes, entries, lines, strict=True)):
        speed = note.counts.numpy() / 3
        ranked = np.sort(speed)[::-1]
        quartiles = np.quantile(speed, [0.25, 0.5, 0.75])
        stored = speed[note.stored]
        assert len(set(speed)) > 2 and len(stored) == [26, 15][t]  # 42 less 4 and 12; a half of the buffer
        assert {key: value for key, value in entry.items() if not isinstance(value, list | float)} == {
            "task": t + 1, "examples": 42, "epochs": 3, "stored": len(stored), "left_out_quick": 4,
            "left_out_slow": 12}
        assert entry["train_accuracy"] == pytest.approx(watch.accuracy[t])
        assert entry["speed_mean"] == pytest.approx(speed.mean())
        assert entry["speed_quartiles"] == pytest.approx(quartiles)
        assert entry["stored_speed_mean"] == pytest.approx(stored.mean())
        assert entry["band"] == pytest.approx([ranked[29], ranked[4]])
        assert line == (
            f"SBS task {t + 1}: 42 examples, learning speed {speed.mean():.3f} (quartiles {quartiles[0]:.2f} "
            f"{quartiles[1]:.2f} {quartiles[2]:.2f}), left out 4 quickest and 12 slowest, band {ranked[29]:.2f} to "
            f"{ranked[4]:.2f}, {len(stored)} stored at {stored.mean():.3f}")
    info = it.model.run_info()["sbs"]
    assert {key: info[key] for key in ("sampler", "q", "s", "scope", "score")} == {
        "sampler": "speed", "q": 0.1, "s": 0.3, "scope": "task", "score": "speed"}


def test_a_sampler_without_a_band_reports_none(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("er_sbs", f"{SMALL} --stop_after 1 --sampler uniform --buffer_size 10")
    follow(it)
    (entry,) = it.model.run_info()["sbs"]["tasks"]
    assert not {"band", "left_out_quick", "choice"} & entry.keys() and entry["stored"] == 10
    assert "left out" not in capsys.readouterr().out


def test_a_task_of_which_nothing_is_stored_is_reported_too(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("rpc_sbs", f"{SMALL} --stop_after 2 --buffer_size 20")  # RPC's second task finds no room
    follow(it)
    second = it.model.run_info()["sbs"]["tasks"][1]
    assert second["stored"] == 0 and second["stored_speed_mean"] is None
    assert ", 0 stored\n" in capsys.readouterr().out


def test_the_smallest_buffers(start: Start) -> None:
    """One example for each task, or for each class where there is a quota for each."""
    assert start("er_sbs", "--buffer_size 5").model.sampler is not None
    assert start("gem_sbs", "--buffer_size 10").model.sampler is not None
    for name, size, least in (("er", 4, 5), ("gem", 9, 10)):
        with pytest.raises(UserError, match=rf"--buffer_size {size}: .*give at least {least}$"):
            start(f"{name}_sbs", f"--buffer_size {size}")


@pytest.mark.parametrize(("labels", "wrong"), [({0: 1}, "1 to 3"), ({0: 4}, "2 to 4"), ({}, None)])
def test_labels_outside_the_task_are_refused_on_both_sides(start: Start, labels: dict, wrong: str | None) -> None:
    it = start("er_sbs", SMALL)
    for _ in range(2):
        it.dataset.get_data_loaders()
    it.model._current_task = 1
    for row, label in labels.items():
        it.dataset.train_loader.dataset.targets[row] = label
    if wrong is None:
        it.model.meta_begin_task(it.dataset)
        assert (it.dataset.train_loader.dataset.targets.min(), it.dataset.train_loader.dataset.targets.max()) == (2, 3)
    else:
        with pytest.raises(UserError, match=f"task 2 has labels {wrong}, outside its classes 2 to 3"):
            it.model.meta_begin_task(it.dataset)


def test_a_step_without_a_forward_pass_on_its_batch_is_refused(start: Start) -> None:
    it = start("er_sbs", SMALL)
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    batch = next(iter(it.dataset.train_loader))
    it.model.with_replay = lambda inputs, labels: (inputs.flip(0), labels.flip(0))
    with pytest.raises(UserError, match="--model er_sbs: a training step made no forward pass on its batch"):
        it.model.observe(*batch[:3], epoch=0, sbs_index=batch[3])


def test_a_sampler_that_needs_features_names_a_network_without_them(start: Start) -> None:
    it = start("er_sbs", f"{SMALL} --sampler herding")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    it.model.net.classifier = None
    with pytest.raises(UserError, match="--sampler herding needs features, and --backbone mnistmlp has no"):
        it.model.describe(it.dataset.train_loader.dataset)


# ---- randomness

@pytest.mark.parametrize(("seed", "own"), [(0, 0x5B5), (7, 0x5B2), (2**40, 2**40 + 0x5B5)])
def test_the_sampling_decisions_of_a_seed_stay_the_same(start: Start, seed: int, own: int) -> None:
    """Results of earlier versions are compared with those of this one."""
    assert start("er_sbs", f"--seed {seed}").model.generator.initial_seed() == own


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_own_randomness_comes_from_its_generator_and_leaves_no_trace() -> None:
    def inside(seed: int) -> tuple[float, float, float]:
        with own_randomness(torch.Generator().manual_seed(seed)):
            return draws()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = [draws() for _ in range(3)]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    assert draws() == expected[0]
    first = inside(5)
    assert draws() == expected[1]  # as if nothing had happened
    assert inside(5) == first
    assert all(a != b for a, b in zip(inside(6), first, strict=True))
    with pytest.raises(KeyError), own_randomness(torch.Generator()):
        draws()
        raise KeyError
    assert draws() == expected[2]
    generator = torch.Generator().manual_seed(5)
    with own_randomness(generator):
        one = draws()
    with own_randomness(generator):
        assert draws() != one  # the next time another
    assert one == first


def test_a_loaded_choice_is_the_sampler(start: Start) -> None:
    it = start("er_sbs", f"{SMALL} --sbs-q auto --sbs-s auto")
    state = it.model.get_extra_state()
    it.model.set_extra_state(state)
    assert it.model.choice is None and (it.model.sampler.band.q, it.model.sampler.band.s) == (0, 0)
    it.model.set_extra_state({**state, "choice": {"task": 1, "q": 0.1, "s": 0.5}, "history": [1]})
    assert isinstance(it.model.sampler, Speed) and it.model.choice["task"] == 1 and it.model._history == [1]
    assert (it.model.sampler.band.q, it.model.sampler.band.s) == (0.1, 0.5)


def test_learning_speed_and_generator_are_part_of_the_state(start: Start) -> None:
    it, other = start("er_sbs", SMALL), start("er_sbs", SMALL)
    for one in (it, other):
        one.dataset.get_data_loaders()
        one.model.meta_begin_task(one.dataset)
    it.model.speed.update(torch.tensor([3, 5]), torch.tensor([True, True]), 0)
    torch.rand(3, generator=it.model.generator)
    state = it.model.get_extra_state()
    other.model.set_extra_state(state)
    assert torch.equal(other.model.speed.value, it.model.speed.value) and other.model.speed.epochs == 1
    assert torch.equal(other.model.generator.get_state(), it.model.generator.get_state())
    it.model.speed = other.model.speed = None
    assert it.model.get_extra_state()["speed"] is None
    other.model.set_extra_state(state)  # between tasks there is nothing to put it into
    assert other.model.speed is None


# ---- chosen examples

@pytest.mark.parametrize(("n", "size", "parts"), [
    (0, 8, []), (1, 8, [1]), (8, 8, [8]), (9, 8, [5, 4]), (16, 8, [8, 8]), (17, 8, [6, 6, 5]), (7, 100, [7])])
def test_batches_of_the_chosen_are_about_equal(n: int, size: int, parts: list[int]) -> None:
    index = torch.arange(n) + 3
    found = even_parts(index, size)
    assert [len(part) for part in found] == parts
    assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == index.tolist()


class Plain:
    """A data set as Mammoth has it: example by example."""

    targets = [5, 6, 7, 8]

    def __getitem__(self, i: int) -> tuple:
        return torch.full((1, 2, 2), i + 0.5), self.targets[i], torch.full((1, 2, 2), float(i)), 10 * i


def test_examples_of_either_host_are_one_batch(start: Start) -> None:
    inputs, labels, raw, place = fetch(Plain(), torch.tensor([3, 1]))
    assert inputs[:, 0, 0, 0].tolist() == [3.5, 1.5] and raw[:, 0, 0, 0].tolist() == [3, 1]
    assert labels.tolist() == [8, 6] and place.tolist() == [30, 10]
    assert torch.equal(not_augmented(Plain(), torch.tensor([3, 1])), raw)
    it = start("er_sbs", SMALL)
    it.dataset.get_data_loaders()
    data = it.dataset.train_loader.dataset
    index = torch.tensor([4, 0, 9])
    assert torch.equal(fetch(data, index)[2], data.data[index].float() / 255)
    assert torch.equal(not_augmented(data, index), data.data[index].float() / 255)


def test_what_stock_methods_get_in_place_of_a_loader() -> None:
    chosen = Chosen(Plain(), torch.tensor([3, 0, 2]), 2)
    assert len(chosen) == 3 and chosen.dataset is chosen and chosen.targets.tolist() == [8, 5, 7]
    assert [batch[1].tolist() for batch in chosen] == [[8, 5], [7]]
    assert chosen.batch(torch.tensor([2, 1]))[1].tolist() == [7, 5]
    whole = SimpleNamespace(N_TASKS=3, train_loader="the task's")
    view = View(whole, chosen)
    assert view.train_loader is chosen and view.N_TASKS == 3 and whole.train_loader == "the task's"


def test_the_rank_in_a_class_is_how_many_came_before() -> None:
    assert rank_in_class(torch.tensor([7, 2, 7, 7, 2, 0])).tolist() == [0, 0, 1, 2, 1, 0]
    assert rank_in_class(torch.tensor([], dtype=torch.int64)).tolist() == []
