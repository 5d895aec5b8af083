"""Speed-Based Sampling for continual learning. What a user imports is below; it is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mammoth_sbs import moved

if TYPE_CHECKING:
    from mammoth_sbs.core.band import SpeedBand
    from mammoth_sbs.core.samplers import Sampler, Task, get_sampler
    from mammoth_sbs.core.speed import LearningSpeed, SpeedHook
    from mammoth_sbs.errors import UserError
    from mammoth_sbs.experiments.train import Result, train
    from mammoth_sbs.watch import Progress

__version__ = "0.1.0"
__all__ = ["LearningSpeed", "Progress", "Result", "Sampler", "SpeedBand", "SpeedHook", "Task", "UserError",
           "get_sampler", "train"]

_HOMES = {"LearningSpeed": "core.speed", "SpeedHook": "core.speed", "SpeedBand": "core.band",
          "Sampler": "core.samplers", "Task": "core.samplers", "get_sampler": "core.samplers",
          "train": "experiments.train", "Result": "experiments.train", "Progress": "watch", "UserError": "errors"}
moved.install()


def __getattr__(name: str) -> Any:
    """`import mammoth_sbs` alone is quick: torch is imported with the first name that needs it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
