"""Damaged files of every kind: what does not fit is named in one line with its file; no traceback, no wrong number.

`pytest tests/test_damage.py --hypothesis-profile torture` tries a thousand damages of each kind.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import math
import operator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.experiments.store import packed, read_results
from mammoth_sbs.figures import report
from mammoth_sbs.figures.results import load
from mammoth_sbs.tuning.pairs import Point
from mammoth_sbs.tuning.search import Journal, fingerprint
from tests.conftest import REPO, digits_read_once, mammoth_main
from tests.vendor.datasets.conftest import cifar100_parquet

from datasets.utils import sources
from utils import run as run_module
from utils.checkpoints import save_checkpoint

# ---- what may happen to a file


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut off, overwritten, zeroed, doubled, or something put in between."""
    n = len(content)
    start = draw(st.integers(0, n))
    end = draw(st.integers(start, min(n, start + draw(st.sampled_from([1, 2, 8, 100, n])))))
    instead = draw(st.one_of(st.just(b""), st.binary(max_size=20), st.just(bytes(end - start)),
                             st.just(content[start:end] * 2), st.just(bytes(b ^ 1 for b in content[start:end]))))
    return content[:start] + instead + (b"" if draw(st.integers(0, 4)) == 0 else content[end:])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}), st.just([[]]),
    st.sampled_from([9000, -1, 101.0, 1e308, 10**400, float("nan"), float("inf"), "nan", "\ud800", [1, 2], {"a": 1}]))


@st.composite
def damaged_value(draw: st.DrawFn, value: Any, values: st.SearchStrategy = VALUES) -> Any:
    """The same, but for one place in it: another value there, or none."""
    value = copy.deepcopy(value)
    at = value
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and at[key] and draw(st.integers(0, 3)):
            at = at[key]
            continue
        if draw(st.integers(0, 3)) == 0:
            del at[key]
        else:
            at[key] = draw(values)
        return value


def one_line(e: UserError, *words: str) -> None:
    """It is one line, it names what it is about, and shows no address in memory."""
    message = str(e)
    assert "\n" not in message and " at 0x" not in message and len(message) < 600, message
    for word in words:
        assert word in message, message


# ---- results of runs

LINES = (REPO / "results" / "small_bars_cifar10_5.jsonl").read_text(encoding="utf-8").splitlines()
GOOD = [json.loads(line) for line in LINES[:2] + LINES[-1:]]  # without a band, and with a search for q and s


def read_or_named(folder: Path, *words: str) -> None:
    """All that reads results says the same one line, or all that was damaged did not matter."""
    try:
        records = read_results(folder)
    except UserError as e:
        one_line(e, *words)
        with pytest.raises(UserError):
            load([folder])
        return
    for record in records.values():
        for setting in ("class_il", "task_il"):
            found = record["results"][setting]
            assert all(0 <= value <= 100 for row in found["matrix"] for value in row)
            assert found["final"] == pytest.approx(sum(found["matrix"][-1]) / len(found["matrix"]))
    if records:
        report.page(load([folder]), "")


