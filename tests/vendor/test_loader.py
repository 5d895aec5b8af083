"""The loader: order, fields, augmentation, and data that are held once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from mammoth_sbs.host import import_torchvision
from tests.vendor.conftest import FAST


def stream(it: SimpleNamespace, epochs: int = 2) -> list[tuple[torch.Tensor, ...]]:
    it.dataset.get_data_loaders()
    return [batch for _ in range(epochs) for batch in it.dataset.train_loader]


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small CIFAR-10 in torchvision's format: pictures of noise, 20 of each class for training."""
    import pickle

    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "CIFAR10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        entry = {"data": rng.integers(0, 256, (40, 3072), np.uint8), "labels": list(range(10)) * 4}
        (folder / name).write_bytes(pickle.dumps(entry, 2))


def test_order_and_augmentation_follow_the_seed_and_nothing_else(start: Callable, cifar: None) -> None:
    streams = []
    for flags in ("--seed 1", "--seed 1 --num_workers 3", "--seed 2"):
        it = start("sgd", f"--backbone tiny-resnet18 --batch_size 8 --n_epochs 1 {flags}", "seq-cifar10")
        torch.rand(len(streams))  # whatever else draws random numbers
        streams.append(stream(it))
    for a, b in zip(*streams[:2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(streams[0], streams[2], strict=True))
    first, second = streams[0][:5], streams[0][5:]
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))  # epochs differ


@pytest.mark.parametrize("drop_last", [0, 1])
def test_every_example_comes_once_per_epoch_with_its_own_fields(start: Callable, drop_last: int) -> None:
    it = start("sgd", f"--train_per_class 19 --n_epochs 1 --batch_size 8 --drop_last {drop_last}")
    it.dataset.get_data_loaders()
    loader, data = it.dataset.train_loader, it.dataset.train_loader.dataset
    data.add_extra_return_field("place", range(len(data)))
    data.add_extra_return_field("weight", torch.arange(len(data)) * 0.5)
    data.add_extra_return_field("name", [1000 + i for i in range(len(data))])
    assert data.extra_return_fields == ("place", "weight", "name")
    batches = list(loader)
    assert len(batches) == len(loader) == (4 if drop_last else 5)
    assert [len(b[1]) for b in batches] == [8, 8, 8, 8] + ([] if drop_last else [6])
    inputs, labels, raw, place, weight, name = (torch.cat(column) for column in zip(*batches, strict=True))
    assert len(set(place.tolist())) == len(place) and place.tolist() != sorted(place.tolist())
    if not drop_last:
        assert sorted(place.tolist()) == list(range(38))
    assert torch.equal(labels, data.targets[place]) and torch.equal(raw, data.data[place].float() / 255)
    assert torch.equal(weight, place * 0.5) and torch.equal(name, place + 1000)
    torch.testing.assert_close(inputs, (raw - 0.3053) / 0.3761)
    one = data[3]
    assert one[1] == data.targets[3] and one[3] == 3 and one[2].shape == (1, 8, 8)


def test_observe_gets_the_extra_fields_it_asks_for(start: Callable) -> None:
    from utils.training import train_task

    it = start("sgd", f"{FAST} --batch_size 16")
    got = []
    it.model.observe = lambda inputs, labels, not_aug_inputs, epoch=None, place=None: got.append(place) or 0.0
    it.model._observe_fields = {"place", "epoch"}
    it.dataset.get_data_loaders()
    for name in ("unasked", "place"):
        it.dataset.train_loader.dataset.add_extra_return_field(name, range(40))
    it.model.meta_begin_task(it.dataset)
    train_task(it.model, it.dataset, it.args)
    assert sorted(torch.cat(got).tolist()) == list(range(40))


