"""Checkpoints from which a run goes on as if it had never stopped: after a task, or after any epoch of one."""

from __future__ import annotations

import hashlib
import json
import zipfile
from argparse import Namespace
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.files import write_atomically
from mammoth_sbs.random_state import get_random_state, set_random_state
from mammoth_sbs.result import NOT_OF_THE_RUN

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from datasets.utils.continual_dataset import TaskLoader
    from models.utils.continual_model import ContinualModel

FORMAT = 2
OFF: tuple[Any, ...] = (None, False, 0, "", [])  # a flag that came later and is off does not make it another run
OF_THE_SCHEDULE = ("last_epoch", "_step_count", "_last_lr")  # the rest of its state is made from the flags


def run_digest(args: Namespace) -> str:
    """A short name for all flags that make the run what it is."""
    flags = {key: value for key, value in vars(args).items() if key not in NOT_OF_THE_RUN and value not in OFF}
    return hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:8]


def place_in_task(model: ContinualModel, loader: TaskLoader, scheduler: LRScheduler | None, epochs: int,
                  leg: int = 0) -> dict[str, Any]:
    """What the next epoch depends on beside the rest of a checkpoint; `leg` counts the trainings within a task."""
    schedule = scheduler.state_dict() if scheduler is not None else {}
    return {"leg": leg, "epochs": epochs, "steps": model.task_iteration, "optimizer": model.opt.state_dict(),
            "order": loader.generator.get_state(),
            "schedule": {key: value for key, value in schedule.items() if key in OF_THE_SCHEDULE}}


def save_checkpoint(path: str | Path, model: ContinualModel, args: Namespace, tasks_done: int, results: list,
                    **more: Any) -> None:
    """Everything that comes depends on: weights, method's state, buffer, random state, results so far."""
    state = {
        "format": FORMAT,
        "args": {key: value for key, value in vars(args).items() if not isinstance(value, torch.device)},
        "model": model.state_dict(),
        "buffer": model.buffer.serialize() if hasattr(model, "buffer") else None,
        "random": get_random_state(),
        "tasks_done": tasks_done,
        "results": results,
        **more,
    }
    write_atomically(path, lambda f: torch.save(state, f), "checkpoint")


def read_checkpoint(path: str | Path, flag: str = "--loadcheck") -> dict[str, Any]:
    """The content of a checkpoint, or one line on why not."""
    if not Path(path).is_file():
        raise UserError(f"{flag} {path}: no such file")
    try:
        with zipfile.ZipFile(path) as archive:  # torch would not notice a flipped bit in a tensor
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # damage has many faces
        raise UserError(f"{flag} {path}: not a checkpoint, or a damaged one; take another") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{flag} {path}: not a checkpoint of this program; save one with --savecheck")
    return state


def load_checkpoint(path: str | Path, args: Namespace, flag: str = "--loadcheck",
                    may_differ: Set[str] = frozenset()) -> dict[str, Any]:
    """The content of a checkpoint, if it is of the same run."""
    state = read_checkpoint(path, flag)
    check_same_run(state, args, f"{flag} {path}", "leave these flags out", may_differ)
    return state


def check_same_run(state: dict, args: Namespace, where: str, advice: str, may_differ: Set[str] = frozenset()) -> None:
    """Refuse a checkpoint of another run, with the flags that differ."""
    theirs, ours = state["args"], vars(args)
    if theirs["model"] != args.model:
        raise UserError(f"{where}: saved by --model {theirs['model']}, not {args.model}")
    different = [key for key in {**theirs, **ours} if key not in NOT_OF_THE_RUN | may_differ
                 and theirs.get(key) != ours.get(key) and (key in theirs or ours[key] not in OFF)]
    if different:
        what = ", ".join(f"--{key} {theirs.get(key)} there and {ours.get(key)} here" for key in different)
        raise UserError(f"{where}: of another run: {what}; {advice}")


def restore(state: dict, model: ContinualModel, loader: TaskLoader | None = None,
            scheduler: LRScheduler | None = None) -> None:
    """Weights, buffer and random state as they were saved; with a loader, also the place within the task."""
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as e:
        raise UserError(f"--model {model.args.model}: what the checkpoint holds does not fit the method as it begins "
                        f"({reason(e)}); it cannot go on from a checkpoint here") from None
    if state["buffer"] is not None:
        model.buffer.load(state["buffer"])
    if loader is not None:
        inside = state["inside"]
        model.task_iteration = inside["steps"]
        model.opt.load_state_dict(inside["optimizer"])
        loader.generator.set_state(inside["order"])
        if scheduler is not None:
            scheduler.load_state_dict(inside["schedule"])
    set_random_state(state["random"])
