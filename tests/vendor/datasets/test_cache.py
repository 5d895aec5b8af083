"""The cache of decoded images."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import cifar100_parquet, fails, parquet, pictures, png, write

from datasets.utils import sources
from datasets.utils.sources import load


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


@pytest.mark.parametrize("file", sorted([*sources.FILES, sources.DIGESTS]))
def test_damage_that_leaves_size_and_date_is_noticed(base: Path, file: str, capsys: pytest.CaptureFixture) -> None:
    """Zeros in the middle, as a power cut leaves them."""
    train, test = cifar100_parquet(base)
    load("cifar100", str(base))
    stored = next(sources.cache_root().glob(f"*/{file}"))
    before, content = stored.stat(), stored.read_bytes()
    middle = len(content) // 2
    stored.write_bytes(content[:middle] + bytes(len(content) - middle))
    os.utime(stored, ns=(before.st_atime_ns, before.st_mtime_ns))
    capsys.readouterr()
    found = load("cifar100", str(base))
    assert np.array_equal(found.train.images, train) and np.array_equal(found.test.images, test)
    assert found.train.labels.tolist() == [0, 1, 2] * 2 and found.classes == ["0", "1", "2"]
    assert "decoding it again" in capsys.readouterr().err
    load("cifar100", str(base))
    assert not capsys.readouterr().err


def test_files_are_read_whole_once_per_boot_and_never_without_need(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_parquet(base)
    load("cifar100", str(base))
    read = []
    digest = sources._digest
    monkeypatch.setattr(sources, "_digest", lambda file: (read.append(file.name), digest(file))[1])
    load("cifar100", str(base))
    assert not read
    (remembered,) = sources.cache_root().glob("*/.checked-*")
    write(remembered, remembered.read_text().replace('"boot": "', '"boot": "another'))
    load("cifar100", str(base))
    load("cifar100", str(base))
    assert sorted(read) == sorted(sources.FILES)
    write(remembered, "{")
    load("cifar100", str(base))
    assert len(read) == 2 * len(sources.FILES)


def test_a_cache_from_before_there_were_digests_is_made_anew(base: Path, capsys: pytest.CaptureFixture) -> None:
    train, _ = cifar100_parquet(base)
    load("cifar100", str(base))
    next(sources.cache_root().glob(f"*/{sources.DIGESTS}")).unlink()
    assert np.array_equal(load("cifar100", str(base)).train.images, train)
    assert list(sources.cache_root().glob(f"*/{sources.DIGESTS}")) and not capsys.readouterr().err


def test_damage_that_cannot_be_mended_is_one_line(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_parquet(base)
    load("cifar100", str(base))
    write(next(sources.cache_root().glob("*/train_images.npy")), bytes(20_000))
    monkeypatch.setattr(sources.shutil, "rmtree", lambda *_, **__: None)  # a cache of somebody else
    with pytest.raises(UserError, match=r"cifar100-\w+: train_images.npy is damaged; remove it, or set MAMMOTH_SBS_"):
        load("cifar100", str(base))


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
