"""Correlations with what a reader needs to judge them: how many points, a 95% interval, p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, or Spearman's if of ranks. Nothing but n is known where it is not defined."""

    n: int
    r: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None

    def row(self) -> dict[str, Any]:
        """For a CSV file."""
        return asdict(self)

    def text(self, name: str = "r") -> str:
        """`r = 0.995 (0.98 to 1.00), p = 3e-10, n = 11`."""
        if self.r is None:
            return f"{name} unknown, n = {self.n}"
        span = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{name} = {self.r:.3f}{span}, p {power(self.p)}, n = {self.n}"


def power(p: float | None) -> str:
    """`= 0.04`, `= 3e-10`, `< 1e-99`."""
    if p is None:
        return "unknown"
    if p < 1e-99:
        return "< 1e-99"
    return f"= {p:.2g}" if p >= 0.001 else f"= {p:.0e}".replace("e-0", "e-")


def correlation(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, ranks: bool = False) -> Correlation:
    """Of the pairs that are numbers: r, its p-value, and its interval by Fisher's transformation."""
    from scipy.stats import pearsonr, rankdata

    a, b = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = a[known], b[known]
    if ranks:
        a, b = rankdata(a), rankdata(b)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(len(a))
    found = pearsonr(a, b)
    low, high = found.confidence_interval(LEVEL) if len(a) > 3 else (None, None)
    r, low, high = (None if value is None else round(float(value), 6) for value in (found.statistic, low, high))
    return Correlation(len(a), r, low, high, float(found.pvalue))


def area_under_curve(score: np.ndarray, event: np.ndarray) -> float | None:
    """AUC: how often an example of the event has a higher score than one of the others; ties count half."""
    from scipy.stats import rankdata

    yes = int(event.sum())
    if yes == 0 or yes == len(event):
        return None
    return float((rankdata(score)[event].sum() - yes * (yes + 1) / 2) / (yes * (len(event) - yes)))
