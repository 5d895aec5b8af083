"""What a run says and leaves behind."""

from __future__ import annotations

import json
import platform
import subprocess
import time
import uuid
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from mammoth_sbs.files import write_atomically

from utils.args import say
from utils.conf import writable
from utils.metrics import backward_transfer, forgetting

SETTINGS = {"class_il": "Class-IL", "task_il": "Task-IL"}


def print_mean_accuracy(accuracies: tuple[list[float], list[float]], tasks: int, joint: bool, prefix: str = "") -> None:
    """The line that people's scripts read."""
    pairs = zip(SETTINGS.values(), accuracies, strict=True)
    means = [f"[{name}]: {round(fmean(values), 2)} %" for name, values in pairs]
    title = "Joint Accuracy" if joint else f"Accuracy for {tasks} task(s)"
    say(f"{prefix}{title}: \t " + " \t ".join(means))


def print_table(results: list[tuple[list[float], list[float]]]) -> None:
    """The accuracy matrices: after each task, on each task."""
    for i, name in enumerate(SETTINGS.values()):
        heads = "".join(f"{f'task {t + 1}':>9}" for t in range(len(results[-1][i])))
        say(f"\n{name} accuracy (%){heads}     mean")
        for row in results:
            cells = "".join(f"{value:9.2f}" for value in row[i]) + " " * 9 * (len(results[-1][i]) - len(row[i]))
            say(f"{f'after task {len(row[i])}':<{len(name) + 13}}{cells}{fmean(row[i]):9.2f}")


def metrics(results: list[tuple[list[float], list[float]]]) -> dict[str, dict[str, Any]]:
    """Per setting: the matrix, the final mean, forgetting and backward transfer."""
    out = {}
    for i, key in enumerate(SETTINGS):
        matrix = [list(row[i]) for row in results]
        out[key] = {"matrix": matrix, "final": fmean(matrix[-1]), "forgetting": forgetting(matrix),
                    "backward_transfer": backward_transfer(matrix)}
    return out


def versions() -> dict[str, str]:
    """What the numbers may depend on beside the arguments."""
    import mammoth_sbs

    return {"mammoth_sbs": mammoth_sbs.__version__, "host": "embedded", "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "threads": str(torch.get_num_threads())}


def commit() -> str | None:
    """The commit of this code, with a plus if files were changed since."""
    folder = Path(__file__).resolve().parent
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if dirty else "")


def results_folder(args: Namespace) -> Path:
    """`results_path` below `base_path`; below ./data if the data sets lie where nothing may be written."""
    base = Path(args.base_path)
    return (base if writable(base) else Path("./data/")) / args.results_path


def write_run(args: Namespace, command: str, setting: str, results: list, seconds: float, info: dict) -> Path:
    """The run's one JSON file."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}_{uuid.uuid4().hex[:8]}"
    path = results_folder(args) / setting / args.dataset / args.model / f"{run_id}.json"
    record = {
        "command": command,
        "args": {key: str(value) if isinstance(value, torch.device) else value for key, value in vars(args).items()},
        "seed": args.seed,
        "commit": commit(),
        "versions": versions(),
        "results": metrics(results),
        "wall_time": round(seconds, 2),
        **info,
    }
    write_atomically(path, lambda f: f.write(json.dumps(record, indent=1).encode()), "result file")
    return path
