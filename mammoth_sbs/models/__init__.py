"""The eight `_sbs` models, and what lets any model be recorded.

They need a host on `sys.path`, so nothing is imported before `register`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from mammoth_sbs import host


def load_host() -> Any:
    """The host's `main` module, with the `_sbs` models registered."""
    module = host.load_main()
    with host.blame_host(host.root()):
        register()
    if not host.is_embedded():
        module.offer = offer
    return module


def register() -> None:
    """Make the models known to the host."""
    buffer = importlib.import_module("utils.buffer").Buffer
    for name in host.MODELS:
        module = importlib.import_module(f"mammoth_sbs.models.{name}")
        # Mammoth may import `models.<--model>` and look there for the name `Buffer`
        module.Buffer = buffer  # type: ignore[attr-defined]
        sys.modules[f"models.{name}-sbs"] = sys.modules[f"models.{name}_sbs"] = module
    if host.is_embedded():  # any method can be recorded; on Mammoth, when it is asked for
        models, record = (importlib.import_module(name) for name in ("models", "mammoth_sbs.models.record"))
        models.extend_models(record.recorded)


def offer(known: dict[str, Any], name: str, is_recorded: bool) -> type | None:
    """What a command line on the real Mammoth asks for beside what is there: a method that is recorded, or the `_sbs`
    model of one that we have none for."""
    method, stock = known.get(name), name.removesuffix("-sbs")
    if method is None and stock != name and stock in known:
        return importlib.import_module("mammoth_sbs.models.wrapped").wrap(stock, known[stock])
    record = importlib.import_module("mammoth_sbs.models.record")
    return record.recorded(method) if is_recorded and isinstance(method, type) else None


def wrappable(known: dict[str, Any]) -> list[tuple[str, str]]:
    """Of a user's Mammoth: every further method with a buffer, and whether it can be wrapped."""
    return list(importlib.import_module("mammoth_sbs.models.wrapped").listing(known))
