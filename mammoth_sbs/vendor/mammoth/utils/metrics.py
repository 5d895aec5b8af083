"""Numbers from the accuracy matrix: a row per task learned, ending with that task; column j is on task j."""

from __future__ import annotations

from statistics import fmean

Matrix = list[list[float]]


def backward_transfer(results: Matrix) -> float:
    """How much later tasks changed the accuracy on a task since it was learned, on average."""
    return fmean(results[-1][len(row) - 1] - row[-1] for row in results[:-1]) if len(results) > 1 else 0.0


def forgetting(results: Matrix) -> float:
    """How far the accuracy on a task fell from its best, on average over all tasks but the last."""
    last = results[-1]
    falls = [max(row[i] for row in results if len(row) > i) - last[i] for i in range(len(last) - 1)]
    return fmean(falls) if falls else 0.0
