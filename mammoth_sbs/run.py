"""Train on the host: choose it, load the plugin, hand over."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from mammoth_sbs import host, models


def load_host() -> ModuleType:
    """The host's `main` module, with the `_sbs` models registered."""
    root = host.activate()
    spec = importlib.util.spec_from_file_location("mammoth_main", root / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    models.register()
    return module


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    if argv is not None:
        sys.argv[1:] = argv  # the real Mammoth reads it from there
    load_host().main()
