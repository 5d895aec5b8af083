"""A user's own pictures: trees, parquet files and arrays that the tests make, in `--dataset seq-folder`."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mammoth_sbs import train
from mammoth_sbs.commands.data import main as data_command
from mammoth_sbs.errors import UserError
from tests.vendor.datasets.conftest import png, write
from tests.vendor.datasets.own import hub_parquet, load, picture, run, tree

import datasets.utils.own as own
from datasets.seq_folder import moments, usual_tasks
from datasets.utils.collection import numbered
from datasets.utils.own import Options, collect, load_own, split
from datasets.utils.tasks import class_order_file

METHODS = ("er", "der", "derpp", "xder", "gem", "agem", "rpc", "fdr")


# ---- what is found


def test_a_tree_with_and_without_a_test_split(base: Path) -> None:
    tree(base / "a" / "train", {"cat": 4, "dog": 6})
    tree(base / "a" / "test", {"cat": 2, "dog": 1})
    it, source = load(base / "a")
    assert it.kind == "a folder tree" and source.classes == ["cat", "dog"]
    assert source.train.labels.tolist() == [0] * 4 + [1] * 6 and source.test.labels.tolist() == [0, 0, 1]
    assert source.train.images.shape == (10, 3, 12, 12) and set(source.train.images[5].ravel().tolist()) == {70, 35}
    tree(base / "b", {"cat": 10, "dog": 5})
    _, source = load(base / "b", test_share=0.2)
    assert np.bincount(source.test.labels).tolist() == [2, 1] and np.bincount(source.train.labels).tolist() == [8, 4]


def test_the_split_is_the_seeds_alone(base: Path) -> None:
    tree(base / "a", {"cat": 20, "dog": 20})
    parts = [split(collect(Options(str(base / "a"), split_seed=seed), "."), Options("a", split_seed=seed))
             for seed in (0, 0, 1)]
    assert np.array_equal(parts[0], parts[1]) and not np.array_equal(parts[0], parts[2])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(2, 30), min_size=2, max_size=5), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_every_class_is_in_both_parts_however_unequal(sizes: list[int], share: float, seed: int) -> None:
    from datasets.utils.own import Collection

    labels = np.repeat(np.arange(len(sizes)), sizes)
    it = Collection("", [], labels, [str(i) for i in range(len(sizes))], lambda rows: iter(()))
    test = split(it, Options("x", test_share=share, split_seed=seed))
    for c, size in enumerate(sizes):
        count = int(test[labels == c].sum())
        assert 1 <= count < size and abs(count - share * size) <= 1


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_any_size_becomes_one_and_it_is_said_how(base: Path, fit: str) -> None:
    tree(base / "a", {"cat": 4, "dog": 4}, sizes=((40, 20), (9, 9)))
    said: list[str] = []
    _, source = load_own(Options(str(base / "a"), size=16, fit=fit), ".", said.append)
    assert source.train.images.shape[1:] == (3, 16, 16)
    assert "9 x 9 to 40 x 20, resized to 16 x 16" in said[0] and ("middle cut out" in said[0]) == (fit == "crop")
    wide = next(image for image, label in zip(*source.train, strict=True) if label == 1)
    assert {int(wide[0, 8, 2]), int(wide[0, 8, 13])} == {35, 70}  # dark on the left, whichever way
    _, source = load(base / "a")
    assert source.train.images.shape[1:] == (3, 64, 64)
    tree(base / "b", {"cat": 4, "dog": 4}, sizes=((20, 30),))
    assert load(base / "b")[1].train.images.shape[1:] == (3, 30, 20), "one size: as it is"


def test_grey_stays_grey_unless_there_is_colour(base: Path) -> None:
    tree(base / "a", {"cat": 4, "dog": 4}, colour=False)
    assert load(base / "a")[1].train.images.shape[1:] == (1, 12, 12)
    deep = Image.fromarray(np.full((12, 12), 257 * 90, np.uint16))
    deep.save(base / "a" / "dog" / "0.png")
    assert int(load(base / "a", split_seed=3)[1].train.images.max()) <= 90, "16 bits become 8, not white"
    write(base / "a" / "dog" / "1.png", png(picture(True, 12, 12, 9)))
    assert load(base / "a")[1].train.images.shape[1:] == (3, 12, 12)


def test_a_phones_pictures_are_turned_upright(base: Path) -> None:
    tree(base / "a", {"cat": 2, "dog": 2})
    image, exif = Image.fromarray(picture(True, 12, 12, 200).transpose(1, 2, 0)), Image.Exif()
    exif[0x0112] = 3  # upside down: dark on the right
    for i in range(2):
        image.save(base / "a" / "dog" / f"{i}.png", exif=exif)
    dog = next(x for x, y in zip(*load(base / "a")[1].train, strict=True) if y == 1)
    assert int(dog[0, 5, 1]) == 200 and int(dog[0, 5, 10]) == 100


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize("orientation", [1, 5, 6, 8])
def test_a_turned_picture_has_the_sides_that_are_seen(base: Path, suffix: str, orientation: int) -> None:
    image, exif = Image.fromarray(picture(True, 30, 20, 200).transpose(1, 2, 0)), Image.Exif()
    exif[0x0112] = orientation
    for name in ("cat", "dog"):
        (base / "a" / name).mkdir(parents=True)
        for i in range(2):
            image.save(base / "a" / name / f"{i}.{suffix}", exif=exif)
    said: list[str] = []
    _, source = load_own(Options(str(base / "a")), ".", said.append)
    assert source.train.images.shape[1:] == ((3, 20, 30) if orientation == 1 else (3, 30, 20))
    assert said[0].endswith(f"{'30 x 20' if orientation == 1 else '20 x 30'}, used as they are")


@pytest.mark.parametrize(("train_part", "test_part"), [
    ("Train", "Test"), ("training", "testing"), ("train", "eval"), ("TRAIN", "Validation")])
def test_folders_of_splits_have_many_names(base: Path, train_part: str, test_part: str) -> None:
    tree(base / "a" / train_part, {"cat": 4, "dog": 4})
    with pytest.raises(UserError, match=f"{train_part}: holds folders, so it is no class, and there is no test/ or"):
        load(base / "a")
    tree(base / "a" / test_part, {"cat": 1, "dog": 2})
    _, source = load(base / "a")
    assert source.classes == ["cat", "dog"] and len(source.train.labels) == 8 and len(source.test.labels) == 3
    assert load(tree(base / "b", {"bus": 3, "train": 3}))[1].classes == ["bus", "train"], "of trains"


def test_what_is_decoded_is_kept_until_something_changes(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every run says what the pictures became, also those that find it done."""
    tree(base / "a", {"cat": 4, "dog": 4})
    said: list[str] = []
    looked: list[int] = []
    monkeypatch.setattr(own, "survey", lambda it, look=own.survey: (looked.append(1), look(it))[1])
    options = Options(str(base / "a"))
    for more in (options, options, Options(str(base / "a"), size=8), options):
        load_own(more, ".", said.append)
    assert len(looked) == 2, "decoded once for each size"
    assert said == [f"--data {base / 'a'}: 8 pictures of 12 x 12, {what}" for what in (
        "used as they are", "used as they are", "resized to 8 x 8, the middle cut out of them where the sides differ",
        "used as they are")]
    tree(base / "a", {"cat": 5, "dog": 4})
    load_own(options, ".", said.append)
    assert len(looked) == 3


