"""The data sets, found by looking into this folder."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets.utils.continual_dataset import ContinualDataset
from utils import flags_of

REGISTERED_DATASETS: dict[str, type[ContinualDataset]] = {}
CONFIGS = Path(__file__).parent / "configs"


def register_dataset(name: str) -> Callable[[type[ContinualDataset]], type[ContinualDataset]]:
    """Decorator: make a data set known as `name`. What its `__init__` takes beside `args` become flags."""

    def register(cls: type[ContinualDataset]) -> type[ContinualDataset]:
        cls.NAME = name.replace("_", "-").lower()
        REGISTERED_DATASETS[cls.NAME] = cls
        return cls

    return register


def dataset_flags(name: str) -> dict[str, tuple[Any, ...]]:
    """Flags of a data set, each with its default, the type of its value, and its help if it has one."""
    cls = get_dataset_names()[name]
    return {**flags_of(cls.__init__, "self", "args"), **cls.FLAGS}


def get_dataset_names() -> dict[str, type[ContinualDataset]]:
    """Name and class of every data set."""
    for file in Path(__file__).parent.glob("*.py"):
        if file.stem != "__init__":
            importlib.import_module(f"datasets.{file.stem}")
    here = {c.NAME: c for c in ContinualDataset.__subclasses__() if hasattr(c, "NAME")}
    return dict(sorted((here | REGISTERED_DATASETS).items()))


def get_dataset_config_names(dataset: str) -> list[str]:
    """What `--dataset_config` takes for this data set."""
    return sorted(file.stem for file in (CONFIGS / dataset).glob("*.yaml"))


def get_dataset(args: Namespace) -> ContinualDataset:
    """The data set that `args` asks for."""
    cls = get_dataset_names()[args.dataset]
    return cls(args, **{name: getattr(args, name) for name in dataset_flags(args.dataset) if name not in cls.FLAGS})
