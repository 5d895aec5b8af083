"""What can be said of whole maps over (q, s): whether two rank the pairs alike, and how many pairs beat uniform.

Seeds are what was drawn at random, so intervals are percentiles over seeds drawn again with replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mammoth_sbs.figures.statistics import LEVEL, Seeds

RESAMPLES = 1_999
SPLITS = 200  # of the seeds into halves
Pair = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; unknown where it is not defined or one seed has to do."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def text(self, sign: bool = True) -> str:
        """`+0.62 (+0.31 to +0.80)`."""
        numbers = [f"{number:{'+' if sign else ''}.2f}" for number in (self.value, self.low, self.high)
                   if number is not None]
        return "–" if not numbers else numbers[0] + (f" ({numbers[1]} to {numbers[2]})" if len(numbers) == 3 else "")


def estimate(value: float, drawn: np.ndarray) -> Estimate:
    """With the interval that its values for other draws of the seeds give."""
    known = drawn[np.isfinite(drawn)]
    if not np.isfinite(value):
        return Estimate(None)
    if not len(known):
        return Estimate(float(value))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), round(float(low), 4), round(float(high), 4))


def again(seeds: int, times: int = RESAMPLES) -> np.ndarray:
    """Seeds drawn with replacement, `times` over; none of a single seed, which says nothing about others."""
    return np.random.default_rng(0).integers(0, seeds, (times if seeds > 1 else 0, seeds))


def ranks_alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of each row of `a` with that of `b`; nan where one of them is all alike."""
    from scipy.stats import rankdata

    x, y = (rankdata(rows, axis=-1) for rows in (a, b))
    x, y = (rows - rows.mean(-1, keepdims=True) for rows in (x, y))
    norm = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), norm, out=np.full(norm.shape, np.nan), where=norm > 0)


@dataclass(frozen=True)
class Agreement:
    """Of two maps: the rank correlation of their means, and that of means over different seeds.

    Runs of one seed share their first task, its network and what they drew of it, and so part of their luck: the second
    has none of that. Of a map with itself the second says how far its own noise lets any other map agree with it.
    """

    pairs: int
    seeds: int
    rank_correlation: Estimate
    other_seeds: float | None

    def row(self) -> dict[str, Any]:
        """For a CSV file."""
        names = {"value": "rank_correlation", "low": "low", "high": "high"}
        return {"pairs": self.pairs, "seeds": self.seeds,
                **{names[key]: value for key, value in asdict(self.rank_correlation).items()},
                "over_other_seeds": self.other_seeds}


def agreement(one: Mapping[Pair, Seeds], other: Mapping[Pair, Seeds]) -> Agreement:
    """Of the pairs and seeds that both maps have."""
    pairs = [pair for pair in one if pair in other]
    seeds = sorted(set.intersection(*(set(found[pair]) for found in (one, other) for pair in pairs))) if pairs else []
    if len(pairs) < 3 or not seeds:
        return Agreement(len(pairs), len(seeds), Estimate(None), None)
    a, b = (np.array([[found[pair][seed] for pair in pairs] for seed in seeds]) for found in (one, other))
    draws = again(len(seeds))
    alike = estimate(float(ranks_alike(a.mean(0), b.mean(0))), ranks_alike(a[draws].mean(1), b[draws].mean(1)))
    return Agreement(len(pairs), len(seeds), alike, over_other_seeds(a, b))


def over_other_seeds(a: np.ndarray, b: np.ndarray) -> float | None:
    """The rank correlation between a half of the seeds of one map and the rest of the other, mean over splits."""
    if len(a) < 2:
        return None
    rng, half = np.random.default_rng(0), len(a) // 2
    orders = np.argsort(rng.random((SPLITS, len(a))), axis=1)
    found = ranks_alike(a[orders[:, :half]].mean(1), b[orders[:, half:]].mean(1))
    return float(np.nanmean(found)) if np.isfinite(found).any() else None


def share_above(found: Mapping[Pair, Seeds], uniform: Pair, higher: bool = True) -> Estimate:
    """Of the other pairs, the share whose mean is better than that of the uniform buffer."""
    seeds, others = sorted(found[uniform]), [pair for pair in found if pair != uniform]
    gains = np.array([[found[pair][seed] - found[uniform][seed] for pair in others] for seed in seeds])
    gains = gains if higher else -gains
    return estimate(float((gains.mean(0) > 0).mean()), (gains[again(len(seeds))].mean(1) > 0).mean(1))
