"""Streams other than tasks one after the other: what comes, when, and under which label; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.vendor.conftest import parse


def stream(it: SimpleNamespace) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Labels and places in the data set of every part, as training gets them."""
    labels, places = [], []
    for _ in range(it.dataset.N_TASKS):
        loader = it.dataset.get_data_loaders()[0]
        loader.dataset.add_extra_return_field("place", torch.from_numpy(loader.dataset.indexes))
        batches = list(loader)
        labels.append(torch.cat([batch[1] for batch in batches]).numpy())
        places.append(torch.cat([batch[-1] for batch in batches]).numpy())
    return labels, places


def true(it: SimpleNamespace, places: list[np.ndarray]) -> np.ndarray:
    return it.dataset.source.train.labels[np.concatenate(places)]


@pytest.mark.parametrize("flags", ["--noise_rate .3", "--imbalance 10", "--blurry .2", "--drift .5",
                                   "--noise_rate .2 --imbalance 5 --drift 1"])
def test_a_seed_makes_the_stream_and_no_example_comes_twice(start: Callable, flags: str) -> None:
    (a, places), (b, _), (c, _) = (stream(start("er", f"{flags} --seed {seed}")) for seed in (1, 1, 2))
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert any(len(x) != len(y) or (x != y).any() for x, y in zip(a, c, strict=True))
    assert len(set(np.concatenate(places))) == sum(map(len, places))


def test_noise_is_mammoths_symmetric_noise(start: Callable) -> None:
    """Of each class round(rate n) images have another label, any other; an image comes with the task of that label."""
    it = start("er", "--noise_rate .25 --train_per_class 100")
    labels, places = stream(it)
    given, right = np.concatenate(labels), true(it, places)
    for c in range(10):
        assert (given[right == c] != c).sum() == 25
    assert len(np.unique(given[(given != right) & (right == 0)])) >= 7  # 25 draws of 9 classes
    assert all(set(part // 2) == {t} for t, part in enumerate(labels))
    assert it.dataset.test_loaders[0].dataset.targets.unique().tolist() == [0, 1]  # test data are as they were


def test_noise_is_mammoths_draw_for_draw(start: Callable) -> None:
    """Their recipe, said once more: a generator of the seed; class by class a shuffle, then a choice."""
    it = start("er", "--noise_rate .5 --seed 7")
    targets = it.dataset.source.train.labels
    rng, expected = np.random.RandomState(7), targets.copy()
    for c in range(10):
        rows = np.arange(len(targets))[targets == c]
        rng.shuffle(rows)
        n = round(len(rows) * 0.5)
        expected[rows[:n]] = rng.choice(np.array([d for d in range(10) if d != c]), n)
    labels, places = stream(it)
    assert (np.concatenate(labels) == expected[np.concatenate(places)]).all()


def test_a_long_tail_falls_exponentially_and_its_order_is_drawn(start: Callable) -> None:
    orders = set()
    for seed in (0, 1, 2):
        it = start("er", f"--imbalance 16 --train_per_class 64 --seed {seed}")
        counts = np.bincount(np.concatenate(stream(it)[0]))
        expected = [round(64 * 16 ** (-r / 9)) for r in range(10)]
        assert sorted(counts, reverse=True) == expected and counts.max() / counts.min() == 16
        orders.add(tuple(counts))
    assert len(orders) == 3


def test_blurred_boundaries_move_a_share_of_every_class_and_no_part_grows(start: Callable) -> None:
    labels, _ = stream(start("er", "--blurry .4 --train_per_class 50"))
    assert [len(part) for part in labels] == [100] * 5
    for t, part in enumerate(labels):
        away = (part // 2 != t).sum()
        assert 20 <= away <= 40  # 40 of 100 change places, and one in five comes back
    assert (np.bincount(np.concatenate(labels)) == 50).all()


def test_a_stream_that_drifts_has_no_boundaries(start: Callable) -> None:
    """Around the middle of its task comes every class, with the width that is asked for, in order of time."""
    labels, _ = stream(start("er", "--drift .5 --train_per_class 100"))
    assert [len(part) for part in labels] == [200] * 5
    whole = np.concatenate(labels)
    time = 5 * np.arange(len(whole)) / len(whole)
    middle = [time[whole // 2 == t] for t in (1, 2, 3)]
    assert all(abs(found.mean() - t - 0.5) < 0.25 for t, found in zip((1, 2, 3), middle, strict=True))
    assert 0.3 < middle[1].std() < 0.7
    for t in range(4):  # across the cut, classes of both sides
        around = np.concatenate([labels[t][-40:], labels[t + 1][:40]]) // 2
        assert (around <= t).sum() > 15 and (around > t).sum() > 15


@pytest.mark.parametrize("flags, said", [
    ("--blurry .1 --drift 1", "give one of them"), ("--drift 1 --second_task random-labels", "leave out --drift"),
    ("--noise_rate 20", "did you mean 0.2"), ("--imbalance .5", "--imbalance"), ("--drift 0", "--drift")])
def test_what_cannot_be_had_is_said(start: Callable, flags: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        start("er", flags)


def test_methods_that_need_boundaries_say_so(start: Callable) -> None:
    with pytest.raises(UserError, match="--model gem: needs tasks with boundaries"):
        start("gem", "--blurry .1")


def test_online_is_a_preset_and_typed_flags_win() -> None:
    words = "--dataset seq-cifar10 --lr .1 --online 1"
    args = parse(f"--model derpp_sbs {words}")
    assert (args.n_epochs, args.batch_size, args.minibatch_size, args.eval_steps) == (1, 10, 10, 250)
    args = parse(f"--model derpp_sbs {words} --batch_size 5 --n_epochs 2 --minibatch_size 64")
    assert (args.n_epochs, args.batch_size, args.minibatch_size) == (2, 5, 64)
    assert not hasattr(parse(f"--model sgd {words}"), "minibatch_size")
    assert parse("--model sgd --dataset seq-cifar10 --lr .1").eval_steps is None


@pytest.mark.parametrize("flags", ["--noise_rate .2", "--imbalance 10", "--blurry .3", "--drift .5"])
def test_every_stream_is_learned(run: Callable, flags: str) -> None:
    out = run("derpp_sbs", f"--sampler stream-speed --train_per_class 40 --batch_size 8 {flags} --n_epochs 1")
    assert len(out["results"]["class_il"]["matrix"]) == 5 and out["results"]["class_il"]["final"] > 15


def test_rare_classes_may_have_less_than_a_batch(start: Callable) -> None:
    with pytest.raises(UserError, match="--drop_last 1: with --imbalance"):
        start("er", "--imbalance 100 --drop_last 1")


def test_who_measures_nothing_on_the_way_is_told(start: Callable, capsys: pytest.CaptureFixture) -> None:
    from utils.training import train

    for every, told in ((1000, 1), (2, 0)):
        it = start("sgd", f"--eval_steps {every} --train_per_class 20 --stop_after 2 --n_epochs 1 --disable_log 1")
        train(it.model, it.dataset, it.args)
        shown = "".join(capsys.readouterr())
        assert shown.count(f"--eval_steps {every}: the first task has") == told