def test_crops_and_flips_are_uniform() -> None:
    """A picture whose pixels name their place shows how it was cut and mirrored."""
    from utils.augmentations import random_crop, random_flip

    g, n, pad = torch.Generator().manual_seed(0), 4000, 4
    ramp = (1 + torch.arange(32).repeat(32, 1)).expand(n, 1, 32, 32)
    columns = random_crop(ramp, pad, g)
    rows = random_crop(ramp.transpose(2, 3), pad, g)
    left = columns[:, 0, 16, 16] - 17 + pad
    top = rows[:, 0, 16, 16] - 17 + pad
    for drawn in (left, top):
        counts = torch.bincount(drawn, minlength=2 * pad + 1)
        assert len(counts) == 2 * pad + 1 and chisquare(counts).pvalue > 1e-3
    flipped = (random_flip(ramp, g)[:, 0, 0, 0] == 32).float().mean()
    assert abs(float(flipped) - 0.5) < 4 * 0.5 / n**0.5


def test_crop_rows_and_columns_are_drawn_apart_for_every_image() -> None:
    from utils.augmentations import random_crop

    x = torch.arange(1, 1025).view(1, 1, 32, 32).expand(2000, 1, 32, 32)
    centre = random_crop(x, 4, torch.Generator().manual_seed(0))[:, 0, 16, 16] - 1
    pairs = (centre // 32 - 12) * 9 + (centre % 32 - 12)
    assert chisquare(torch.bincount(pairs, minlength=81)).pvalue > 1e-3


def test_crop_flip_and_normalize_equal_torchvisions() -> None:
    from utils.augmentations import Augment, Normalize

    torchvision = import_torchvision()
    functional = torchvision.transforms.functional
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(7)
    top, left = torch.randint(9, (2, 16), generator=draws).tolist()
    flip = (torch.rand(16, generator=draws) < 0.5).tolist()
    ours = Augment(Normalize(mean, std), padding=4, flip=True)(images, torch.Generator().manual_seed(7))
    for i, image in enumerate(images):
        picture = functional.pad(torchvision.transforms.ToPILImage()(image), 4)
        picture = functional.crop(picture, top[i], left[i], 32, 32)
        picture = functional.hflip(picture) if flip[i] else picture
        theirs = functional.normalize(functional.to_tensor(picture), mean, std)
        torch.testing.assert_close(ours[i], theirs)
    assert len(set(flip)) == 2
    plain = Augment(Normalize(mean, std))(images)  # evaluation: nothing is drawn
    torch.testing.assert_close(plain, functional.normalize(images / 255, mean, std))


def test_denormalize_undoes_normalize(start: Callable) -> None:
    it = start("sgd", FAST)
    x = torch.rand(4, 1, 8, 8)
    normalized = it.dataset.get_normalization_transform()(x)
    torch.testing.assert_close(it.dataset.get_denormalization_transform()(normalized), x)


@pytest.mark.parametrize("model", ["sgd", "joint"])
def test_the_data_are_held_once_as_bytes(
        start: Callable, cifar: None, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, during and after training: no floats and no second copy of the images; the whole lies on disk."""
    import utils.training as training

    it = start(model, "--backbone tiny-resnet18 --num_filters 1 --batch_size 8 --n_epochs 1", "seq-cifar10")
    source = it.dataset.source
    assert isinstance(source.train.images, np.memmap) and isinstance(source.test.images, np.memmap)
    data_set = source.train.images.nbytes + source.test.images.nbytes
    held = []

    class Watch(training.Progress):
        def close(self) -> None:
            """Just after a task's last step, when all that training needs is there: all images but the batch's."""
            tensors = {t.untyped_storage().data_ptr(): t for t in gc.get_objects()
                       if type(t) is torch.Tensor and t.shape[1:] == (3, 32, 32) and len(t) > 8}
            assert {t.dtype for t in tensors.values()} == {torch.uint8}
            held.append(sum(t.nbytes for t in tensors.values()))
            super().close()

    monkeypatch.setattr(training, "Progress", Watch)
    training.train(it.model, it.dataset, it.args)
    assert len(held) == (6 if model == "joint" else 5)
    assert max(held[:5]) <= 0.4 * data_set  # a task's images, and test images of those so far
    assert held[-1] <= 1.2 * data_set  # all tasks, for `joint`
