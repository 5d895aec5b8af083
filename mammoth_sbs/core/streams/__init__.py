"""The ways to keep a buffer while a stream goes by, by name: `--sampler stream-...`."""

from __future__ import annotations

from mammoth_sbs.core.streams.base import Look, StreamSampler
from mammoth_sbs.core.streams.cbrs import CBRS
from mammoth_sbs.core.streams.labrs import LABRS
from mammoth_sbs.core.streams.lars import LARS
from mammoth_sbs.core.streams.reservoir import Reservoir
from mammoth_sbs.core.streams.speed import StreamSpeed

__all__ = ["STREAM_SAMPLERS", "Look", "StreamSampler", "StreamSpeed"]

STREAM_SAMPLERS: dict[str, type[StreamSampler]] = {
    cls.name: cls for cls in (Reservoir, CBRS, LARS, LABRS, StreamSpeed)}
