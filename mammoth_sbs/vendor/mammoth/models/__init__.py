"""The methods, found by looking into this folder, and those that plugins register."""

from __future__ import annotations

import hashlib
import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path

from mammoth_sbs.errors import UserError

from backbone import MammothBackbone
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import ContinualModel
from utils.augmentations import Transform

REGISTERED_MODELS: dict[str, type[ContinualModel]] = {}
EXTENSIONS: list[Callable[[type[ContinualModel]], type[ContinualModel]]] = []


def register_model(name: str) -> Callable[[type[ContinualModel]], type[ContinualModel]]:
    """Decorator: make a method known as `name`; `-` and `_` are the same."""

    def register(cls: type[ContinualModel]) -> type[ContinualModel]:
        REGISTERED_MODELS[name.replace("_", "-")] = cls
        return cls

    return register


def add_models(folder: str) -> str:
    """Look into `folder` too (`--extra_models`), after this one; returns a digest of the files there.

    They become modules of this package, as they are in Mammoth: `from models.er_ace import ErACE`.
    """
    where = Path(folder).expanduser().resolve()
    files = sorted(where.glob("*.py"))
    if not files:
        raise UserError(f"--extra_models {folder}: no such folder, or no .py file in it; give one with files as in "
                        "Mammoth's models/")
    if str(where) not in __path__:
        __path__.append(str(where))
        importlib.import_module("mammoth_sbs.host").import_torchvision()  # which such files may import, on any machine
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def get_model_names() -> dict[str, type[ContinualModel]]:
    """Name and class of every method."""
    names = {}
    for folder in reversed(__path__):  # our own files win
        for file in sorted(Path(folder).glob("*.py")):
            for cls in _classes(file) if file.stem != "__init__" else ():
                names[cls.NAME.replace("_", "-")] = cls
    return {**names, **REGISTERED_MODELS}


def extend_models(extend: Callable[[type[ContinualModel]], type[ContinualModel]]) -> None:
    """For plugins: let every method, also one that is found later, be what `extend` makes of it."""
    if extend not in EXTENSIONS:
        EXTENSIONS.append(extend)
        _classes.cache_clear()


@cache
def _classes(file: Path) -> list[type[ContinualModel]]:
    """The methods in a file. A user's file that does not import is a method that says so when it is asked for."""
    try:
        module = importlib.import_module(f"models.{file.stem}")
    except Exception as e:
        if file.parent == Path(__file__).parent:
            raise
        reason = " ".join(str(e).split()) or type(e).__name__

        class Broken(ContinualModel):
            NAME = file.stem

            @staticmethod
            def get_parser(parser: ArgumentParser) -> ArgumentParser:
                raise UserError(f"--extra_models: {file} does not import here ({reason}); run it on Mammoth itself, by "
                                "MAMMOTH_ROOT")

        return [Broken]
    found = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, ContinualModel)
             and cls.__module__ == module.__name__ and hasattr(cls, "NAME")]
    for extend in EXTENSIONS:
        found = [extend(cls) for cls in found]
    return found


def get_model(args: Namespace, backbone: MammothBackbone, loss: Callable, transform: Transform | None,
              dataset: ContinualDataset) -> ContinualModel:
    """The method that `args` asks for."""
    cls = get_model_names()[args.model]
    if dataset.SETTING == "domain-il" and "domain-il" not in cls.COMPATIBILITY:
        able = [name for name, it in get_model_names().items() if "domain-il" in it.COMPATIBILITY]
        raise UserError(f"--model {args.model}: is made for tasks with classes of their own, and with --domains all "
                        f"tasks have the same; take one of {', '.join(able)}")
    return cls(backbone, loss, args, transform, dataset)