def test_classes_have_one_order(base: Path) -> None:
    """Whatever order a set has: 1, 01 and 001 are the same number, and a superscript two is none."""
    for names in (["1", "01", "001", "b", "²"], ["²", "001", "b", "1", "01"]):
        assert numbered(names)[1] == ["001", "01", "1", "b", "²"]
    assert numbered([f"{'0' * i}7" for i in reversed(range(9))])[1] == sorted(f"{'0' * i}7" for i in range(9))
    tree(base / "a", {"²": 2, "1²": 2, "01": 2, "1": 2})
    assert load(base / "a")[1].classes == ["01", "1", "1²", "²"]


# ---- in a run


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_stock_and_sbs(base: Path, method: str) -> None:
    """Unequal classes in grey, one tree; the numbers are those of the seed."""
    tree(base / "a", {"c10": 9, "c2": 30, "c3": 17, "c4": 12}, colour=False)
    for model in (method, f"{method}_sbs"):
        config = {"model_config": "best"} if model == method else {}
        result = run(model, base / "a", n_tasks=2, **config)
        assert result.matrix.shape == (2, 2) and result.args["n_tasks"] == 2
        assert result.model.dataset.get_class_names() == ["c2", "c3", "c4", "c10"]
    assert result.record["results"] == run(model, base / "a", n_tasks=2, **config).record["results"]
    stored = result.model.buffer
    assert 0 < len(stored) <= 24


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("xder", "rpc")])
def test_domains_arrive_and_classes_stay(base: Path, method: str) -> None:
    for domain in ("photo", "art", "sketch"):
        tree(base / "a" / domain, {"cat": 8, "dog": 12})
    for model in (method, f"{method}_sbs"):
        config = {"model_config": "best"} if model == method else {}
        result = run(model, base / "a", domains="folder", **config)
        data = result.model.dataset
        assert data.SETTING == "domain-il" and data.domains[2] == ["art", "photo", "sketch"] and data.N_CLASSES == 2
        assert np.array_equal(result.class_il.matrix[2], result.task_il.matrix[2]), "it is known who is asked for"
        for loader in data.test_loaders:
            assert np.bincount(loader.dataset.targets).tolist() == [2, 3]
        assert np.bincount(data.train_loader.dataset.targets).tolist() == [6, 9]
    if method == "gem":
        labels, tasks = result.model.buffer.labels[:24], result.model.buffer.task_labels[:24]
        assert np.bincount(labels + 2 * tasks).tolist() == [4] * 6, "a class of a domain has a quota"


