"""What a run is known by, and the one JSON file that it leaves, on whichever host it was made."""

from __future__ import annotations

import os
import platform
import time
import uuid
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.files import git
from mammoth_sbs.metrics import METRICS, anytime, forward_transfer

SETTINGS = {"class_il": "Class-IL", "task_il": "Task-IL"}
PLAIN = (str, int, float, list, dict, type(None))  # what JSON holds
Accuracies = tuple[list[float], list[float]]  # Class-IL and Task-IL, a number per task
# what another machine, folder or stopping point may change without making it another run
NOT_OF_THE_RUN = {"command", "loadcheck", "start_from", "stop_after", "savecheck", "ckpt_name", "base_path",
                  "results_path", "checkpoint_path", "device", "num_workers", "non_verbose", "disable_log",
                  "enable_other_metrics", "eval_epochs", "eval_steps", "shared_first_task", "tensorboard",
                  "wandb_entity", "wandb_project", "wandb_name", "sbs_record", "sbs_record_every", "sbs_record_scores",
                  "sbs_record_tasks", "extra_models", "resume", "weights"}  # the latter is known by its digest
# they choose from it when it has been learned, or are about the tasks after it
NOT_OF_THE_FIRST_TASK = {"sampler", "sbs_score", "sbs_q", "sbs_s", "sbs_grid", "sbs_tune", "sbs_tune_epochs",
                         "lr_later", "second_task"}


def metrics(results: list[Accuracies], ahead: list[tuple[Accuracies, Accuracies]] | None,
            during: Sequence[dict[str, Any]] = ()) -> dict[str, dict[str, Any]]:
    """Per setting: the matrix and what follows from it; forward transfer from `ahead`, accuracies on each task just
    before it was learned and of the untrained network, and anytime accuracy from what was measured every so many steps
    (`during`), if they were."""
    out: dict[str, dict[str, Any]] = {}
    for i, key in enumerate(SETTINGS):
        matrix = [list(row[i]) for row in results]
        out[key] = {"matrix": matrix, **{name: metric.of(matrix) for name, metric in METRICS.items() if metric.of}}
        if ahead is not None:
            before, untrained = ([pair[j][i][0] for pair in ahead] for j in (0, 1))
            out[key] |= {"before_learning": before, "untrained": untrained,
                         "forward_transfer": forward_transfer(before, untrained)}
        if steps := [entry[key] for entry in during if "step" in entry]:
            out[key]["anytime"] = anytime(steps)
    return out


def versions(host: str) -> dict[str, str]:
    """What the numbers may depend on beside the arguments."""
    import numpy as np
    import torch

    import mammoth_sbs

    return {"mammoth_sbs": mammoth_sbs.__version__, "host": host, "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "threads": str(torch.get_num_threads())}


def commit(code: Path | None = None) -> str | None:
    """The commit of this code, or of that with the file `code` in one of its folders, with a plus if files were changed
    since; none for an installed package."""
    import mammoth_sbs

    code = (code or Path(mammoth_sbs.__file__)).resolve()
    folder = code.parent.parent
    if git(folder, "ls-files", "--error-unmatch", str(code)) is None:
        return None
    head = git(folder, "rev-parse", "HEAD")
    return head and head + ("+" if git(folder, "status", "--porcelain", "-uno") else "")


def writable(folder: Path) -> bool:
    """Whether files may be created below `folder`; one without any write bit is left alone even by root."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def results_folder(args: Namespace) -> Path:
    """`results_path` below `base_path`; below ./data if the data sets lie where nothing may be written."""
    base = Path(args.base_path)
    return (base if writable(base) else Path("./data/")) / args.results_path


def run_record(args: Namespace, results: dict, seconds: float, info: dict, host: str = "embedded") -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "command": args.command,
        "args": {key: value if isinstance(value, PLAIN) else str(value) for key, value in vars(args).items()},
        "seed": args.seed,
        "commit": commit(),
        "versions": versions(host),
        "results": results,
        "wall_time": round(seconds, 2),
        **info,
    }


def new_id() -> str:
    """A name for a run's file: when it began, and something that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}_{uuid.uuid4().hex[:8]}"


def result_file(args: Namespace, setting: str, run_id: str) -> Path:
    """Where a run's one JSON file goes."""
    return results_folder(args) / setting / args.dataset / args.model / f"{run_id}.json"
