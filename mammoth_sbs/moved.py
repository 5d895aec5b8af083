"""Modules by the names they had in 0.1: other people's samplers and notebooks import them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

PACKAGE = __name__.rpartition(".")[0]
MOVED = {"samplers": "core.samplers", "speed": "core.speed", "band": "core.band", "record": "core.record"}


class Moved(MetaPathFinder, Loader):
    """Gives the module itself, not a second copy of it: a `Sampler` is the same class by either name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, inside = name.partition(".")
        return spec_from_loader(name, self) if package == PACKAGE and inside.split(".")[0] in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        head, *rest = spec.name.split(".")[1:]
        module = importlib.import_module(".".join([PACKAGE, MOVED[head], *rest]))
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put the old name there


def install() -> None:
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, Moved())  # before the one that would look into the package itself