@pytest.mark.parametrize("how", [{"domains": "folder"}, {}])
def test_q_and_s_are_chosen_by_the_rotation_task(base: Path, how: dict) -> None:
    for name in ("art", "photo"):  # domains, or classes with folders inside
        tree(base / "a" / name, {"cat": 16, "dog": 16})
    tasks = run("er_sbs", base / "a", sbs_q="auto", sbs_s="auto", sbs_grid=[0.0, 0.4], **how).record["sbs"]["tasks"]
    assert len(tasks) == 2 and all(task["stored"] > 0 for task in tasks)


def test_domains_by_a_column_or_an_array(base: Path) -> None:
    place, labels = ["in", "in", "out", "out"] * 4, [0, 1] * 8
    hub_parquet(base / "a.parquet", labels, place)
    np.savez(base / "b.npz", x=np.random.default_rng(0).random((16, 10, 10)), y=labels, place=np.array(place))
    for data in ("a.parquet", "b.npz"):
        assert run("er_sbs", base / data, domains="place").model.dataset.domains[2] == ["in", "out"]
    with pytest.raises(UserError, match="made for tasks with classes of their own.*take one of .*derpp-sbs"):
        run("xder", base / "b.npz", domains="place", model_config="best")
    with pytest.raises(UserError, match="--n_tasks 4: --domains place has 2, a task each"):
        run("er", base / "b.npz", domains="place", n_tasks=4)
    assert run("joint", base / "b.npz", domains="place").matrix.shape == (2, 2)
    with pytest.raises(UserError, match=r"b.npz has no such array for each picture, only x, y, place"):
        run("er", base / "b.npz", domains="where")
    with pytest.raises(UserError, match=r"a.parquet: has no column where \(--domains\), only image, label, place"):
        run("er", base / "a.parquet", domains="where")


def test_mean_and_deviation_are_measured(base: Path) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((40, 6, 6, 3)) * [50, 100, 200]).astype(np.uint8)
    np.savez(base / "a.npz", x_train=x, y_train=np.arange(40) % 4, x_test=x, y_test=np.arange(40) % 4)
    data = run("sgd", base / "a.npz").model.dataset
    assert np.allclose(data.MEAN, x.mean((0, 1, 2)) / 255, atol=1e-4)
    assert np.allclose(data.STD, x.std((0, 1, 2)) / 255, atol=1e-4)
    inputs = data.train_loader.dataset.batch(torch.arange(10))[0]
    assert abs(float(inputs.mean())) < 0.2 and abs(float(inputs.std()) - 1) < 0.2


