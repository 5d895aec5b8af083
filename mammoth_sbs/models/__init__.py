"""The eight `_sbs` models, and what lets any model be recorded.

They need a host on `sys.path`, so nothing is imported before `register`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from mammoth_sbs import host


def load_host() -> ModuleType:
    """The host's `main` module, with the `_sbs` models registered."""
    module = host.load_main()
    with host.blame_host(host.root()):
        register()
    return module


def register() -> None:
    """Make the models known to the host."""
    buffer = importlib.import_module("utils.buffer").Buffer
    for name in host.MODELS:
        module = importlib.import_module(f"mammoth_sbs.models.{name}")
        # Mammoth may import `models.<--model>` and look there for the name `Buffer`
        module.Buffer = buffer  # type: ignore[attr-defined]
        sys.modules[f"models.{name}-sbs"] = sys.modules[f"models.{name}_sbs"] = module
    if host.is_embedded():  # any method can be recorded there; on Mammoth, these
        models, record = (importlib.import_module(name) for name in ("models", "mammoth_sbs.models.record"))
        models.extend_models(record.recorded)
