"""`--sbs-record`: learning speeds, the epoch-wise classification matrices M, and what was stored, in one .npz file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mammoth_sbs.core.speed import LearningSpeed
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically


class Recorder:
    """Follows every task through its own epochs and those of the tasks after it.

    A task's rows of M come from the training steps while it is learned, and from one forward pass per epoch later.
    """

    def __init__(self, path: str, predict: Callable[..., Tensor]) -> None:
        self.path, self.predict = Path(path), predict
        if self.path.suffix != ".npz":
            raise UserError(f"--sbs-record {path}: give a file that ends in .npz")
        if not self.path.resolve().parent.is_dir():
            raise UserError(f"--sbs-record {path}: there is no folder {self.path.parent}; make it first")
        self.tasks: list[Any] = []  # the data of tasks that have ended
        self.train: list[list[np.ndarray]] = []  # M of each task, packed rows
        self.test: list[list[np.ndarray]] = []
        self.arrays: dict[str, np.ndarray] = {}

    def end_epoch(self, model: Any, dataset: Any) -> None:
        """Append a row to M of every earlier task, and to M of every task's test data."""
        for k, data in enumerate(self.tasks):
            chunks = torch.arange(len(data.targets)).split(256)
            batches = ((model.normalized(data, index), torch.as_tensor(data.targets)[index]) for index in chunks)
            self.train[k].append(self._row(model, batches, k))
        for k, loader in enumerate(dataset.test_loaders):
            if k == len(self.test):
                self.test.append([])
            self.test[k].append(self._row(model, ((batch[0], batch[1]) for batch in loader), k))

    @torch.no_grad()
    def _row(self, model: Any, batches: Any, task: int) -> np.ndarray:
        was_training = model.net.training
        model.net.eval()
        correct = [self.predict(model.net(x.to(model.device)), task).cpu() == y for x, y in batches]
        model.net.train(was_training)
        return np.packbits(torch.cat(correct).numpy())

    def end_task(self, speed: LearningSpeed, data: Any, stored: Tensor, test_loaders: list) -> None:
        """Add the task that ended, and write the file: whole, and anew after every task."""
        k = len(self.tasks) + 1
        self.tasks.append(data)
        self.train.append(list(np.packbits(speed.matrix, axis=1)))
        self.arrays |= {
            f"task{k}_speed": speed.value.numpy(),
            f"task{k}_indices": np.asarray(data.indexes),
            f"task{k}_labels": np.asarray(data.targets),
            f"task{k}_stored": stored.numpy(),
        }
        for i, loader in enumerate(test_loaders[: len(self.test)]):
            self.arrays[f"task{i + 1}_M_test"] = np.stack(self.test[i])
            self.arrays[f"task{i + 1}_labels_test"] = np.asarray(loader.dataset.targets)
        for i, rows in enumerate(self.train):
            self.arrays[f"task{i + 1}_M"] = np.stack(rows)
        arrays: dict[str, Any] = self.arrays
        write_atomically(self.path, lambda f: np.savez_compressed(f, **arrays), "record")



def load_matrix(record: Any, task: int, test: bool = False) -> np.ndarray:
    """M of a task (from 1) as booleans, epochs x examples, from an opened `--sbs-record` file."""
    kind = "_test" if test else ""
    n = len(record[f"task{task}_labels{kind}"])
    return np.unpackbits(record[f"task{task}_M{kind}"], axis=1, count=n).astype(bool)
