"""One run from Python: `mammoth_sbs.train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mammoth_sbs import host
from mammoth_sbs.core.speed import Learned
from mammoth_sbs.errors import UserError
from mammoth_sbs.models import load_host
from mammoth_sbs.parser import spelled
from mammoth_sbs.random_state import get_random_state, set_random_state
from mammoth_sbs.watch import Progress, Watcher, watched


@dataclass(frozen=True)
class Accuracy:
    """Of one setting, in per cent: after task i on task j in `matrix[i, j]` (nan above the diagonal), and what that
    comes to (see `mammoth_sbs.metrics`); `forward_transfer` with `enable_other_metrics=True`, `anytime` with
    `eval_steps`."""

    matrix: np.ndarray
    final: float
    average_incremental: float
    forgetting: float
    backward_transfer: float
    forward_transfer: float | None = None
    anytime: float | None = None


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    class_il: Accuracy  # predictions among all classes seen
    task_il: Accuracy  # among the classes of an example's task
    sbs: list[Learned] = field(repr=False)  # a task each, for an `_sbs` model: learning speeds, and what was stored
    args: dict[str, Any] = field(repr=False)  # all flags, with the values that were chosen
    command: str  # that repeats it
    seconds: float
    record: dict[str, Any] = field(repr=False)  # what the JSON file of such a run holds
    model: Any = field(repr=False)  # the method as it ended, with its `net` and `buffer`

    @property
    def matrix(self) -> np.ndarray:
        """Task-IL accuracy after task i on task j: the setting of the paper's main text."""
        return self.task_il.matrix


def train(model: str, dataset: str, *, progress: Watcher | None = None, verbose: bool = False, **flags: Any) -> Result:
    """Train as `mammoth-sbs run` does: keywords are its flags, a list for a flag that takes several values.

    Nothing is printed unless `verbose`, no result file is written unless `disable_log=False`. `progress` is called
    after every step, epoch and task with a `Progress`. What is wrong with the input is a `mammoth_sbs.UserError`.

    >>> result = train(model="er_sbs", dataset="seq-digits", buffer_size=100, n_epochs=3, stop_after=2, seed=0)
    >>> result.matrix.shape
    (2, 2)
    >>> result.task_il.final > 90
    True
    >>> result.sbs[0].speed.shape, len(result.sbs[0].stored)
    (torch.Size([288]), 100)
    """
    if host.root() != host.EMBEDDED:
        raise UserError("train() runs on the embedded host; unset MAMMOTH_ROOT")
    given = {"model": model, "dataset": dataset, "disable_log": True, "non_verbose": not verbose, **flags}
    words = [word for name, value in given.items() if value is not None for word in in_words(name, value)]
    learned: list[Learned] = []

    def keep(now: Progress) -> None:
        if now.sbs is not None:
            learned.append(now.sbs)

    main = load_host()
    state = get_random_state()  # the caller's own draws go on as if nothing had happened
    try:
        with watched([keep, *([progress] if progress else [])], quiet=not verbose):
            method, data, args = main.initialize(main.parse_args(words))
            record = main.train(method, data, args)
    finally:
        set_random_state(state)
    class_il, task_il = (accuracy(record["results"][setting]) for setting in ("class_il", "task_il"))
    return Result(class_il, task_il, learned, record["args"], record["command"], record["wall_time"], record, method)


def in_words(name: str, value: Any) -> list[str]:
    """A keyword as it would be typed."""
    if name == "help":
        raise UserError("help is no flag of a run; `mammoth-sbs run --help` shows what there is")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [spelled(name), *(str(int(v) if isinstance(v, bool) else v) for v in values)]


def accuracy(found: dict[str, Any]) -> Accuracy:
    """From the record of a run."""
    rows = found["matrix"]
    matrix = np.full((len(rows), len(rows[-1])), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    names = Accuracy.__dataclass_fields__.keys() - {"matrix"}
    return Accuracy(matrix, **{name: found[name] for name in names if name in found})
