"""A record is checked array by array: what each may hold, from both sides of its limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError

TRAIN, TEST = 11, 5  # of each of two tasks; no multiples of 8
Arrays = dict[str, Any]


@pytest.fixture
def arrays() -> Arrays:
    """Two tasks of two epochs each, and a buffer."""
    made: Arrays = {"epochs": np.array([[1, 1], [1, 2], [2, 1], [2, 2]])}
    for task, rows in ((1, 4), (2, 2)):
        for ending, n in (("", TRAIN), ("_test", TEST)):
            made[f"task{task}_labels{ending}"] = np.arange(n) % 2 + 2 * (task - 1)
            made[f"task{task}_indices{ending}"] = np.arange(n)
            for setting in ("", "_class_il"):
                made[f"task{task}_M{ending}{setting}"] = np.packbits(np.ones((rows, n), dtype=bool), axis=1)
        for setting in ("", "_class_il"):
            made[f"task{task}_speed{setting}"] = np.linspace(0, 1, TRAIN)
            made[f"task{task}_known{setting}"] = np.packbits(np.ones(TRAIN, dtype=bool))
        made[f"task{task}_stored"] = np.array([0, TRAIN - 1])
        made[f"task{task}_buffer"] = np.packbits(np.ones((3 - task, TRAIN), dtype=bool), axis=1)
    return made


def read(folder: Path, arrays: Arrays) -> Record:
    np.savez(folder / "r.npz", **arrays)
    return Record(folder / "r.npz")


def put(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Any]:
    return lambda arrays: arrays.update({name: np.asarray(change(arrays[name]))})


def at(name: str, place: Any, value: float) -> Callable[[Arrays], Any]:
    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][place] = value

    return change


EPOCHS = "epochs are not (task, epoch), both from 1"
NOT_A_RECORD: dict[str, tuple[Callable[[Arrays], Any], str]] = {
    "epochs in one row": (put("epochs", lambda a: a[:, 0]), EPOCHS),
    "epochs of three numbers": (put("epochs", lambda a: np.pad(a, ((0, 0), (0, 1)), constant_values=1)), EPOCHS),
    "epochs of two numbers in two rows": (put("epochs", lambda a: np.ones((4, 2, 2), dtype=int)), EPOCHS),
    "epochs that are no whole numbers": (put("epochs", lambda a: a.astype(float)), EPOCHS),
    "an epoch 0": (at("epochs", (0, 1), 0), EPOCHS),
    "a task 0": (at("epochs", (0, 0), 0), EPOCHS),
    "tasks that go back": (put("epochs", lambda a: a[[0, 2, 1, 3]]), EPOCHS),
    "no task": (lambda arrays: [arrays.pop(name) for name in list(arrays) if "labels" in name], "it follows no task"),
    **{f"{name}, a column {less}": (put(name, change), f"{name} has not a bit for each of {rows} epochs")
       for name, rows in (("task1_M", 4), ("task1_M_test_class_il", 4), ("task2_M_class_il", 2), ("task2_M_test", 2))
       for less, change in (("less", lambda a: a[:, :-1]), ("more", lambda a: np.pad(a, ((0, 0), (0, 1)))))},
    "M as numbers": (put("task1_M", lambda a: a.astype(np.int16)), "task1_M has not a bit for each of 4 epochs"),
    "M the other way round": (put("task1_M", lambda a: a.T), "task1_M has not a bit for each of 4 epochs"),
    "too many speeds": (put("task1_speed", lambda a: np.append(a, 0.5)), "task1_speed is not a number from 0 to 1"),
    "too few speeds": (put("task2_speed_class_il", lambda a: a[:-1]), "task2_speed is not a number from 0 to 1"),
    "a speed below 0": (at("task1_speed", 3, -0.01), "task1_speed is not a number from 0 to 1 for each of 11"),
    "a speed above 1": (at("task1_speed", 3, 1.01), "task1_speed is not a number from 0 to 1 for each of 11"),
    "a speed that is no number": (at("task1_speed", 3, np.nan), "task1_speed is not a number from 0 to 1"),
    "known of too few": (put("task1_known", lambda a: a[:-1]), "task1_known has not a bit for each of 11"),
    "known of too many": (put("task1_known_class_il", lambda a: np.append(a, a[:1])), "task1_known has not a bit"),
    "known as numbers": (put("task1_known", lambda a: a.astype(np.int16)), "task1_known has not a bit for each of 11"),
    **{f"{name}, {less}": (put(name, change), f"{name} is not a whole number for each example")
       for name in ("task1_indices", "task2_indices_test")
       for less, change in (("one less", lambda a: a[:-1]), ("as floats", lambda a: a.astype(float)))},
    "labels as floats": (put("task2_labels", lambda a: a.astype(float)), "task2_labels is not a whole number"),
    "stored in a table": (put("task1_stored", lambda a: a.reshape(1, 2)), "task1_stored are not among the 11"),
    "stored as floats": (put("task1_stored", lambda a: a.astype(float)), "task1_stored are not among the 11"),
    "stored below 0": (at("task1_stored", 0, -1), "task1_stored are not among the 11"),
    "stored beyond the task": (at("task1_stored", 1, TRAIN), "task1_stored are not among the 11"),
    "a buffer of a task less": (put("task1_buffer", lambda a: a[:1]), "task1_buffer has not a bit for each of 2 tasks"),
    "a buffer of too few": (put("task2_buffer", lambda a: a[:, :1]), "task2_buffer has not a bit for each of 1 tasks"),
    "a buffer as numbers": (put("task1_buffer", lambda a: a.astype(np.int16)), "task1_buffer has not a bit"),
    "stored, and no buffer": (lambda arrays: arrays.pop("task1_buffer"), "not a record, a damaged or an old one; make"),
    "a buffer, and nothing stored": (lambda arrays: arrays.pop("task1_stored"), "not a record, a damaged or an old"),
}


def test_what_does_not_fit_is_named(arrays: Arrays, tmp_path: Path) -> None:
    assert read(tmp_path, arrays).tasks == 2  # undamaged, with the least and the most of everything
    for damage, (change, says) in NOT_A_RECORD.items():
        damaged = dict(arrays)
        change(damaged)
        with pytest.raises(UserError) as error:
            read(tmp_path, damaged)
        assert says in str(error.value), damage
        assert str(error.value).startswith(f"{tmp_path / 'r.npz'}: not a record"), damage


def test_a_later_task_may_have_fewer_epochs(arrays: Arrays, tmp_path: Path) -> None:
    arrays["epochs"] = np.array([[1, 1], [1, 2], [1, 3], [2, 1]])
    for name in [name for name in arrays if name.startswith("task2_M")]:
        arrays[name] = arrays[name][:1]
    record = read(tmp_path, arrays)
    assert (record.tasks, record.rows(2).tolist(), len(record.matrix(2))) == (2, [2], 1)


def test_an_error_without_a_reason_is_damage_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **given: Any) -> None:
        raise OSError("without a number")

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(UserError, match="not a record, a damaged or an old one; make it by --sbs-record$"):
        Record(tmp_path / "r.npz")


def test_a_method_without_a_buffer_has_a_record_too(arrays: Arrays, tmp_path: Path) -> None:
    record = read(tmp_path, {name: array for name, array in arrays.items() if not name.endswith(("stored", "buffer"))})
    assert record.followed == [1, 2] and "task1_stored" not in record


def test_some_tasks_may_be_followed_and_others_not(arrays: Arrays, tmp_path: Path) -> None:
    second = read(tmp_path, {name: array for name, array in arrays.items() if not name.startswith("task1")})
    assert (second.tasks, second.followed) == (2, [2])
    first = read(tmp_path, {name: array for name, array in arrays.items() if not name.startswith("task2")})
    assert (first.tasks, first.followed) == (2, [1])
    beyond = read(tmp_path, arrays | {"task3_labels": np.arange(3)})  # that was never learned
    assert (beyond.tasks, beyond.followed) == (2, [1, 2])


def test_classes_have_the_names_of_the_file_or_their_numbers(arrays: Arrays, tmp_path: Path) -> None:
    assert read(tmp_path, arrays).classes == ["0", "1", "2", "3"]
    assert read(tmp_path, arrays | {"classes": np.array(["cat", "dog"])}).classes == ["cat", "dog"]


def test_a_file_that_is_there_and_empty_is_damaged_and_one_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "r.npz").write_bytes(b"")
    with pytest.raises(UserError, match="not a record, a damaged or an old one; make it by --sbs-record$"):
        Record(tmp_path / "r.npz")
    with pytest.raises(UserError, match="cannot be read: No such file or directory$"):
        Record(tmp_path / "missing.npz")
