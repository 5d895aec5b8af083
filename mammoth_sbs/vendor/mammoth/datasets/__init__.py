"""The data sets, found by looking into this folder."""

from __future__ import annotations

import importlib
from argparse import Namespace
from pathlib import Path

from datasets.utils.continual_dataset import ContinualDataset

CONFIGS = Path(__file__).parent / "configs"


def get_dataset_names() -> dict[str, type[ContinualDataset]]:
    """Name and class of every data set."""
    for file in Path(__file__).parent.glob("*.py"):
        if file.stem != "__init__":
            importlib.import_module(f"datasets.{file.stem}")
    return {c.NAME: c for c in sorted(ContinualDataset.__subclasses__(), key=lambda c: c.NAME)}


def get_dataset_config_names(dataset: str) -> list[str]:
    """What `--dataset_config` takes for this data set."""
    return sorted(file.stem for file in (CONFIGS / dataset).glob("*.yaml"))


def get_dataset(args: Namespace) -> ContinualDataset:
    """The data set that `args` asks for."""
    return get_dataset_names()[args.dataset](args)
