"""The same few images of every class, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def per_class(labels: np.ndarray, count: int | float, seed: int) -> np.ndarray:
    """Rows of `count` examples (or a fraction of them) of every class, drawn with their own generator."""
    import numpy as np

    generator = np.random.RandomState(seed % 2**32)
    chosen = []
    for c in np.unique(labels):
        rows = np.flatnonzero(labels == c)
        n = int(np.ceil(count * len(rows) - 1e-9)) if isinstance(count, float) else count
        chosen.append(generator.permutation(rows)[:n])
    return np.sort(np.concatenate(chosen))
