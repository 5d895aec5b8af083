"""Records made by hand, beside the results of runs that were never made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.experiments.schema import id_of
from tests.figures.conftest import SCRATCH

Bits = Sequence[Sequence[int]]  # epochs x examples


def write_record(path: Path, task_il: Bits, class_il: Bits | None = None, tasks: int = 2, epochs: int = 2,
                 speed: Sequence[float] | None = None, known: Sequence[int] | None = None,
                 labels: Sequence[int] | None = None, buffer: Bits | None = None, **scores: Sequence[float]) -> None:
    """M of a first task, the same for training and test data, followed through all tasks."""
    m, n = np.array(task_il, bool), len(task_il[0])
    c = m if class_il is None else np.array(class_il, bool)
    assert len(m) == len(c) == tasks * epochs
    arrays: dict[str, Any] = {
        "epochs": np.array([(task + 1, epoch + 1) for task in range(tasks) for epoch in range(epochs)]),
        "task1_labels": np.array(labels or [0] * n), "task1_labels_test": np.array(labels or [0] * n),
        "task1_indices": np.arange(n) + 100, "task1_indices_test": np.arange(n),
        "task1_speed": np.array(speed) if speed else m[:epochs].mean(0), "task1_speed_class_il": c[:epochs].mean(0),
        "task1_known": np.packbits(np.array(known, bool) if known else m[epochs - 1]),
        "task1_known_class_il": np.packbits(c[epochs - 1]),
        "task1_stored": np.array([0]),
        "task1_buffer": np.packbits(np.array(buffer if buffer else np.zeros((tasks, n)), bool), axis=1),
        **{f"task1_{name.replace('c_score', 'c-score')}": np.array(values, float) for name, values in scores.items()},
    }
    for name, matrix in (("", m), ("_class_il", c)):
        for kind in ("", "_test"):
            arrays[f"task1_M{kind}{name}"] = np.packbits(matrix, axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def put_recorded(folder: Path, seed: int, task_il: Bits, model: str = "sgd", tasks: int = 2, epochs: int = 2,
                 flags: dict[str, Any] | None = None, **record: Any) -> None:
    """A finished run of `model` with its record."""
    args = {**SCRATCH, "model": model, "seed": seed, "buffer_size": None, "n_epochs": epochs, **(flags or {})}
    matrix = [[50.0] * (i + 1) for i in range(tasks)]
    name = id_of(args, 1)
    run = {"id": name, "version": "v1", "args": args, "threads": 1, "seed": seed, "sbs_record": f"records/{name}.npz",
           "results": {name: {"matrix": matrix, "final": 50.0, "forgetting": 0.0} for name in ("task_il", "class_il")},
           "volatile": {"command": f"python main.py --model {model} --seed {seed}", "wall_time": 60.0}}
    (folder / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    write_record(folder / run["sbs_record"], task_il, tasks=tasks, epochs=epochs, **record)
