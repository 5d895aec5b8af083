"""Numbers from the accuracy matrix: a row per task learned, ending with that task; column j is on task j.

A run saves them and figures compute them again, so that results which were saved before a metric was known have it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

Matrix = Sequence[Sequence[float]]


def final(matrix: Matrix) -> float:
    """Mean accuracy over all tasks after the last one."""
    return fmean(matrix[-1])


def average_incremental(matrix: Matrix) -> float:
    """Mean over the tasks learned of the mean accuracy after each: also what happens on the way counts."""
    return fmean(fmean(row) for row in matrix)


def forgetting(matrix: Matrix) -> float:
    """How far the accuracy on a task fell from its best, on average over all tasks but the last."""
    last = matrix[-1]
    falls = [max(row[i] for row in matrix if len(row) > i) - last[i] for i in range(len(last) - 1)]
    return fmean(falls) if falls else 0.0


def backward_transfer(matrix: Matrix) -> float:
    """How much later tasks changed the accuracy on a task since it was learned, on average."""
    return fmean(matrix[-1][len(row) - 1] - row[-1] for row in matrix[:-1]) if len(matrix) > 1 else 0.0


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float:
    """How much better than an untrained network a task is solved just before it is learned, on average over all tasks
    but the first (Lopez-Paz and Ranzato, 2017). Both have a number per task learned."""
    gains = [b - u for b, u in zip(before[1:], untrained[1:], strict=True)]
    return fmean(gains) if gains else 0.0


def anytime(accuracies: Sequence[Sequence[float]]) -> float:
    """Mean over the whole stream, evaluated every so many steps, of the mean accuracy on the tasks so far: the area
    under the curve of online papers (Koh et al., 2022)."""
    return fmean(fmean(row) for row in accuracies)


@dataclass(frozen=True)
class Metric:
    """What is known about a metric; `of` is missing where the matrix alone does not say."""

    title: str
    of: Callable[[Matrix], float] | None
    accuracy: bool = True  # in percent; otherwise a difference of accuracies, in points
    higher_is_better: bool = True


METRICS = {
    "final": Metric("final accuracy", final),
    "average_incremental": Metric("average incremental accuracy", average_incremental),
    "forgetting": Metric("forgetting", forgetting, accuracy=False, higher_is_better=False),
    "backward_transfer": Metric("backward transfer", backward_transfer, accuracy=False),
    "forward_transfer": Metric("forward transfer", None, accuracy=False),
    "anytime": Metric("average anytime accuracy", None),
}
