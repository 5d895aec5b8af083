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
from mammoth_sbs.values import PERCENT, SEED, Unfit, at_least, each, is_plain, is_text, maybe, number, shown, table

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from datasets.utils.continual_dataset import TaskLoader
    from models.utils.continual_model import ContinualModel

FORMAT = 2
OFF: tuple[Any, ...] = (None, False, 0, "", [])  # a flag that came later and is off does not make it another run
COUNT = at_least(0).check
OF_THE_SCHEDULE = ("last_epoch", "_step_count", "_last_lr")  # the rest of its state is made from the flags


# ---- what a checkpoint may hold


def is_tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Unfit(f"{name} is {shown(value)}, not a tensor")


def are_flags(value: Any, name: str) -> None:
    """What the command line of a run came to."""
    table({"model": is_text, "dataset": is_text, "seed": SEED.check})(value, name)
    for flag, given in value.items():
        is_text(flag, f"a name in {name}")
        is_plain(given, f"{name}.{flag}")


ROW = each(each(PERCENT.check), 2)  # Class-IL and Task-IL accuracies
STATE = table({
    "args": are_flags, "model": table({}), "buffer": maybe(table({"num_seen_examples": COUNT})), "tasks_done": COUNT,
    "random": table({"torch": is_tensor, "numpy": each(lambda *_: None, 4), "python": each(lambda *_: None, 3)}),
    "results": each(ROW), "run": is_text, "seconds": number(0).check, "ahead": maybe(each(each(ROW, 2))),
    "during": each(table({"task": COUNT, "class_il": each(PERCENT.check), "task_il": each(PERCENT.check)},
                         {"epoch": COUNT, "step": COUNT})),
    "inside": maybe(table({"leg": COUNT, "epochs": COUNT, "steps": COUNT, "optimizer": table({}), "order": is_tensor,
                           "schedule": table({})}))})


def check(state: dict[str, Any]) -> None:
    """That the state of a run is whole and true to itself; raises `Unfit`."""
    STATE(state, "")
    results = state["results"]
    if len(results) != state["tasks_done"]:
        raise Unfit(f"results are of {len(results)} tasks, and tasks_done is {state['tasks_done']}")
    for i, row in enumerate(results):
        if any(len(accuracies) != i + 1 for accuracies in row):
            raise Unfit(f"results[{i}] has not {i + 1} accuracies for each setting")
    if "digest" in state and state["digest"] != digest({key: state[key] for key in state if key != "digest"}):
        raise Unfit("something in it was changed")


def digest(value: Any) -> str:
    """Names the content of tables, lists, tensors, numbers and texts."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, dict | list | tuple):
            found.update(f"{len(value)} ".encode())
            for part in value.items() if isinstance(value, dict) else value:
                add(part)
        else:
            found.update(repr(value).encode())

    add(value)
    return found.hexdigest()


# ---- written and read


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
    state["digest"] = digest(state)
    write_atomically(path, lambda f: torch.save(state, f), "checkpoint")


def read_checkpoint(path: str | Path, flag: str = "--loadcheck") -> dict[str, Any]:
    """The content of a checkpoint, or one line on why not."""
    if not Path(path).is_file():
        raise UserError(f"{flag} {path}: " + ("a folder; give one of its files" if Path(path).is_dir() else
                                              "no such file"))
    try:
        with zipfile.ZipFile(path) as archive:  # torch would not notice a flipped bit in a tensor
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # damage has many faces
        raise UserError(f"{flag} {path}: not a checkpoint, or a damaged one; take another") from None
    if not isinstance(state, dict) or not isinstance(state.get("format"), int) or state["format"] != FORMAT:
        raise UserError(f"{flag} {path}: not a checkpoint of this program; save one with --savecheck")
    try:
        check(state)
    except Unfit as e:
        raise UserError(f"{flag} {path}: not the state of a run: {e}; take another") from None
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
    except UserError:
        raise
    except Exception as e:  # what does not fit has many faces
        raise UserError(f"--model {model.args.model}: what the checkpoint holds does not fit the method as it begins "
                        f"({reason(e)}); it cannot go on from a checkpoint here") from None
