"""Numbers from the accuracy matrix: row i is after task i, column j is on task j."""

from __future__ import annotations

from statistics import fmean

Matrix = list[list[float]]


def backward_transfer(results: Matrix) -> float:
    """How much later tasks changed the accuracy on a task since it was learned, on average."""
    return fmean(results[-1][i] - results[i][i] for i in range(len(results) - 1)) if len(results) > 1 else 0.0


def forgetting(results: Matrix) -> float:
    """How far the accuracy on a task fell from its best, on average over all tasks but the last."""
    n = len(results)
    return fmean(max(row[i] for row in results[i:]) - results[-1][i] for i in range(n - 1)) if n > 1 else 0.0
