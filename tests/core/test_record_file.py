"""Records: what a file holds is what is read from it, and what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mammoth_sbs.core.record import Record, load_matrix
from mammoth_sbs.errors import UserError

EPOCHS = np.array([[1, 1], [1, 3], [2, 1], [2, 2], [2, 3]])  # the second of the first task was passed over
SIZES = {(1, False): 11, (1, True): 5, (2, False): 9, (2, True): 3}  # no multiples of 8


def kind(test: bool, setting: str = "task_il") -> str:
    return ("_test" if test else "") + ("_class_il" if setting == "class_il" else "")


@pytest.fixture
def made() -> dict[str, Any]:
    """Two tasks; `M` is what was packed."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"epochs": EPOCHS, "M": {}}
    for (task, test), n in SIZES.items():
        arrays[f"task{task}_labels{kind(test)}"] = np.arange(n) % 2 + 2 * task
        arrays[f"task{task}_indices{kind(test)}"] = np.arange(n)
        for setting in ("task_il", "class_il"):
            m = arrays["M"][task, test, setting] = rng.random((5 if task == 1 else 3, n)) < 0.6
            arrays[f"task{task}_M{kind(test, setting)}"] = np.packbits(m, axis=1)
            arrays[f"task{task}_speed{kind(False, setting)}"] = rng.random(SIZES[task, False])
            if not test:  # at the end of the task, by an evaluation
                known = arrays["M"][task, "known", setting] = rng.random(n) < 0.6
                arrays[f"task{task}_known{kind(False, setting)}"] = np.packbits(known)
    arrays["task1_stored"] = arrays["task2_stored"] = np.array([0, 3])
    arrays["held"] = rng.random((2, 11)) < 0.5
    arrays["task1_buffer"] = np.packbits(arrays["held"], axis=1)
    arrays["task2_buffer"] = np.packbits(rng.random((1, 9)) < 0.5, axis=1)
    return arrays


def save(path: Path, made: dict[str, Any]) -> Path:
    np.savez(path, **{name: array for name, array in made.items() if name not in ("M", "held")})
    return path


def test_what_is_in_the_file(made: dict[str, Any], tmp_path: Path) -> None:
    record = Record(save(tmp_path / "r.npz", made))
    assert record.tasks == 2 and record.epochs.tolist() == EPOCHS.tolist()
    assert record.rows(1).tolist() == [1, 1, 2, 2, 2] and record.rows(2).tolist() == [2, 2, 2]
    for (task, test, setting), m in made["M"].items():
        if test == "known":
            assert np.array_equal(record.known(task, task, False, setting), m)
            continue
        assert np.array_equal(record.matrix(task, test, setting), m)
        assert record.matrix(task, test, setting).dtype == bool
        if test or task == 1:
            assert np.array_equal(record.known(task, 2, test, setting), m[-1])
    assert np.array_equal(record.known(1, 1, True, "class_il"), made["M"][1, True, "class_il"][1])
    for test in (False, True):
        assert record.labels(2, test).tolist() == made[f"task2_labels{kind(test)}"].tolist()
    for after in (1, 2):
        assert np.array_equal(record.in_buffer(1, after), made["held"][after - 1])
    assert "task1_M" in record and "task3_M" not in record
    assert np.array_equal(record["task1_M_test"], made["task1_M_test"])


def test_learning_speed_is_that_of_training_steps_and_of_the_own_rows_for_test_data(made: dict[str, Any],
                                                                                   tmp_path: Path) -> None:
    record = Record(save(tmp_path / "r.npz", made))
    for task, rows in ((1, 2), (2, 3)):
        for setting in ("task_il", "class_il"):
            assert np.array_equal(record.speed(task, setting=setting), made[f"task{task}_speed{kind(False, setting)}"])
            assert np.allclose(record.speed(task, True, setting), made["M"][task, True, setting][:rows].mean(0))


def test_the_first_tasks_training_data_in_task_il_is_what_is_meant_if_nothing_is_said(made: dict[str, Any],
                                                                                     tmp_path: Path) -> None:
    record = Record(save(tmp_path / "r.npz", made))
    assert np.array_equal(record.matrix(), made["M"][1, False, "task_il"])
    assert np.array_equal(load_matrix(record, 2), made["M"][2, False, "task_il"])
    assert np.array_equal(record.speed(), made["task1_speed"])
    assert np.array_equal(record.labels(), made["task1_labels"])
    assert np.array_equal(record.known(1, 2), made["M"][1, False, "task_il"][-1])


@pytest.mark.parametrize("name", ["task1_M", "task1_M_class_il", "task1_M_test", "task2_M_test_class_il"])
@pytest.mark.parametrize("damage", ["a row less", "a row more", "missing"])
def test_a_matrix_that_does_not_fit_the_epochs_is_refused(made: dict[str, Any], tmp_path: Path, name: str,
                                                         damage: str) -> None:
    matrix = made.pop(name)
    if damage != "missing":
        made[name] = matrix[:-1] if damage == "a row less" else np.concatenate([matrix, matrix[:1]])
    with pytest.raises(UserError, match=r"r\.npz: not a record, a damaged or an old one.*; make it by --sbs-record$"):
        Record(save(tmp_path / "r.npz", made))


def test_what_cannot_be_read_says_why_and_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        Record(tmp_path)
    file = tmp_path / "r.npz"
    executed = tmp_path / "executed"

    class Bad:
        def __reduce__(self) -> tuple:
            return Path.touch, (executed,)

    np.savez(file, epochs=np.array([Bad()], dtype=object))
    with pytest.raises(UserError, match="not a record"):
        Record(file)
    assert not executed.exists()
