"""The methods, found by looking into this folder, and those that plugins register."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from backbone import MammothBackbone
from datasets.utils.continual_dataset import ContinualDataset
from models.utils.continual_model import ContinualModel
from utils.augmentations import Transform

REGISTERED_MODELS: dict[str, type[ContinualModel]] = {}


def register_model(name: str) -> Callable[[type[ContinualModel]], type[ContinualModel]]:
    """Decorator: make a method known as `name`; `-` and `_` are the same."""

    def register(cls: type[ContinualModel]) -> type[ContinualModel]:
        REGISTERED_MODELS[name.replace("_", "-")] = cls
        return cls

    return register


def get_model_names() -> dict[str, type[ContinualModel]]:
    """Name and class of every method."""
    names = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem != "__init__":
            module = importlib.import_module(f"models.{file.stem}")
            for cls in vars(module).values():
                if isinstance(cls, type) and issubclass(cls, ContinualModel) and cls.__module__ == module.__name__:
                    names[cls.NAME.replace("_", "-")] = cls
    return {**names, **REGISTERED_MODELS}


def get_model(args: Namespace, backbone: MammothBackbone, loss: Callable, transform: Transform | None,
              dataset: ContinualDataset) -> ContinualModel:
    """The method that `args` asks for."""
    return get_model_names()[args.model](backbone, loss, args, transform, dataset)
