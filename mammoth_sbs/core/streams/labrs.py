"""LABRS, Loss-Aware Balanced Reservoir Sampling (Buzzega et al., "Rethinking Experience Replay", ICPR 2021).

LARS whose score also counts how many of the buffer are of the example's class:
S = a S_loss + S_balance with S_loss = -loss and a = sum |S_balance| / sum |S_loss|, which brings both to one scale.

Choices made: S is rescaled to 0..1 over the buffer, as in LARS.
"""

from __future__ import annotations

import numpy as np

from mammoth_sbs.core.streams.base import rescaled
from mammoth_sbs.core.streams.lars import LARS


class LABRS(LARS):
    """A reservoir in which well-known examples of classes with many make room."""

    name = "stream-labrs"

    def leaving(self) -> np.ndarray:
        balance = np.bincount(self.labels)[self.labels].astype(np.float64)
        losses = np.abs(self.loss).sum()
        return rescaled(balance - self.loss * (balance.sum() / losses if losses > 0 else 0.0))
