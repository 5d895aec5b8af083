"""TensorBoard and Weights & Biases: both are shown the same curves, accuracy matrices and statistics of SBS."""

from __future__ import annotations

import os
import time
import uuid
from argparse import Namespace
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from mammoth_sbs.errors import UserError
from mammoth_sbs.random_state import get_random_state, set_random_state
from mammoth_sbs.watch import Progress, is_quiet


class Board:
    """Makes named numbers of what it is told; where they go is a subclass's."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # steps, epochs and tasks of the whole run
        self.matrices: dict[str, list[list[float]]] = {"class_il": [], "task_il": []}

    def __call__(self, now: Progress) -> None:
        self.counts[now.event] += 1
        found: dict[str, Any] = {"step": {"loss": now.loss}, "task": {}}.get(now.event, {"epoch/loss": now.loss})
        if now.train_accuracy is not None:
            found["epoch/train_accuracy"] = now.train_accuracy
        for setting, values in (("class_il", now.class_il), ("task_il", now.task_il)):
            where = setting if now.event == "task" else f"epoch/{setting}"
            if values is not None:
                found |= {f"{where}/mean": fmean(values), **{f"{where}/task_{i}": v for i, v in enumerate(values, 1)}}
                if now.event == "task":
                    self.matrices[setting].append(values)
        if now.sbs is not None:
            found |= {f"sbs/{name}": value for name, value in flat(now.sbs.statistics)}
        self.numbers(now.event, self.counts[now.event], found)
        if now.sbs is not None:
            self.histogram("sbs/learning_speed", now.sbs.speed, self.counts["task"])

    def numbers(self, event: str, at: int, found: dict[str, float]) -> None:
        raise NotImplementedError

    def histogram(self, name: str, values: Tensor, task: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The run has ended, well or not."""


def flat(statistics: dict[str, Any]) -> list[tuple[str, float]]:
    """The numbers among the statistics of a task, by name."""
    found = []
    for name, value in statistics.items():
        if name == "choice":  # q and s; not the grid that they were chosen from
            found += [(side, value[side]) for side in ("q", "s")] if value else []
        elif isinstance(value, list):
            found += [(f"{name}_{i}", v) for i, v in enumerate(value, 1)]
        elif isinstance(value, (int, float)):
            found.append((name, value))
    return found


class TensorBoard(Board):
    """A folder of its own below `--tensorboard`, for each run."""

    def __init__(self, args: Namespace) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard: the package tensorboard is not installed; "
                            "pip install 'mammoth-sbs[tensorboard]'") from None
        run = f"{args.dataset}_{args.model}_{time.strftime('%Y%m%d-%H%M%S')}_{uuid.uuid4().hex[:8]}"
        try:
            self.writer = SummaryWriter(str(Path(args.tensorboard) / run))
        except OSError as e:
            raise UserError(f"--tensorboard {args.tensorboard}: {e.strerror}; give another folder") from None
        self.writer.add_text("command", args.command)

    def numbers(self, event: str, at: int, found: dict[str, float]) -> None:
        for name, value in found.items():
            self.writer.add_scalar(name, value, at)

    def histogram(self, name: str, values: Tensor, task: int) -> None:
        self.writer.add_histogram(name, values.numpy(), task)

    def close(self) -> None:
        for setting, rows in self.matrices.items():
            if rows:
                heads = [f"task {t}" for t in range(1, len(rows[-1]) + 1)]
                table = [["after task", *heads], ["---"] * (len(heads) + 1)]
                table += [[str(t), *(f"{v:.2f}" for v in row)] for t, row in enumerate(rows, 1)]
                self.writer.add_text(f"{setting}/matrix", "\n".join("| " + " | ".join(line) + " |" for line in table))
        self.writer.close()


class WandB(Board):
    """A run of the project `--wandb_project` of `--wandb_entity`, as with Mammoth."""

    def __init__(self, args: Namespace) -> None:
        super().__init__()
        try:
            import wandb
        except ImportError:
            raise UserError("--wandb_project: the package wandb is not installed; "
                            "pip install 'mammoth-sbs[wandb]'") from None
        config = {key: value for key, value in vars(args).items() if isinstance(value, (int, float, str, list))}
        try:
            self.run = wandb.init(project=args.wandb_project, entity=args.wandb_entity, config=config,
                                  name=args.wandb_name or args.model, settings=wandb.Settings(silent=is_quiet()))
        except Exception as e:
            raise UserError(f"--wandb_project {args.wandb_project}: {str(e).splitlines()[0]}; see `wandb login`, or "
                            "set WANDB_MODE=offline") from None
        self.wandb = wandb
        for name, along in {"loss": "step", "epoch/*": "epoch", "class_il/*": "task", "task_il/*": "task",
                            "sbs/*": "task"}.items():
            self.run.define_metric(name, step_metric=along)

    def numbers(self, event: str, at: int, found: dict[str, float]) -> None:
        self.run.log({event: at, **found})

    def histogram(self, name: str, values: Tensor, task: int) -> None:
        self.run.log({"task": task, name: self.wandb.Histogram(values.tolist())})

    def close(self) -> None:
        for setting, rows in self.matrices.items():
            if rows:
                table = [[t, *row, *[None] * (len(rows) - len(row))] for t, row in enumerate(rows, 1)]
                columns = ["after task", *(f"task {t}" for t in range(1, len(rows) + 1))]
                self.run.log({f"{setting}/matrix": self.wandb.Table(columns=columns, data=table)})
        self.run.finish()


def boards(args: Namespace) -> list[Board]:
    """Those that the flags ask for. Nothing that they do is felt by the run."""
    given = {name: getattr(args, name) or os.environ.get(name.upper()) for name in ("wandb_entity", "wandb_project")}
    wanted = bool(args.wandb_entity or args.wandb_project)
    missing = [name for name, value in given.items() if not value]
    if wanted and missing:
        raise UserError(f"--{missing[0]} is missing: Weights & Biases needs --wandb_entity and --wandb_project")
    state = get_random_state()
    try:
        shown: list[Board] = [TensorBoard(args)] if args.tensorboard else []
        if wanted and not args.debug_mode:
            shown.append(WandB(Namespace(**{**vars(args), **given})))
    finally:
        set_random_state(state)
    return shown
