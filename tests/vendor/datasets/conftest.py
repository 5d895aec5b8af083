"""What the tests of `datasets.utils.sources` share: small data sets in every layout, away from the user's."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mammoth_sbs.errors import UserError

from datasets.utils import sources
from datasets.utils.sources import load

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


def cifar10_tree(base: Path, test_name: str = "test") -> np.ndarray:
    """A CIFAR-10 as folders: one image of each of 3 classes, the same for training and test."""
    images = pictures(3)
    for split in ("train", test_name):
        for name, image in zip(("bird", "cat", "dog"), images, strict=True):
            write(base / f"CIFAR10/{split}/{name}/0.png", png(image))
    return images


def check(source: sources.Source, train: np.ndarray, labels: list[int], classes: list[str]) -> None:
    assert np.array_equal(source.train.images, train)
    assert source.train.labels.tolist() == labels
    assert source.classes == classes
    for split in source[:2]:
        assert split.images.dtype == np.uint8 and split.labels.dtype == np.int64 and split.images.flags.c_contiguous


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def fails(name: str, base: Path, pattern: str) -> None:
    """It ends in one line that matches, and leaves nothing in the cache."""
    with pytest.raises(UserError, match=pattern) as caught:
        load(name, str(base))
    assert "\n" not in str(caught.value)
    assert not leftovers(sources.cache_root()), "half-written cache"
