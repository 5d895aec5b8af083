"""Forward passes that batch normalisation does not learn from."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class bn_track_stats:  # noqa: N801 - Mammoth's name; reads as a statement
    """While it lasts, and unless `condition` holds, batch statistics are used but the running ones stay as they are."""

    def __init__(self, module: nn.Module, condition: bool = True) -> None:
        self.layers = [] if condition else [m for m in module.modules() if isinstance(m, _BatchNorm)]

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.track_running_stats = False

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            layer.track_running_stats = True
