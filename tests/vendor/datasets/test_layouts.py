"""The layouts in which data sets are found."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import (
    check,
    cifar10_tree,
    cifar100_parquet,
    leftovers,
    parquet,
    pictures,
    png,
    write,
)

from datasets.utils.sources import load


def test_digits_need_nothing_and_are_always_split_alike(base: Path) -> None:
    first, second = load("digits", str(base)), load("digits", str(base))
    assert first.train.images.shape == (1437, 1, 8, 8) and first.test.images.shape == (360, 1, 8, 8)
    assert first.train.images.max() == 255 and first.train.images.dtype == np.uint8
    assert np.array_equal(first.test.images, second.test.images)
    assert min(np.bincount(first.test.labels)) >= 34  # stratified
    assert not leftovers(base.parent)


@pytest.mark.parametrize("folder", ["CIFAR10/cifar-10-batches-py", "cifar-10-batches-py"])
def test_torchvision_cifar10_files(base: Path, folder: str) -> None:
    images = pictures(20)
    for i in range(5):
        part = images[4 * i:4 * i + 4].reshape(4, -1)
        write(base / folder / f"data_batch_{i + 1}", pickle.dumps({"data": part, "labels": [0, 1, 2, 3]}, 2))
    write(base / folder / "test_batch", pickle.dumps({"data": images[:4].reshape(4, -1), "labels": [0, 1, 2, 3]}, 2))
    check(load("cifar10", str(base)), images, [0, 1, 2, 3] * 5, ["airplane", "automobile", "bird", "cat"])


def cifar100_pickles(base: Path, images: np.ndarray) -> Path:
    folder = base / "CIFAR100/cifar-100-python"
    entry = {"data": images.reshape(3, -1), "fine_labels": [2, 0, 1], "coarse_labels": [0, 0, 0]}
    for name in ("train", "test"):
        write(folder / name, pickle.dumps(entry, 2))
    write(folder / "meta", pickle.dumps({"fine_label_names": ["apple", "bee", "can"], "coarse_label_names": ["x"]}))
    return folder


def test_torchvision_cifar100_files_come_before_parquet(base: Path) -> None:
    cifar100_parquet(base)
    images = pictures(3, seed=7)
    cifar100_pickles(base, images)
    check(load("cifar100", str(base)), images, [2, 0, 1], ["apple", "bee", "can"])


def test_an_incomplete_torchvision_folder_is_an_error_not_skipped(base: Path) -> None:
    folder = cifar100_pickles(base, pictures(3))
    cifar100_parquet(base)
    (folder / "test").unlink()
    with pytest.raises(UserError, match=r"cifar-100-python: test is missing; put it there"):
        load("cifar100", str(base))


def test_a_pickle_cannot_run_code(base: Path) -> None:
    folder = cifar100_pickles(base, pictures(3))
    write(folder / "train", b"cposix\nsystem\n(S'touch %b'\ntR." % str(base / "owned").encode())
    with pytest.raises(UserError, match=r"cifar-100-python/train: holds posix.system"):
        load("cifar100", str(base))
    assert not (base / "owned").exists()


@pytest.mark.parametrize("folder", ["MNIST/raw", "MNIST/MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_idx_files(base: Path, folder: str, zipped: bool) -> None:
    images, labels = pictures(4, (1, 28, 28)), bytes([1, 0, 2, 1])
    for split in ("train", "t10k"):
        for name, magic, dims, data in (("images-idx3", 0x803, (4, 28, 28), images.tobytes()),
                                        ("labels-idx1", 0x801, (4,), labels)):
            raw = np.array([magic, *dims], ">i4").tobytes() + data
            name = f"{split}-{name}-ubyte"
            write(base / folder / (f"{name}.gz" if zipped else name), gzip.compress(raw) if zipped else raw)
    check(load("mnist", str(base)), images, list(labels), ["0", "1", "2"])


def test_a_broken_idx_file_is_named(base: Path) -> None:
    test_mnist_idx_files(base, "MNIST/raw", False)
    path = base / "MNIST/raw/train-images-idx3-ubyte"
    write(path, path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte: .*put a good copy there"):
        load("mnist", str(base))
    write(path, (base / "MNIST/raw/train-labels-idx1-ubyte").read_bytes() * 99)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte: not the idx file its name promises"):
        load("mnist", str(base))


def test_parquet_as_on_the_hub(base: Path) -> None:
    train, test = cifar100_parquet(base)
    write(base / "CIFAR100/classes.txt", "apple\nbee\ncan\n")
    source = load("cifar100", str(base))
    check(source, train, [0, 1, 2, 0, 1, 2], ["apple", "bee", "can"])
    assert np.array_equal(source.test.images, test)


def test_tinyimg_parquet_with_grey_pictures_and_some_of_the_classes(base: Path) -> None:
    """Grey becomes RGB; labels 1, 5, 9 become 0, 1, 2 with the names of those lines of wnids.txt."""
    colour, grey = pictures(2, (3, 64, 64)), pictures(1, (1, 64, 64))[0, 0]
    for split in ("train", "valid"):
        parquet(base / f"TINYIMG/{split}-00000-of-00001.parquet", [png(colour[0]), png(grey), png(colour[1])],
                [9, 1, 5], "image", "label")
    write(base / "TINYIMG/wnids.txt", "".join(f"n{i}\n" for i in range(10)))
    check(load("tinyimg", str(base)), np.stack([colour[0], np.stack([grey] * 3), colour[1]]), [2, 0, 1],
          ["n1", "n5", "n9"])


@pytest.mark.parametrize("test_name", ["test", "val", "valid"])
def test_folder_tree(base: Path, test_name: str) -> None:
    images = cifar10_tree(base, test_name)
    check(load("cifar10", str(base)), images, [0, 1, 2], ["bird", "cat", "dog"])


def test_palette_pictures_become_rgb(base: Path) -> None:
    red = Image.new("RGB", (32, 32), (200, 10, 20)).convert("P")
    for split in ("train", "test"):
        (base / f"CIFAR10/{split}/dog").mkdir(parents=True)
        red.save(base / f"CIFAR10/{split}/dog/0.png")
    expected = np.asarray(red.convert("RGB")).transpose(2, 0, 1)[None]
    check(load("cifar10", str(base)), expected, [0], ["dog"])


def test_original_tiny_imagenet_tree_in_the_order_of_wnids(base: Path) -> None:
    """tiny-imagenet-200: <wnid>/images, val_annotations.txt, an unlabelled test folder that is not used."""
    top, images = base / "TINYIMG/tiny-imagenet-200", pictures(2, (3, 64, 64))
    write(top / "wnids.txt", "n2\nn1\n")
    for name, image in zip(("n1", "n2"), images, strict=True):
        write(top / f"train/{name}/images/{name}_0.png", png(image))
        write(top / f"val/images/val_{name}.png", png(image))
    write(top / "val/val_annotations.txt", "val_n2.png\tn2\t0\t0\t9\t9\nval_n1.png\tn1\t0\t0\t9\t9\n")
    write(top / "test/images/test_0.png", png(images[0]))
    source = load("tinyimg", str(base))
    check(source, images, [1, 0], ["n2", "n1"])
    assert np.array_equal(source.test.images, images[::-1]) and source.test.labels.tolist() == [0, 1]


def test_numbered_class_folders_are_ordered_as_numbers(base: Path) -> None:
    for split in ("train", "test"):
        for name in ("0", "2", "10"):
            write(base / f"CIFAR100/{split}/{name}/a.png", png(pictures(1)[0]))
    assert load("cifar100", str(base)).classes == ["0", "2", "10"]
