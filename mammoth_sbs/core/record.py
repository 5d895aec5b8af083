"""Records: M, the epoch-wise classification matrix of every task (paper, 2.1), as `--sbs-record` leaves it in a file.

Arrays by task k, from 1, all of them in the order of the task's training data, or of its test data (`_test`):

    classes                  names, by label
    epochs                   the rows that all M share: (task, epoch), both from 1; M of task k begins with its own
    task<k>_M[_test]         right among the task's classes (Task-IL), one bit per entry
    task<k>_M[_test]_class_il  right among all classes seen (Class-IL)
    task<k>_labels[_test], task<k>_indices[_test]   class, and place in the whole data set
    task<k>_speed[_class_il]   learning speed, of all epochs of the task, from its training steps
    task<k>_known[_class_il]   right when the task ended, by an evaluation as later rows are; one bit per entry
    task<k>_stored           what the buffer held of it when it ended
    task<k>_buffer           what it held at the end of this and each later task, one bit per entry
    task<k>_loss, ...        other scores, if they were asked for; high means easy
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import Unfit

SETTINGS = ("task_il", "class_il")


def kind(test: bool = False, setting: str = "task_il") -> str:
    """How the arrays of training or test data, Task-IL or Class-IL, end."""
    return ("_test" if test else "") + ("" if setting == "task_il" else f"_{setting}")


def load_matrix(record: Any, task: int, test: bool = False, setting: str = "task_il") -> np.ndarray:
    """M of a task (from 1) as booleans, epochs x examples, from an opened `--sbs-record` file."""
    n = len(record[f"task{task}_labels{kind(test)}"])
    return np.unpackbits(record[f"task{task}_M{kind(test, setting)}"], axis=1, count=n).astype(bool)


class Record:
    """A record file, read and checked."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with np.load(self.path, allow_pickle=False) as file:
                self.arrays: dict[str, np.ndarray] = {name: file[name] for name in file.files}
            self.epochs = self.arrays["epochs"]
            if self.epochs.ndim != 2 or self.epochs.shape[1] != 2 or self.epochs.dtype.kind not in "iu" \
                    or self.epochs.min() < 1 or (np.diff(self.epochs[:, 0]) < 0).any():
                raise Unfit("epochs are not (task, epoch), both from 1")
            self.tasks = int(self.epochs[:, 0].max())  # that were learned
            self.followed = [task for task in range(1, self.tasks + 1) if f"task{task}_labels" in self.arrays]
            if not self.followed:
                raise Unfit("it follows no task")
            for task in self.followed:
                self._check(task)
        except OSError as e:
            if e.strerror:
                raise UserError(f"{path}: cannot be read: {e.strerror}") from None
            raise self._damaged("") from None
        except Unfit as e:
            raise self._damaged(f": {e}") from None
        except Exception:  # damage has many faces: of the archive, of what is packed in it, of an array's header
            raise self._damaged("") from None

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self.path}: not a record, a damaged or an old one{why}; make it by --sbs-record")

    def _check(self, task: int) -> None:
        """That the arrays of a task fit each other, and hold what they may hold."""
        n, later = len(self.labels(task)), self.tasks - task + 1
        rows = int((self.epochs[:, 0] >= task).sum())
        for test in (False, True):
            columns = -(-len(self.labels(task, test)) // 8)
            for setting in SETTINGS:
                name = f"task{task}_M{kind(test, setting)}"
                if self.arrays[name].shape != (rows, columns) or self.arrays[name].dtype != np.uint8:
                    raise Unfit(f"{name} has not a bit for each of {rows} epochs and each example")
        for setting in SETTINGS:
            speed = self.arrays[f"task{task}_speed{kind(setting=setting)}"]
            if speed.shape != (n,) or not ((speed >= 0) & (speed <= 1)).all():
                raise Unfit(f"task{task}_speed is not a number from 0 to 1 for each of {n} examples")
            known = self.arrays[f"task{task}_known{kind(setting=setting)}"]
            if known.shape != (-(-n // 8),) or known.dtype != np.uint8:
                raise Unfit(f"task{task}_known has not a bit for each of {n} examples")
        for name in ("labels", "labels_test", "indices", "indices_test"):
            values = self.arrays[f"task{task}_{name}"]
            if values.shape != (len(self.labels(task, name.endswith("test"))),) or values.dtype.kind not in "iu":
                raise Unfit(f"task{task}_{name} is not a whole number for each example")
        if f"task{task}_stored" in self.arrays or f"task{task}_buffer" in self.arrays:  # of a method with a buffer
            stored, held = self.arrays[f"task{task}_stored"], self.arrays[f"task{task}_buffer"]
            if stored.ndim != 1 or stored.dtype.kind not in "iu" or not ((stored >= 0) & (stored < n)).all():
                raise Unfit(f"task{task}_stored are not among the {n} examples")
            if held.shape != (later, -(-n // 8)) or held.dtype != np.uint8:
                raise Unfit(f"task{task}_buffer has not a bit for each of {later} tasks and each example")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def matrix(self, task: int = 1, test: bool = False, setting: str = "task_il") -> np.ndarray:
        """M of a task, through its own epochs and those of all later tasks."""
        return load_matrix(self.arrays, task, test, setting)

    def labels(self, task: int = 1, test: bool = False) -> np.ndarray:
        return self.arrays[f"task{task}_labels{kind(test)}"]

    @property
    def classes(self) -> list[str]:
        """Names of the classes by label; their numbers, where the data set has no names."""
        if "classes" in self.arrays:
            return [str(name) for name in self.arrays["classes"]]
        return [str(label) for label in range(1 + max(int(self.labels(task).max()) for task in self.followed))]

    def rows(self, task: int) -> np.ndarray:
        """Which task each row of that task's M was recorded in."""
        during = self.epochs[:, 0]
        return during[during >= task]

    def speed(self, task: int = 1, test: bool = False, setting: str = "task_il") -> np.ndarray:
        """Learning speed (Eq. 1): of training data as the training steps saw them, of test data by the rows of M."""
        if not test:
            return self.arrays[f"task{task}_speed{kind(setting=setting)}"]
        return self.matrix(task, test, setting)[self.rows(task) == task].mean(0)

    def known(self, task: int, after: int, test: bool = False, setting: str = "task_il") -> np.ndarray:
        """Which of a task's examples were right at the end of task `after`, all by an evaluation."""
        if after == task and not test:  # its row in M is of the training steps
            bits = self.arrays[f"task{task}_known{kind(setting=setting)}"]
            return np.unpackbits(bits, count=len(self.labels(task))).astype(bool)
        return self.matrix(task, test, setting)[np.flatnonzero(self.rows(task) == after)[-1]]

    def in_buffer(self, task: int, after: int) -> np.ndarray:
        """Which of a task's training examples the buffer held at the end of task `after`."""
        packed = self.arrays[f"task{task}_buffer"][after - task]
        return np.unpackbits(packed, count=len(self.labels(task))).astype(bool)
