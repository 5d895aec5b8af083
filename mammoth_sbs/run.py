"""Train on the host: choose it, load the plugin, hand over."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from mammoth_sbs import host, models


def load_host() -> ModuleType:
    """The host's `main` module, with the `_sbs` models registered."""
    root = host.activate()
    spec = importlib.util.spec_from_file_location("mammoth_main", root / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with host.blame_host(root):
        spec.loader.exec_module(module)
        models.register()
    return module


def absolute_paths(argv: list[str]) -> list[str]:
    """The same command line with paths that stay right when the host changes the working directory, as Mammoth does."""
    words = []
    for i, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in PATHS and equals:
            word = f"{flag}={Path(value).absolute()}"
        elif i and argv[i - 1] in PATHS:
            word = str(Path(word).absolute())
        words.append(word)
    return words


PATHS = ("--base_path", "--checkpoint_path", "--loadcheck", "--sbs-record")


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    argv = sys.argv[1:] if argv is None else argv
    if host.root() != host.EMBEDDED:
        argv = absolute_paths(argv)
        for flag, default in (("--base_path", "data"), ("--checkpoint_path", "checkpoints")):
            if flag not in (word.partition("=")[0] for word in argv):
                argv += [flag, str(Path(default).absolute())]  # the default, as seen from here
    sys.argv[1:] = argv  # the real Mammoth reads it from there
    load_host().main()
