"""Reservoir sampling (Vitter, 1985), the stock buffer of ER, DER and DER++: here as one stream sampler among others.

The n-th example of the stream enters with probability size / n and takes the place of a random one. Draw for draw what
the host's own buffer does, so that a run gives the stock method's numbers bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mammoth_sbs.core.streams.base import Look, StreamSampler


class Reservoir(StreamSampler):
    """Every part of the stream has its share."""

    name = "stream-reservoir"

    def late(self, look: Look, first: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        return iter(self.candidates(look, first))
