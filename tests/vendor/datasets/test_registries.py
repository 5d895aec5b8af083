"""Fashion-MNIST and Quick, Draw!: as their packages hold them, found and fetched."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.vendor.datasets.conftest import check, fails, pictures, write

from datasets import get_dataset_names
from datasets.utils import sources
from datasets.utils.sources import load

CLASSES = ["t-shirt", "trouser", "pullover"]


def idx_files(folder: Path) -> np.ndarray:
    """Three classes, twelve training images; zipped, as Debian's package has them."""
    images = pictures(12, (1, 28, 28))
    for split, count in (("train", 12), ("t10k", 3)):
        for kind, magic, dims, data in (("images-idx3", 0x803, (count, 28, 28), images[:count].tobytes()),
                                        ("labels-idx1", 0x801, (count,), bytes([0, 1, 2] * 4)[:count])):
            raw = np.array([magic, *dims], ">i4").tobytes() + data
            write(folder / f"{split}-{kind}-ubyte.gz", gzip.compress(raw))
    return images


def test_fashion_below_the_base_path_comes_before_the_systems(base: Path, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "usr/share/datasets/fashion-mnist"
    spec = sources.SPECS["fashion"]
    assert [layout.folder for layout in spec.layouts][-1] == "/usr/share/datasets/fashion-mnist", "where apt puts it"
    layouts = (*spec.layouts[:-1], spec.layouts[-1]._replace(folder=str(system)))
    monkeypatch.setitem(sources.SPECS, "fashion", spec._replace(layouts=layouts))
    images = idx_files(system)
    check(load("fashion", str(base)), images, [0, 1, 2] * 4, CLASSES)
    idx_files(base / "FashionMNIST/raw")
    load("fashion", str(base))
    (base / "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(sources.UserError, match="FashionMNIST/raw: t10k-labels-idx1-ubyte is missing; put it there"):
        load("fashion", str(base))


def test_fashion_by_apt_without_installing(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is unpacked, checked and kept where torchvision would have put it."""
    images = idx_files(tmp_path / "package/usr/share/datasets/fashion-mnist")
    spec = sources.SPECS["fashion"]._replace(counts=(12, 3), per_class=(4, 1), means=(float(images.mean()) / 255,),
                                             layouts=sources.SPECS["fashion"].layouts[:-1])
    monkeypatch.setitem(sources.SPECS, "fashion", spec)
    fails("fashion", base, r"apt-get download dataset-fashion-mnist \(apt-get is not on PATH\)")
    for tool, code in (("apt-get", "assert sys.argv[1:] == ['download', 'dataset-fashion-mnist']; open('a.deb', 'w')"),
                       ("dpkg-deb", "import shutil; assert sys.argv[1] == '-x' and sys.argv[2].endswith('a.deb'); "
                                    f"shutil.copytree({str(tmp_path / 'package')!r}, sys.argv[3])")):
        write(tmp_path / "bin" / tool, f"#!{sys.executable}\nimport sys\n{code}\n").chmod(0o755)
    check(load("fashion", str(base)), images, [0, 1, 2] * 4, CLASSES)
    assert (base / "FashionMNIST/raw/train-images-idx3-ubyte.gz").is_file()


def drawings(folder: Path, names: tuple[str, ...] = ("The Eiffel Tower", "ant", "bat")) -> np.ndarray:
    """Ten of each class, as numbers from 0 to 1; the first of a class is its number alone."""
    images = pictures(30, (1, 28, 28)).reshape(3, 10, 784)
    for name, rows in zip(names, images, strict=True):
        lines = "\n".join(json.dumps((row / 255).round(3).tolist()) for row in rows)
        write(folder / f"{name}.ndjson.gz", gzip.compress(lines.encode()))
    return images


def test_quickdraw_has_every_fifth_drawing_for_testing(base: Path) -> None:
    images = drawings(base / "QUICKDRAW/drawings")[[1, 2, 0]]  # capitals do not come first
    source = load("quickdraw", str(base))
    assert source.classes == ["ant", "bat", "The Eiffel Tower"]
    train = [i for i in range(10) if i % 5 != 4]
    difference = source.train.images.reshape(3, 8, 784).astype(int) - images[:, train]
    assert abs(difference).max() <= 1 and np.bincount(source.train.labels).tolist() == [8] * 3
    assert abs(source.test.images.reshape(3, 2, 784).astype(int) - images[:, [4, 9]]).max() <= 1
    write(base / "QUICKDRAW/drawings/ant.ndjson.gz", gzip.compress(b"[0, 1]\n[2"))
    with pytest.raises(sources.UserError, match="drawings/ant.ndjson.gz: .*put a good copy there"):
        load("quickdraw", str(base))


@pytest.mark.parametrize(("name", "classes"), [("seq-fashion", 10), ("seq-quickdraw", 345)])
def test_their_tasks_divide_their_classes(name: str, classes: int) -> None:
    cls = get_dataset_names()[name]
    assert classes % cls.N_TASKS == 0 and cls.SOURCE in sources.SPECS
