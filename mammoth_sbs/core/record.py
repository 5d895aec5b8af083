"""Records: M, the epoch-wise classification matrix of every task (paper, 2.1), as `--sbs-record` leaves it in a file.

Arrays by task k, from 1, all of them in the order of the task's training data, or of its test data (`_test`):

    epochs                   the rows that all M share: (task, epoch), both from 1; M of task k begins with its own
    task<k>_M[_test]         right among the task's classes (Task-IL), one bit per entry
    task<k>_M[_test]_class_il  right among all classes seen (Class-IL)
    task<k>_labels[_test], task<k>_indices[_test]   class, and place in the whole data set
    task<k>_speed[_class_il]   learning speed, of all epochs of the task, from its training steps
    task<k>_stored           what the buffer held of it when it ended
    task<k>_buffer           what it held at the end of this and each later task, one bit per entry
    task<k>_loss, ...        other scores, if they were asked for; high means easy
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError

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
            self.epochs = self.arrays["epochs"].reshape(-1, 2)
            self.tasks = int(self.epochs[:, 0].max())  # that were learned
            self.followed = [task for task in range(1, self.tasks + 1) if f"task{task}_labels" in self.arrays]
            if not self.followed:
                raise ValueError
            for task in self.followed:
                for test in (False, True):
                    rows = [len(self.matrix(task, test, setting)) for setting in SETTINGS]
                    if set(rows) != {int((self.epochs[:, 0] >= task).sum())}:
                        raise ValueError
        except OSError as e:
            if e.strerror:
                raise UserError(f"{path}: cannot be read: {e.strerror}") from None
            raise self._damaged() from None
        except (ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile):
            raise self._damaged() from None

    def _damaged(self) -> UserError:
        return UserError(f"{self.path}: not a record, a damaged or an old one; make it by --sbs-record")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def matrix(self, task: int = 1, test: bool = False, setting: str = "task_il") -> np.ndarray:
        """M of a task, through its own epochs and those of all later tasks."""
        return load_matrix(self.arrays, task, test, setting)

    def labels(self, task: int = 1, test: bool = False) -> np.ndarray:
        return self.arrays[f"task{task}_labels{kind(test)}"]

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
        """Which of a task's examples were right at the end of task `after`."""
        return self.matrix(task, test, setting)[np.flatnonzero(self.rows(task) == after)[-1]]

    def in_buffer(self, task: int, after: int) -> np.ndarray:
        """Which of a task's training examples the buffer held at the end of task `after`."""
        packed = self.arrays[f"task{task}_buffer"][after - task]
        return np.unpackbits(packed, count=len(self.labels(task))).astype(bool)
