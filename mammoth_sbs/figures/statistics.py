"""How sure a difference is. Seeds are what was drawn at random, so a seed is the unit, also over several methods.

Differences are paired by seed. Their 95% interval is the percentile bootstrap over seeds, their p-value that of the
sign-flip test: if neither arm were better, each seed's difference could as well have had the other sign.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

LEVEL = 0.95
RESAMPLES = 9_999  # of the bootstrap
FLIPS = 99_999  # up to 16 seeds all 2^n of them, beyond that this many random ones
BATCH = 2_000_000  # numbers in memory at a time
POOLED = "pooled"  # the row over all methods
Seeds = dict[int, float]  # a number per seed


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; its standard error is unknown for one seed."""

    mean: float
    error: float | None
    seeds: int

    @classmethod
    def of(cls, values: Collection[float]) -> Mean:
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(fmean(values), error, len(values))

    def text(self, sign: bool = False) -> str:
        """`61.13 ± 0.40`; without the error if it is unknown."""
        mean = f"{self.mean:+.2f}" if sign else f"{self.mean:.2f}"
        return mean if self.error is None else f"{mean} ± {self.error:.2f}"


@dataclass(frozen=True)
class Difference(Mean):
    """The mean of paired differences, with interval and p-value; both are unknown for one seed."""

    low: float | None
    high: float | None
    p: float | None
    up: int  # seeds above zero
    down: int
    holm: float | None = None  # p after Holm's correction over all that it was tested with

    @classmethod
    def of(cls, values: Collection[float]) -> Difference:
        known = Mean.of(values)
        low, high = interval(values)
        return cls(known.mean, known.error, known.seeds, low, high, sign_flip(values), sum(v > 0 for v in values),
                   sum(v < 0 for v in values))

    def better(self, higher: bool = True) -> str:
        """`7 of 10`: in how many seeds it is better."""
        return f"{self.up if higher else self.down} of {self.seeds}"

    def span(self) -> str:
        """`-0.21 to +1.40`, the interval."""
        return "–" if self.low is None or self.high is None else f"{self.low:+.2f} to {self.high:+.2f}"


def probability(p: float | None) -> str:
    """A p-value as tables have it."""
    return "–" if p is None else "< 0.001" if p < 0.0005 else f"{p:.3f}"


def interval(values: Collection[float]) -> tuple[float, float] | tuple[None, None]:
    """The 95% interval of the mean: percentiles of the means of seeds drawn with replacement, by a seeded generator."""
    if len(values) < 2:
        return None, None
    if len(set(values)) == 1:
        return fmean(values), fmean(values)
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap((np.array(list(values)),), np.mean, n_resamples=RESAMPLES, confidence_level=LEVEL,
                      method="percentile", batch=BATCH // len(values), rng=np.random.default_rng(0)).confidence_interval
    return round(float(found.low), 4), round(float(found.high), 4)


def sign_flip(values: Collection[float]) -> float | None:
    """Two-sided p: the share of all ways to give the differences signs whose mean is at least as far from zero."""
    if len(values) < 2:
        return None
    import numpy as np
    from scipy.stats import permutation_test

    return float(permutation_test((np.array(list(values)),), np.mean, permutation_type="samples", vectorized=True,
                                  n_resamples=FLIPS, batch=BATCH // len(values), rng=np.random.default_rng(0)).pvalue)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values that hold together: the k-th smallest of m times m + 1 - k, never below a smaller one's, at most 1."""
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    out: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, i) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        out[i] = least
    return out


def corrected(found: Mapping[str, Difference]) -> dict[str, Difference]:
    """The same differences, each p-value also corrected for their number."""
    ps = holm([change.p for change in found.values()])
    return {key: replace(change, holm=p) for (key, change), p in zip(found.items(), ps, strict=True)}


def minus(left: Seeds, right: Seeds) -> Seeds:
    """The differences seed by seed; whoever collected the seeds has seen to it that both have the same."""
    return {seed: left[seed] - right[seed] for seed in sorted(left)}


def paired(left: Seeds, right: Seeds) -> Difference:
    """How much `left` is above `right`."""
    return Difference.of(minus(left, right).values())


def over_methods(found: Mapping[str, Seeds]) -> Seeds:
    """Of each seed that all methods have, the mean over the methods."""
    shared = set.intersection(*(set(seeds) for seeds in found.values())) if found else set()
    return {seed: fmean(seeds[seed] for seeds in found.values()) for seed in sorted(shared)}


def compare(chart: Mapping[str, Mapping[str, Seeds]], left: str, right: str) -> dict[str, Difference]:
    """`left` minus `right` by method, corrected over the methods; if there are several, their pooled difference too."""
    changes = {method: minus(arms[left], arms[right]) for method, arms in chart.items()
               if left in arms and right in arms}
    found = corrected({method: Difference.of(seeds.values()) for method, seeds in changes.items()})
    together = over_methods(changes)
    if len(changes) > 1 and together:
        found[POOLED] = Difference.of(together.values())
    return found
