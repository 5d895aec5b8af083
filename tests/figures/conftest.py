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
from mammoth_sbs.figures import report
from mammoth_sbs.metrics import METRICS

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


# ---- for the report

Record = dict[str, Any]


def results_of(matrix: list[list[float]]) -> dict[str, Any]:
    """What a run saves of a setting."""
    return {"matrix": matrix, **{name: metric.of(matrix) for name, metric in METRICS.items() if metric.of}}


def record(model: str, seed: int, task: float = 60.0, tasks: int = 2, command: str | None = None,
           **flags: Any) -> Record:
    """A finished run as the store keeps it, with these final Task-IL accuracy and flags; the first task lost 4.5."""
    args = {"model": model, "dataset": "seq-cifar10", "buffer_size": 80, "lr": 0.1, "n_epochs": 8, "seed": seed}
    if model.endswith("_sbs"):
        args |= {"sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2}
    args |= flags
    results = {name: results_of([[final + 4.5 * (i < tasks - 1 and j == 0) for j in range(i + 1)]
                                 for i in range(tasks)])
               for name, final in (("class_il", task / 2), ("task_il", task))}
    line = command or "python main.py " + " ".join(f"--{key} {value}" for key, value in args.items())
    return {"id": id_of(args, 1), "version": "0123456789ab-torch2.13.0", "args": args, "threads": 1, "seed": seed,
            "results": results, "sbs": {"tasks": [{"examples": 320}] * tasks},
            "volatile": {"wall_time": 90.0, "command": line}}


VARIED = [record(model, seed, 50 + 7.13 * seed + 3.1 * i, 2 + 3 * (dataset == "seq-cifar100"), dataset=dataset)
          for dataset in ("seq-cifar10", "seq-cifar100") for i, model in enumerate(("er", "derpp", "er_sbs"))
          for seed in range(3)]
ARMS = [record(model, seed, 60 + 2 * i + 3 * seed + 0.7 * ((seed + i) % 3), **flags) for seed in range(4)
        for i, (model, flags) in enumerate((name, more) for method in ("er", "derpp") for name, more in (
            (method, {}), (f"{method}_sbs", {"sampler": "uniform"}), (f"{method}_sbs", {})))]
GRID = [record("er_sbs", seed, 60 + 5 * s - 6 * q + seed, sbs_q=q, sbs_s=s) for seed in range(2)
        for q, s in ((0, 0), (0, 0.4), (0.4, 0), (0.2, 0.4))]


def write(folder: Path, *records: Record) -> Path:
    """A packed result folder with these runs, in this order."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**one, "id": id_of(one["args"], one["threads"])}) for one in records]
    Path(f"{folder}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The page about these runs; drawing figures takes a second, so only on demand."""

    def page(*records: Record, flags: tuple[str, ...] = (), figures: bool = False) -> Path:
        if not figures:
            monkeypatch.setattr(report, "KINDS", {})
        main(["report", str(write(tmp_path / "results", *records)), "-o", str(tmp_path / "page.html"), *flags])
        return tmp_path / "page.html"

    return page
