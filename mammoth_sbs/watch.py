"""What a run tells while it goes on, and to whom: lines for a terminal, `Progress` for whoever watches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mammoth_sbs.core.speed import Learned


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a training step, an epoch or a task. All is counted from 1; accuracies are in per cent.

    `loss` is that of the step, or the mean of the epoch; `train_accuracy` is the epoch's, where learning speed is
    measured; `class_il` and `task_il`, a number per task so far, come with a task, and with an epoch of --eval_epochs.
    """

    event: str  # step, epoch or task
    task: int
    tasks: int
    epoch: int
    epochs: int
    step: int  # in this task, of `steps`
    steps: int
    loss: float
    train_accuracy: float | None = None
    class_il: list[float] | None = None
    task_il: list[float] | None = None
    sbs: Learned | None = None

    @property
    def fraction(self) -> float:
        """How much of the training steps of all tasks is done."""
        return (self.task - 1 + self.step / self.steps) / self.tasks


Watcher = Callable[[Progress], None]
_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def watched(by: Sequence[Watcher], quiet: bool = False) -> Iterator[None]:
    """A run inside is watched by these too; if it is to be quiet, what it would say is not printed."""
    tokens = _watchers.set((*_watchers.get(), *by)), _quiet.set(quiet or _quiet.get())
    try:
        yield
    finally:
        _watchers.reset(tokens[0])
        _quiet.reset(tokens[1])


def watchers() -> tuple[Watcher, ...]:
    return _watchers.get()


def is_quiet() -> bool:
    return _quiet.get()


def say(*words: object) -> None:
    """A line on standard output, at once: users read it through pipes."""
    if not _quiet.get():
        print(*words, flush=True)


def warn(message: str) -> None:
    """A line for a terminal; a Python warning where nothing is to be printed."""
    if _quiet.get():
        warnings.warn(message, stacklevel=2)
    else:
        say(f"warning: {message}")
