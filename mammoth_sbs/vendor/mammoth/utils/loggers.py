"""What a run says and leaves behind."""

from __future__ import annotations

import json
import platform
import time
import uuid
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from mammoth_sbs.files import git, write_atomically
from mammoth_sbs.metrics import METRICS, forward_transfer
from mammoth_sbs.watch import say

from utils.conf import writable

SETTINGS = {"class_il": "Class-IL", "task_il": "Task-IL"}
Accuracies = tuple[list[float], list[float]]  # Class-IL and Task-IL, a number per task


def print_mean_accuracy(accuracies: Accuracies, tasks: int, joint: bool, prefix: str = "",
                        epoch: int | None = None) -> None:
    """The line that people's scripts read."""
    pairs = zip(SETTINGS.values(), accuracies, strict=True)
    means = [f"[{name}]: {round(fmean(values), 2)} %" for name, values in pairs]
    when = "" if epoch is None else f" (epoch {epoch})"
    title = f"Joint Accuracy{when}" if joint else f"Accuracy{when} for {tasks} task(s)"
    say(f"{prefix}{title}: \t " + " \t ".join(means))


def print_table(results: list[Accuracies]) -> None:
    """The accuracy matrices: after each task, on each task."""
    for i, name in enumerate(SETTINGS.values()):
        heads = "".join(f"{f'task {t + 1}':>9}" for t in range(len(results[-1][i])))
        say(f"\n{name} accuracy (%){heads}     mean")
        for row in results:
            cells = "".join(f"{value:9.2f}" for value in row[i]) + " " * 9 * (len(results[-1][i]) - len(row[i]))
            say(f"{f'after task {len(row[i])}':<{len(name) + 13}}{cells}{fmean(row[i]):9.2f}")


def metrics(results: list[Accuracies], ahead: list[tuple[Accuracies, Accuracies]] | None) -> dict[str, dict[str, Any]]:
    """Per setting: the matrix and what follows from it; forward transfer from `ahead`, accuracies on each task just
    before it was learned and of the untrained network, if they were measured."""
    out: dict[str, dict[str, Any]] = {}
    for i, key in enumerate(SETTINGS):
        matrix = [list(row[i]) for row in results]
        out[key] = {"matrix": matrix, **{name: metric.of(matrix) for name, metric in METRICS.items() if metric.of}}
        if ahead is not None:
            before, untrained = ([pair[j][i][0] for pair in ahead] for j in (0, 1))
            out[key] |= {"before_learning": before, "untrained": untrained,
                         "forward_transfer": forward_transfer(before, untrained)}
    return out


def print_metrics(found: dict[str, dict[str, Any]]) -> None:
    """What the matrices come to."""
    say("\n" + " " * 32 + "".join(f"{title:>9}" for title in SETTINGS.values()))
    for name, metric in METRICS.items():
        if all(name in values for values in found.values()):
            unit = "%" if metric.accuracy else "points"
            say(f"{f'{metric.title}, {unit}':<32}" + "".join(f"{found[key][name]:9.2f}" for key in SETTINGS))


def versions() -> dict[str, str]:
    """What the numbers may depend on beside the arguments."""
    import mammoth_sbs

    return {"mammoth_sbs": mammoth_sbs.__version__, "host": "embedded", "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "threads": str(torch.get_num_threads())}


def commit() -> str | None:
    """The commit of this code, with a plus if files were changed since; none for an installed package."""
    import mammoth_sbs

    code = Path(mammoth_sbs.__file__).resolve()
    folder = code.parent.parent
    if git(folder, "ls-files", "--error-unmatch", str(code)) is None:
        return None
    head = git(folder, "rev-parse", "HEAD")
    return head and head + ("+" if git(folder, "status", "--porcelain", "-uno") else "")


def results_folder(args: Namespace) -> Path:
    """`results_path` below `base_path`; below ./data if the data sets lie where nothing may be written."""
    base = Path(args.base_path)
    return (base if writable(base) else Path("./data/")) / args.results_path


def run_record(args: Namespace, results: dict, seconds: float, info: dict) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "command": args.command,
        "args": {key: str(value) if isinstance(value, torch.device) else value for key, value in vars(args).items()},
        "seed": args.seed,
        "commit": commit(),
        "versions": versions(),
        "results": results,
        "wall_time": round(seconds, 2),
        **info,
    }


def write_run(args: Namespace, setting: str, record: dict[str, Any]) -> Path:
    """The run's one JSON file."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}_{uuid.uuid4().hex[:8]}"
    path = results_folder(args) / setting / args.dataset / args.model / f"{run_id}.json"
    write_atomically(path, lambda f: f.write(json.dumps(record, indent=1).encode()), "result file")
    return path
