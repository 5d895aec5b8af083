"""Checkpoints from which a run goes on as if it had never stopped."""

from __future__ import annotations

import zipfile
from argparse import Namespace
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically
from mammoth_sbs.random_state import get_random_state, set_random_state
from mammoth_sbs.result import NOT_OF_THE_RUN

if TYPE_CHECKING:
    from models.utils.continual_model import ContinualModel

FORMAT = 1


def save_checkpoint(path: str | Path, model: ContinualModel, args: Namespace, tasks_done: int, results: list,
                    **more: Any) -> None:
    """Everything the next task depends on: weights, method's state, buffer, random state, results so far."""
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


def load_checkpoint(path: str | Path, model: ContinualModel, args: Namespace, flag: str = "--loadcheck",
                    may_differ: Set[str] = frozenset()) -> dict[str, Any]:
    """Put a checkpoint's state into `model` and the random generators, if it is of the same run; returns it all."""
    state = read_checkpoint(path, flag)
    theirs = state["args"]
    if theirs["model"] != args.model:
        raise UserError(f"{flag} {path}: saved by --model {theirs['model']}, not {args.model}")
    different = [key for key in theirs
                 if key not in NOT_OF_THE_RUN | may_differ and getattr(args, key, None) != theirs[key]]
    if different:
        what = ", ".join(f"--{key} {theirs[key]} there and {getattr(args, key, None)} here" for key in different)
        raise UserError(f"{flag} {path}: of another run: {what}; leave these flags out")
    restore(state, model)
    return state


def restore(state: dict, model: ContinualModel) -> None:
    """Weights, buffer and random state as they were saved."""
    model.load_state_dict(state["model"])
    if state["buffer"] is not None:
        model.buffer.load(state["buffer"])
    set_random_state(state["random"])
