"""The eight `_sbs` models. They need a host on `sys.path`, so nothing is imported before `register`."""

from __future__ import annotations

import importlib
import sys

from mammoth_sbs.host import MODELS


def register() -> None:
    """Make the models known to the host."""
    buffer = importlib.import_module("utils.buffer").Buffer
    for name in MODELS:
        module = importlib.import_module(f"mammoth_sbs.models.{name}")
        # Mammoth may import `models.<--model>` and look there for the name `Buffer`
        module.Buffer = buffer  # type: ignore[attr-defined]
        sys.modules[f"models.{name}-sbs"] = sys.modules[f"models.{name}_sbs"] = module
