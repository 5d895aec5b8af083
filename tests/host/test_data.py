"""`mammoth-sbs data`: what is found becomes the files that torchvision and Mammoth look for; who takes which folder."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from mammoth_sbs import commands as cli
from mammoth_sbs.errors import UserError
from mammoth_sbs.host import import_torchvision
from mammoth_sbs.host.data import MANIFEST, accept_exported, export, is_exported, listing, mammoth_accepts
from tests.vendor.datasets.conftest import cifar10_tree, cifar100_parquet, parquet, pictures, png, write

from datasets.utils import sources


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache or the network."""
    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "TORCHVISION", "raise SystemExit('offline')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """CIFAR-10 as folders, CIFAR-100 and a Tiny ImageNet of two classes as parquet files."""
    folder = tmp_path / "data"
    cifar10_tree(folder)
    cifar100_parquet(folder)
    images = [png(image) for image in pictures(40, (3, 64, 64))]
    parquet(folder / "TINYIMG/train-00000-of-00001.parquet", images, [0, 1] * 20, "image", "label")
    parquet(folder / "TINYIMG/valid-00000-of-00001.parquet", images[:20], [0, 1] * 10, "image", "label")
    return folder


def test_what_is_exported_is_what_was_found(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "new"
    cli.main(["data", "export", "--base_path", str(base), "--to", str(to)])
    assert len(capsys.readouterr().out.splitlines()) == 3
    for name in ("cifar10", "cifar100", "tinyimg"):
        old, new = sources.load(name, str(base)), sources.load(name, str(to))
        for split in ("train", "test"):
            for part in ("images", "labels"):
                assert np.array_equal(getattr(getattr(old, split), part), getattr(getattr(new, split), part)), name
    assert sources.load("cifar100", str(to)).classes == sources.load("cifar100", str(base)).classes
    assert not list(to.rglob(".partial-*"))


def test_torchvision_takes_an_export_once_it_knows_of_them(base: Path, tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    from torchvision.datasets import CIFAR10, CIFAR100, cifar

    monkeypatch.setattr(cifar, "check_integrity", cifar.check_integrity)  # undone afterwards
    for name in ("cifar10", "cifar100"):
        export(name, str(base), tmp_path)
    with pytest.raises(RuntimeError, match="not found or corrupted"):
        CIFAR10(str(tmp_path / "CIFAR10"))
    accept_exported()
    source = sources.load("cifar10", str(base))
    for train, split in ((True, source.train), (False, source.test)):
        found = CIFAR10(str(tmp_path / "CIFAR10"), train=train)
        assert np.array_equal(found.data, split.images.transpose(0, 2, 3, 1)) and found.targets == split.labels.tolist()
        assert found.classes == source.classes == ["bird", "cat", "dog"]
    assert CIFAR100(str(tmp_path / "CIFAR100"), train=False).targets == [0, 1, 2]
    file = tmp_path / "CIFAR10/cifar-10-batches-py/data_batch_2"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert not is_exported(file) and is_exported(file.with_name("data_batch_1"))
    with pytest.raises(RuntimeError, match="not found or corrupted"):
        CIFAR10(str(tmp_path / "CIFAR10"))


def test_mammoths_tiny_imagenet_gives_every_byte_back(tmp_path: Path) -> None:
    """Mammoth makes `uint8(255 * x)` of what it reads, which rounds down."""
    folder = tmp_path / "data"
    ramp = np.arange(64 * 64 * 3, dtype=np.int64).reshape(3, 64, 64) % 256
    images = [png(ramp.astype(np.uint8))] * 20
    for split in ("train", "valid"):
        parquet(folder / f"TINYIMG/{split}-00000-of-00001.parquet", images, [0, 1] * 10, "image", "label")
    made = export("tinyimg", str(folder), tmp_path / "new")
    assert len(list(made.glob("*.npy"))) == 80
    parts = [np.load(made / f"x_val_{i:02}.npy") for i in range(1, 21)]
    whole = np.concatenate(np.array(parts))  # as Mammoth does, so all must be equally long
    assert whole.shape == (20, 64, 64, 3) and whole.dtype == np.float32 and whole.min() >= 0 and whole.max() <= 1
    assert np.array_equal(np.uint8(255 * whole[7]), ramp.transpose(1, 2, 0))
    assert np.concatenate([np.load(made / f"y_train_{i:02}.npy") for i in range(1, 21)]).tolist() == [0, 1] * 10


def test_a_pickle_reads_with_the_first_numpy_too(base: Path, tmp_path: Path) -> None:
    folder = export("cifar100", str(base), tmp_path)
    data = (folder / "train").read_bytes()
    assert b"numpy._core" not in data and b"numpy.core.multiarray\n_reconstruct" in data
    assert pickle.loads(data)["fine_labels"] == [0, 1, 2, 0, 1, 2]


def test_few_images_are_those_that_a_run_takes(base: Path, tmp_path: Path) -> None:
    from mammoth_sbs.few import per_class

    cli.main(["data", "export", "seq-cifar100", "--base_path", str(base), "--to", str(tmp_path / "few"),
              "--train_per_class", "1", "--test_per_class", "1"])
    old, new = (sources.load("cifar100", str(folder)) for folder in (base, tmp_path / "few"))
    assert np.array_equal(new.train.images, old.train.images[per_class(old.train.labels, 1, 0)])
    assert sorted(new.train.labels.tolist()) == sorted(new.test.labels.tolist()) == [0, 1, 2]


def test_who_accepts_a_folder(base: Path, tmp_path: Path) -> None:
    def said(name: str, folder: Path) -> str:
        return dict(listing(folder))[name]

    assert said("seq-cifar10", base).endswith("CIFAR10/train/bird; embedded host: yes; Mammoth: no")
    assert said("seq-mnist", base) == "not found: downloaded when it is first used"
    for name in ("cifar10", "tinyimg"):
        export(name, str(base), tmp_path)
    assert "embedded host: yes; Mammoth: yes, with MAMMOTH_ROOT (exported" in said("seq-cifar10", tmp_path)
    assert said("seq-tinyimg", tmp_path).endswith("Mammoth: yes, with MAMMOTH_ROOT (not all classes)")
    assert said("seq-cifar100", tmp_path) == "not found: downloaded when it is first used"

    folder = tmp_path / "CIFAR10/cifar-10-batches-py"
    (folder / "test_batch").write_bytes(b"")
    assert "Mammoth: no (test_batch is not as it was exported: export again)" in said("seq-cifar10", tmp_path)
    (folder / MANIFEST).unlink()
    assert mammoth_accepts("cifar10", tmp_path) == "no (not the original files: see mammoth-sbs data export)"
    (tmp_path / "TINYIMG/processed/y_val_20.npy").unlink()
    assert "y_val_20.npy is missing" in said("seq-tinyimg", tmp_path)


@pytest.mark.parametrize(("words", "says"), [
    ("data export cifar11 --to new", "cifar11: not one of cifar10, cifar100, tinyimg"),
    ("data export --to new --train_per_class 0", "--train_per_class: a whole number of at least 1 is needed, not 0"),
    ("data export tinyimg --to new --test_per_class 1", "Mammoth reads 20 files of equal length, and the 2 val images"),
    ("data", "the following arguments are required: ACTION"),
])
def test_bad_input_is_one_line_and_nothing_is_written(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      words: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says) as error:
        cli.main(words.split() + (["--base_path", str(base)] if "export" in words else []))
    assert "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_what_is_there_is_not_overwritten(base: Path, tmp_path: Path) -> None:
    write(tmp_path / "CIFAR10/cifar-10-batches-py/mine", "precious")
    with pytest.raises(UserError, match="cifar-10-batches-py is not empty; move it away"):
        export("cifar10", str(base), tmp_path)
    with pytest.raises(UserError, match="none of cifar10, cifar100, tinyimg is there; name one to download it"):
        cli.main(["data", "export", "--base_path", str(tmp_path / "empty"), "--to", str(tmp_path / "new")])


def test_the_manifest_says_what_it_is(base: Path, tmp_path: Path) -> None:
    manifest = json.loads((export("cifar10", str(base), tmp_path) / MANIFEST).read_text())
    assert manifest["classes"] == ["bird", "cat", "dog"] and (manifest["train"], manifest["test"]) == (3, 3)
    assert set(manifest["sha256"]) == {*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"}
