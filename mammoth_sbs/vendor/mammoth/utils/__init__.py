"""Small things under the names that methods written for Mammoth import."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from mammoth_sbs.values import at_least, number, text


def setup_logging() -> None:
    """Show Python's log on standard output, from the level in LOG_LEVEL (default: INFO); once."""
    root = logging.getLogger()
    if not any(getattr(handler, "of_mammoth", False) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(asctime)s - %(message)s", "%d-%b-%y %H:%M:%S"))
        handler.of_mammoth = True  # type: ignore[attr-defined]
        root.addHandler(handler)
        root.setLevel(os.environ.get("LOG_LEVEL", "INFO"))


def binary_to_boolean_type(value: str | bool | int) -> bool:
    """A flag's 0 or 1."""
    text = str(value).lower()
    if text not in ("0", "1", "true", "false"):
        raise argparse.ArgumentTypeError(f"give 0 or 1, not {value}")
    return text in ("1", "true")


def flags_of(build: Callable[..., Any], *aside: str) -> dict[str, tuple[Any, Any]]:
    """What a function takes, `aside` from some, as flags: each with its default and the type of its value. A whole
    number that is above 0 stays so."""
    kinds = {bool: binary_to_boolean_type, float: number(), str: text}
    found = {}
    for p in inspect.signature(build).parameters.values():
        if p.name not in aside and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            kind = type(p.default) if p.default not in (p.empty, None) else p.annotation
            size = kind is int and (p.default is p.empty or p.default > 0)
            found[p.name] = p.default, at_least(1) if size else kinds.get(kind, kind if callable(kind) else text)
    return found


def none_or_float(value: str) -> float | None:
    """A flag's number, or None by that name."""
    return None if value == "None" else float(value)


def create_if_not_exists(path: str) -> None:
    """A folder, with those above it."""
    os.makedirs(path, exist_ok=True)
