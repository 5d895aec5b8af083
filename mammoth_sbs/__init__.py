"""Speed-Based Sampling for continual learning. The core below needs torch and numpy, nothing of Mammoth."""

from mammoth_sbs.band import SpeedBand
from mammoth_sbs.speed import LearningSpeed, SpeedHook

__version__ = "0.1.0"
__all__ = ["LearningSpeed", "SpeedBand", "SpeedHook"]
