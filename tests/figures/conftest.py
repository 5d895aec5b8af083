"""What the tests of figures share: files of finished runs, and the command that draws from them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.experiments.schema import id_of

SCRATCH = {"dataset": "seq-cifar10", "buffer_size": 80, "n_epochs": 8, "lr": 0.1, "backbone": "small-resnet18"}
Put = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    made.mkdir()
    return made


@pytest.fixture
def put(folder: Path) -> Put:
    """`put("er_sbs", seed, task_il, class_il, sampler="uniform", lr=.03)`: the file of a finished run of 5 tasks."""

    def put(model: str, seed: int, task_il: float, class_il: float = 20.0, tasks: int = 5, version: str = "v1",
            **flags: Any) -> None:
        args = {**SCRATCH, "model": model.replace("_", "-"), "seed": seed, **flags}
        if model.endswith("_sbs"):
            args = {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, **args}
        record = {
            "id": id_of(args, 1), "version": version, "args": args, "threads": 1, "seed": seed,
            "results": {name: {"matrix": [[value] * (i + 1) for i in range(tasks)], "final": value, "forgetting": 0.0}
                        for name, value in (("task_il", task_il), ("class_il", class_il))},
            "sbs": {"tasks": [{"examples": 320}] * tasks},
            "volatile": {"command": f"python main.py --model {model} --seed {seed}", "wall_time": 60.0},
        }
        (folder / f"{record['id']}.json").write_text(json.dumps(record))

    return put


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path) as f:
        return list(csv.DictReader(f))


def draw(kind: str, folder: Path, *more: str) -> Path:
    out = folder.parent / "figures"
    main(["figure", kind, str(folder), *more, "-o", str(out)])
    return out


def three_arms(put: Put, method: str = "er") -> dict[str, list[float]]:
    """Two seeds of stock, uniform and SBS."""
    values = {"stock": [70.0, 60.0], "uniform": [71.0, 63.0], "SBS-fix": [74.0, 62.0]}
    for seed in (0, 1):
        put(method, seed, values["stock"][seed])
        put(f"{method}_sbs", seed, values["uniform"][seed], sampler="uniform")
        put(f"{method}_sbs", seed, values["SBS-fix"][seed])
    return values
