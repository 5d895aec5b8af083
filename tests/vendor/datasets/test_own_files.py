"""A user's own pictures: parquet files and arrays in all their forms, and what is wrong with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import png, write
from tests.vendor.datasets.own import hub_parquet, load, picture, tree

from datasets.utils.own_npz import as_pictures

HUB = {"default/train/0000": "ab", "default/test/0000": "ba"}, {"train/0000": "ab", "test/0000": "ba"}, \
    {"plain_text/train-00000-of-00001": "ab", "plain_text/test-00000-of-00001": "ba"}, \
    {"data/train-0": "ab", "data/test-0": "ba", "data/validation-0": "abab", "data/unsupervised-0": "abc"}, \
    {"Train": "ab", "eval": "ba"}


@pytest.mark.parametrize("files", HUB)
def test_layouts_of_the_hub(base: Path, files: dict[str, str]) -> None:
    for name, labels in files.items():
        hub_parquet(base / "h" / f"{name}.parquet", list(labels))
    it, source = load(base / "h")
    left_out = ["left out: data/unsupervised-0.parquet, data/validation-0.parquet"] if len(files) > 2 else []
    assert it.notes == left_out and source.train.labels.tolist() == [0, 1] and source.test.labels.tolist() == [1, 0]


def test_files_may_call_their_pictures_differently(base: Path) -> None:
    for name, column in (("train", "img"), ("test", "image")):
        path = hub_parquet(base / "h" / f"{name}.parquet", ["a", "b"])
        table = pq.read_table(path)
        pq.write_table(table.rename_columns([column, "label"]), path)
    assert len(load(base / "h")[1].test.labels) == 2


@pytest.mark.parametrize(("files", "line"), [
    (["train-00000-of-00002", "test-00000-of-00001"], r"holds 1 of 2 files train-\*-of-00002.parquet; add"),
    (["train-00001-of-00002"], "holds 1 of 2 files train"),
    (["test", "extra"], "holds .*, and none is for training; call"),
    (["one/train-0", "two/train-0"], "holds 2 data sets, one, two; name one of them, as --data .*h/one")])
def test_what_is_missing_of_the_hubs_files(base: Path, files: list[str], line: str) -> None:
    for name in files:
        hub_parquet(base / "h" / f"{name}.parquet", list("abab"))
    with pytest.raises(UserError, match=line):
        load(base / "h")


def test_columns_of_labels_as_pandas_has_them(base: Path) -> None:
    for i, labels in enumerate((pa.array(["b", "a"] * 3).dictionary_encode(), pa.array([True, False] * 3))):
        hub_parquet(base / f"{i}.parquet", labels)
        assert load(base / f"{i}.parquet")[1].classes == (["a", "b"], ["False", "True"])[i]
    hub_parquet(base / "none.parquet", pa.array([], pa.int64()))
    with pytest.raises(UserError, match=r"none.parquet: has no rows; put a good copy there"):
        load(base / "none.parquet")
    hub_parquet(base / "blank.parquet", ["a", "", "b"])
    with pytest.raises(UserError, match=r"blank.parquet: row 1: label is blank"):
        load(base / "blank.parquet")


@pytest.mark.parametrize(("make", "shape"), [
    (lambda x: x, (3, 6, 8)), (lambda x: x.transpose(0, 3, 1, 2), (3, 6, 8)), (lambda x: x[..., 0], (1, 6, 8)),
    (lambda x: (x / 255).astype(np.float32), (3, 6, 8)), (lambda x: x.astype(np.float64), (3, 6, 8))])
def test_npz(base: Path, make: Any, shape: tuple) -> None:
    x = np.random.default_rng(0).integers(0, 256, (10, 6, 8, 3), np.uint8)
    x[0, 0, 0] = 255
    y = np.array([3, 7] * 5)
    np.savez(base / "a.npz", x_train=make(x), y_train=y, x_test=make(x[:4]), y_test=y[:4])
    _, source = load(base / "a.npz")
    expected = x.transpose(0, 3, 1, 2)[:, : shape[0]]
    assert source.classes == ["3", "7"] and np.array_equal(source.train.images, expected)
    np.savez(base / "b.npz", images=make(x), labels=y.astype(float), classes=np.array([f"c{i}" for i in range(8)]))
    assert load(base / "b.npz")[1].classes == ["c3", "c7"]


@given(st.integers(1, 3), st.sampled_from([np.uint8, np.float32, bool, np.int64]))
@settings(max_examples=12, deadline=None)
def test_arrays_of_any_kind_keep_their_values(n: int, kind: type) -> None:
    x = np.random.default_rng(n).integers(0, 2, (n, 4, 5)).astype(kind)
    full = 1 if kind in (np.uint8, np.int64) else 255
    assert np.array_equal(as_pictures([("x", x)], Path("x"))[0], x.astype(np.uint8) * full)


def test_the_scale_of_floats_is_the_files(base: Path) -> None:
    """A float a hair beside 0 to 1, as resizing leaves it, makes no bytes of the others; dark bytes stay bytes."""
    x = np.random.default_rng(0).random((8, 5, 5)).astype(np.float32)
    x[0, 0, :2] = 1.0000001, -1e-7
    y = np.array([0, 1] * 4)
    np.savez(base / "a.npz", x_train=x, y_train=y, x_test=x[2:], y_test=y[2:])
    expected = np.rint(x.clip(0, 1) * 255)[:, None]
    _, source = load(base / "a.npz")
    assert np.array_equal(source.train.images, expected) and np.array_equal(source.test.images, expected[2:])
    dark = np.full((2, 5, 5), 0.9)
    np.savez(base / "b.npz", x_train=np.full((4, 5, 5), 200.0), y_train=y[:4], x_test=dark, y_test=y[:2])
    assert load(base / "b.npz")[1].test.images.max() == 1, "of bytes"


def test_labels_of_an_npz_may_be_bytes_or_a_column(base: Path) -> None:
    x = np.zeros((4, 5, 5), np.uint8)
    np.savez(base / "a.npz", x=x, y=np.array([b"cat", b"dog"] * 2))
    assert load(base / "a.npz")[1].classes == ["cat", "dog"]
    np.savez(base / "b.npz", x=x, y=np.array([[0], [1]] * 2), classes=np.array([b"owl", b"bat"]))
    assert load(base / "b.npz")[1].classes == ["owl", "bat"]


# ---- bad data: one line that names the file, and the row


def test_bad_pictures_and_rows_are_named(base: Path) -> None:
    tree(base / "a", {"cat": 4, "dog": 4})
    good = (base / "a/dog/1.png").read_bytes()
    for bad, why in ((b"no picture", "cannot identify image"), (good[:60], ".")):
        write(base / "a/dog/1.png", bad)
        with pytest.raises(UserError, match=f"a/dog/1.png: .*{why}.*; replace this picture") as caught:
            load(base / "a")
        assert "\n" not in str(caught.value)
    hub_parquet(base / "h.parquet", [0, 1, None, 1])
    with pytest.raises(UserError, match=r"h.parquet: row 2: label is blank; fill it in"):
        load(base / "h.parquet")
    hub_parquet(base / "h.parquet", [0, 1, 5, 1], names=["a", "b"])
    with pytest.raises(UserError, match=r"h.parquet: row 2: label is 5, and there are 2 names"):
        load(base / "h.parquet")
    pq.write_table(pa.table({"image": [png(picture(True, 9, 9, 1)), png(picture(True, 9, 9, 1)), b"?", b"?"],
                             "label": [0, 0, 1, 1]}), base / "h.parquet")
    with pytest.raises(UserError, match=r"h.parquet: row 2: cannot identify image"):
        load(base / "h.parquet")
    x = np.zeros((4, 5, 5))
    x[2] = np.nan
    np.savez(base / "n.npz", x=x, y=[0, 1, 0, 1])
    with pytest.raises(UserError, match=r"n.npz: x: row 2: its numbers are not from 0 to 1"):
        load(base / "n.npz")
    np.savez(base / "n.npz", x=np.zeros((4, 5, 5)), y=[0, 1, 0.5, 1])
    with pytest.raises(UserError, match=r"n.npz: y: row 2: the label is no whole number"):
        load(base / "n.npz")


@pytest.mark.parametrize(("arrays", "line"), [
    ({"x": np.zeros((4, 5, 5)), "y": np.arange(3)}, "x has 4 images but y 3 labels"),
    ({"pixels": np.zeros(3)}, "holds pixels; it should hold x_train"),
    ({"x": np.zeros((4, 5, 5, 2)), "y": np.arange(4)}, r"an array \(4, 5, 5, 2\)"),
    ({"x": np.zeros((4, 5, 5)), "y": np.zeros(4)}, "holds one class"),
    ({"x": np.zeros((3, 5, 5)), "y": np.array([0, 0, 1])}, "1 has 1 picture, .*row 2, and none for test; add some"),
    ({"x": np.zeros((4, 5, 5)), "y": np.eye(4)}, r"y is an array \(4, 4\); .*of one-hot rows give the argmax"),
    ({"x": np.zeros((4, 5, 5)), "y": np.array([0, 1, np.inf, 1])}, "n.npz: y: row 2: the label is no whole number"),
    ({"x": np.zeros((4, 5, 5)), "y": np.array(["a", "b", "", "b"])}, "n.npz: y: row 2: the label is blank"),
    ({"x": np.zeros((4, 5, 5)), "y": np.array(["a", "b"] * 2), "classes": np.array(["a", "c"])},
     "n.npz: y: row 1: the label is 'b', which is none of the names of classes"),
    ({"x_train": np.zeros((4, 5, 5)), "y_train": np.array([0, 1] * 2), "x_test": np.zeros((4, 5, 5))},
     "n.npz: holds x_test and no y_test; it should"),
    ({"x_train": np.zeros((4, 5, 5)), "y_train": [0, 1, 0, 1], "x_test": np.zeros((2, 5, 5)), "y_test": [0, 0.5]},
     "n.npz: y_test: row 1: the label is no whole number"),
    ({"x": np.zeros((0, 5, 5)), "y": np.zeros(0)}, r"x is an array \(0, 5, 5\)"),
    ({"x": np.full((4, 5, 5), 1.5), "y": [0, 1, 0, 1]}, "n.npz: x: row 0: its numbers are not from 0 to 1"),
    ({"x": np.full((4, 5, 5), -0.1), "y": [0, 1, 0, 1]}, "n.npz: x: row 0: its numbers are not from 0 to 1")])
@pytest.mark.filterwarnings("error")
def test_bad_arrays(base: Path, arrays: dict, line: str) -> None:
    np.savez(base / "n.npz", **arrays)
    with pytest.raises(UserError, match=line):
        load(base / "n.npz")


def test_empty_and_unfit_folders(base: Path) -> None:
    (base / "empty").mkdir()
    with pytest.raises(UserError, match="empty: no pictures; it should hold a folder of them for each class"):
        load(base / "empty")
    tree(base / "a" / "train", {"cat": 3, "dog": 3})
    tree(base / "a" / "test", {"cat": 3})
    with pytest.raises(UserError, match="dog has 3 pictures, .*train/dog/0.png, and none for test"):
        load(base / "a")
    write(base / "note.txt", "x")
    with pytest.raises(UserError, match="neither a folder nor an .npz or .parquet"):
        load(base / "note.txt")
    with pytest.raises(UserError, match="domains are folders above the classes"):
        load(base / "a", domains="place")