def test_moments_are_those_of_all_pictures_at_once() -> None:
    x = np.random.default_rng(0).integers(0, 256, (600, 3, 5, 7), np.uint8)
    for images in (x, x[::7], x[:1], np.full((3, 1, 2, 2), 9, np.uint8)):
        mean, std = moments(images)
        assert np.allclose(mean, (images / 255).mean((0, 2, 3))) and np.allclose(std, (images / 255).std((0, 2, 3)))
    tracemalloc.start()
    moments(np.broadcast_to(x[:1], (20_000, 3, 5, 7)))
    assert tracemalloc.get_traced_memory()[1] < 1e6, "a block at a time"
    tracemalloc.stop()


def test_tasks_have_two_classes_or_more_if_that_can_be(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [usual_tasks(n) for n in (2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 100)] == [2, 3, 2, 5, 3, 4, 3, 5, 11, 6, 7, 5]
    tree(base / "a", {name: 4 for name in ("ant", "bee", "cat")})
    with pytest.warns(UserWarning, match="a: a task has one class, so that learning speed says nothing"):
        run("sgd", base / "a")
    data_command([str(base / "a")])
    assert "warning: a task has one class" in capsys.readouterr().out


def test_class_order_by_a_file(base: Path) -> None:
    tree(base / "a", {name: 4 for name in ("ant", "bee", "cat", "dog")})
    order = write(base / "order.txt", "dog\n# comment\n1\n\ncat  # the third\nant\n")
    names = run("sgd", base / "a", class_order=str(order), n_tasks=2).model.dataset.get_class_names()
    assert names == ["dog", "bee", "cat", "ant"]
    order.write_bytes(b"\xef\xbb\xbf" + order.read_bytes())  # as Windows marks UTF-8
    assert class_order_file(str(order), ["ant", "bee", "cat", "dog"], 4).tolist() == [3, 1, 2, 0]
    for text, line in (("dog\nbea\n", r"order.txt: line 2: 'bea' is no class; there are 0 to 3, or by name ant"),
                       ("dog\n0\nant\nbee\n", "class 0 is named twice"),
                       ("dog\nbee\n", "names 2 classes, and 4 are used")):
        write(order, text)
        with pytest.raises(UserError, match=line):
            run("sgd", base / "a", class_order=str(order))


def test_data_is_found_here_or_below_the_base_path(base: Path) -> None:
    tree(base / "a", {"cat": 4, "dog": 4})
    assert train("sgd", "seq-folder", data="a", base_path=str(base), backbone="mnistmlp", n_epochs=1, lr=0.1,
                 batch_size=4, seed=0).matrix.shape == (2, 2)
    with pytest.raises(UserError, match="--data b: there is no such file or folder"):
        train("sgd", "seq-folder", data="b", base_path=str(base), lr=0.1)
    with pytest.raises(UserError, match="--data"):
        train("sgd", "seq-folder", lr=0.1)
    with pytest.raises(UserError, match="--data is a flag of other data sets, not of seq-digits: seq-folder"):
        train("sgd", "seq-digits", data="a", lr=0.1)


def test_sweeps_and_figures_take_it_as_any_other(base: Path, tmp_path: Path) -> None:
    """A run is known by what `--data` says, not by where that is; figures call it by its name and find its pictures."""
    from mammoth_sbs.experiments.config import read_config
    from mammoth_sbs.experiments.pictures import test_pictures
    from mammoth_sbs.experiments.runs import resolve
    from mammoth_sbs.experiments.store import named
    from mammoth_sbs.figures.results import Run

    ids = []
    for place in (base, tmp_path / "elsewhere"):
        tree(place / "zoo", {name: 5 for name in ("ant", "bee", "cat", "dog")})
        config = write(tmp_path / "sweep.yaml", "base: --dataset seq-folder --data zoo --backbone mnistmlp "
                       f"--n_epochs 1 --base_path {place}\ngrid:\n  model: [er_sbs, gem_sbs]\nseeds: 2\n")
        ids.append([run.id for run in resolve(read_config(config))])
    assert ids[0] == ids[1] and len(set(ids[0])) == 4
    result = train("er_sbs", "seq-folder", data="zoo", base_path=str(base), backbone="mnistmlp", n_epochs=1,
                   batch_size=4, seed=0)
    assert Run("", {**result.record, "threads": 1}).dataset == "zoo-2"
    for args in (result.record["args"], named(result.record["args"])):  # a sweep's records leave out unset flags
        images, names = test_pictures(args, str(base), np.array([0, 2]))
        assert images.shape == (2, 12, 12, 3) and names == ["ant", "cat"]