@given(st.data())
def test_a_result_with_a_wrong_value(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("results")
    record = data.draw(damaged_value(data.draw(st.sampled_from(GOOD))))
    name = record["id"] if record.get("id") in [good["id"] for good in GOOD] else GOOD[0]["id"]
    (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    read_or_named(folder, f"{folder / name}.json: ")


@given(st.data())
def test_a_result_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("results")
    file = folder / f"{GOOD[1]['id']}.json"
    file.write_bytes(data.draw(damaged_bytes(json.dumps(GOOD[1], indent=1).encode())))
    read_or_named(folder, f"{file}: ")


@given(st.data())
def test_packed_results_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("results") / "sweep"
    content = "".join(f"{json.dumps(one)}\n" for one in GOOD).encode()
    packed(folder).write_bytes(data.draw(damaged_bytes(content)))
    read_or_named(folder, str(folder))


@pytest.mark.parametrize(("place", "value", "says"), [
    ("results.task_il.matrix.2.1", 9000, r"results\.task_il\.matrix\[2\]\[1\] is 9000, not a number from 0 to 100"),
    ("results.task_il.final", 9000, "results.task_il.final is 9000, not a number from 0 to 100"),
    ("results.task_il.final", 50.0, r"results.task_il.final is 50.0, and its matrix gives 71\.5"),
    ("results.class_il.matrix.4", None, r"results.class_il.matrix\[4\] is None, not a list"),
    ("results.class_il.matrix.1", [1.0], r"results.class_il.matrix\[1\] has 1 accuracies, not 2"),
    ("results.class_il.matrix", [[79.9]], r"results have 1 and 5 tasks"),
    ("args.lr", 0.2, "id is '[0-9a-f]{16}', which is not that of its arguments"),
    ("seed", 7, "seed is 7, and args.seed is 6"),
    ("sbs.tasks.0.speed_mean", 2, r"sbs\.tasks\[0\]\.speed_mean is 2, not a number from 0 to 1"),
    ("volatile.wall_time", "long", r"volatile\.wall_time is 'long', not a number of at least 0"),
    ("results", ..., "results is missing"),
])
def test_what_is_wrong_is_named(tmp_path: Path, place: str, value: Any, says: str) -> None:
    record = copy.deepcopy(GOOD[0])
    *way, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    at: Any = functools.reduce(operator.getitem, way, record)
    if value is ...:
        del at[last]
    else:
        at[last] = value
    file = tmp_path / f"{GOOD[0]['id']}.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=f"^{file}: not the result of a run: .*{says}.*; move it away$"):
        read_results(tmp_path)


# ---- finished pairs of a search


@given(st.data())
def test_a_journal_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What is read was written; what is lost is tried again, and written behind the damage."""
    journal = Journal(tmp_path_factory.mktemp("journal") / "points.jsonl", "a")
    assert journal.path is not None
    points = {(q, 0.2): Point(q, 0.2, 90.0 + q, 30.5, 2.5, 40, 1.25) for q in (0.0, 0.2, 0.4)}
    for point in points.values():
        journal.add(point)
    journal.path.write_bytes(data.draw(damaged_bytes(journal.path.read_bytes())))
    found = journal.read()
    assert found.items() <= points.items()
    for pair in points.keys() - found.keys():
        journal.add(points[pair])
    assert journal.read() == points


@given(st.data())
def test_a_journal_with_a_wrong_value(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Also if the digest is right, as in a file that somebody made."""
    journal = Journal(tmp_path_factory.mktemp("journal") / "points.jsonl", "a")
    assert journal.path is not None
    entry = data.draw(damaged_value({"key": "a", **Point(0.0, 0.2, 90.0, 30.5, 2.5, 40, 1.25)._asdict()}))
    journal.path.write_text(json.dumps({**entry, "digest": fingerprint(entry)}), encoding="utf-8")
    try:
        for point in journal.read().values():
            assert 0 <= point.score <= 100 and 0 <= point.q < 1 and 0 <= point.s < 1
    except UserError as e:
        one_line(e, f"{journal.path}, line 1: ", "take the line out")


# ---- records


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Of a run of two tasks."""
    file = tmp_path_factory.mktemp("record") / "record.npz"
    flags = ("--model er_sbs --dataset seq-digits --train_per_class 10 --max_classes 4 --n_tasks 2 --n_epochs 2 "
             f"--lr .05 --buffer_size 20 --non_verbose 1 --disable_log 1 --seed 0 --sbs-record {file}")
    mammoth_main.main(mammoth_main.parse_args(flags.split()))
    return Record(file).arrays


def use(record: Record) -> None:
    """All that can be asked of it."""
    for task in record.followed:
        for setting in ("task_il", "class_il"):
            for test in (False, True):
                assert ((record.speed(task, test, setting) >= 0) & (record.speed(task, test, setting) <= 1)).all()
                record.known(task, record.tasks, test, setting)
        record.in_buffer(task, record.tasks)


@given(st.data())
def test_a_record_with_damaged_bytes(record: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory,
                                     data: st.DataObject) -> None:
    """An archive knows the check sums of its parts: what is read is what was written."""
    file = tmp_path_factory.mktemp("record") / "record.npz"
    arrays: dict[str, Any] = record
    np.savez_compressed(file, **arrays)
    file.write_bytes(data.draw(damaged_bytes(file.read_bytes())))
    try:
        found = Record(file)
    except UserError as e:
        one_line(e, f"{file}: ")
        return
    assert all(np.array_equal(found[name], value) for name, value in record.items())


@given(st.data())
def test_a_record_with_a_wrong_array(record: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory,
                                     data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("record") / "record.npz"
    arrays: dict[str, Any] = dict(record)
    name = data.draw(st.sampled_from(sorted(arrays)))
    old = arrays.pop(name)
    wrong = data.draw(st.sampled_from([None, old[:-1], old[None], old.astype(float) + 0.5, old.astype(float) * math.nan,
                                       old.astype(np.int64) - 300, np.zeros(0), np.array("text"), np.array([{}])]))
    if wrong is not None:
        arrays[name] = wrong
    np.savez_compressed(file, **arrays)
    try:
        use(Record(file))
    except UserError as e:
        one_line(e, f"{file}: ")


# ---- checkpoints

FLAGS = ("--model er_sbs --dataset seq-digits --train_per_class 8 --test_per_class 4 --max_classes 4 --n_tasks 2 "
         "--n_epochs 2 --lr .05 --buffer_size 10 --batch_size 4 --non_verbose 1 --seed 0 --optim_mom .9 "
         "--lr_scheduler multisteplr --lr_milestones 1 --eval_epochs 1 --enable_other_metrics 1 --savecheck epoch")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """From within the second task: the file, what is in it, and what the run ends with."""
    folder = tmp_path_factory.mktemp("checkpoint")
    words = [*FLAGS.split(), "--base_path", str(folder), "--checkpoint_path", str(folder)]
    whole = mammoth_main.main(mammoth_main.parse_args(words))
    saves = []

    def save(path: Path, *args: Any, **kwargs: Any) -> None:
        save_checkpoint(path, *args, **kwargs)
        saves.append(1)
        if len(saves) == 4:  # after the first epoch of the second task
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "save_checkpoint", save)
        mammoth_main.main(mammoth_main.parse_args([*words, "--ckpt_name", "a"]))
    file = folder / "a_last.pt"
    state = torch.load(file, weights_only=True)
    state["results"] = [list(row) for row in state["results"]]
    state["model"] = dict(state["model"])
    return file, state, whole["results"]


def go_on(file: Path, whole: dict[str, Any]) -> None:
    """It is refused in one line, or the run goes on from it and ends as if nothing had been."""
    words = ["--loadcheck", str(file), "--disable_log", "1", "--base_path", str(file.parent), "--checkpoint_path",
             str(file.parent), "--ckpt_name", "b"]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "_digits", digits_read_once)
            ended = mammoth_main.main(mammoth_main.parse_args(words))
    except UserError as e:
        one_line(e, f"--loadcheck {file}: ")
        return
    assert ended["results"] == whole


@given(st.data())
def test_a_checkpoint_with_damaged_bytes(checkpoint: tuple, tmp_path_factory: pytest.TempPathFactory,
                                         data: st.DataObject) -> None:
    good, _, whole = checkpoint
    file = tmp_path_factory.mktemp("checkpoint") / "a.pt"
    file.write_bytes(data.draw(damaged_bytes(good.read_bytes())))
    go_on(file, whole)


@given(st.data())
def test_a_checkpoint_with_a_wrong_value(checkpoint: tuple, tmp_path_factory: pytest.TempPathFactory,
                                         data: st.DataObject) -> None:
    _, state, whole = checkpoint
    file = tmp_path_factory.mktemp("checkpoint") / "a.pt"
    tensors = st.sampled_from([torch.zeros(0), torch.ones(3, 2), torch.tensor(7), torch.full((10,), math.nan)])
    torch.save(data.draw(damaged_value(state, VALUES | tensors)), file)
    go_on(file, whole)


# ---- the cache


@given(st.data())
def test_a_cache_with_damaged_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """It is made again; whatever is done to it, the images are those of the files."""
    folder = tmp_path_factory.mktemp("cache")
    train, test = cifar100_parquet(folder)
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()):
        patch.setenv("MAMMOTH_SBS_CACHE", str(folder / "cache"))
        sources.load("cifar100", str(folder))
        file = data.draw(st.sampled_from(sorted((folder / "cache").glob("*/*"))))
        file.write_bytes(data.draw(damaged_bytes(file.read_bytes())))
        found = sources.load("cifar100", str(folder))
    assert np.array_equal(found.train.images, train) and np.array_equal(found.test.images, test)
    assert found.train.labels.tolist() == [0, 1, 2] * 2 and found.test.labels.tolist() == [0, 1, 2]
    assert found.classes == ["0", "1", "2"]


# ---- configurations of sweeps

CONFIG = b"""name: digits
base:
  dataset: seq-digits
  n_epochs: 5
  buffer_size: 50
  lr: 0.05
grid:
  - model: [er_sbs, agem_sbs]
    buffer:
      - {sampler: speed, sbs-q: 0.2, sbs-s: 0.2}
      - {sampler: uniform}
  - {model: [er], lr_milestones: [[3, 4], [2]]}
seeds: [3, 7]
threads: 1
"""
PIECES = [b"[", b"]", b"{", b"}", b":", b"- ", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"\0", b"\t",
          b"#", b"|\n", b"? ", b"--", b"nan", b"-1", b"1e999", b"''", b"\xff", b"\xe2\x80\xa8", b"%YAML 9", b"\n"]


@given(st.data())
def test_a_damaged_configuration(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    content = data.draw(damaged_bytes(CONFIG))
    for piece in data.draw(st.lists(st.sampled_from(PIECES), max_size=3)):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + piece + content[at:]
    file.write_bytes(content)
    try:
        runs = resolve(read_config(file))
        assert runs and all(0 <= run.args["seed"] < 2**64 for run in runs)
    except UserError as e:
        one_line(e, str(file))
