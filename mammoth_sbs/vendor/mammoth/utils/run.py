"""A run: how far it is, what it leaves behind, and how it goes on after it was stopped."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mammoth_sbs.errors import Interrupted, UserError
from mammoth_sbs.files import try_to_write, write_atomically, write_somewhere
from mammoth_sbs.result import Accuracies, metrics, new_id, result_file, run_record
from mammoth_sbs.watch import say, warn

from utils.checkpoints import (
    check_same_run,
    load_checkpoint,
    place_in_task,
    read_checkpoint,
    restore,
    run_digest,
    save_checkpoint,
)
from utils.conf import get_checkpoint_path

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from datasets.utils.continual_dataset import ContinualDataset, TaskLoader
    from models.utils.continual_model import ContinualModel

COPIES_OF_WEIGHTS = {"sgd": 1, "adam": 2, "adamw": 2, "adagrad": 1}  # that an optimiser keeps, at the most


class Run:
    """Which tasks and epochs are done and what they gave. Its checkpoints and its result file say the same."""

    def __init__(self, model: ContinualModel, dataset: ContinualDataset, args: Namespace) -> None:
        self.model, self.dataset, self.args = model, dataset, args
        self.first, self.end = args.start_from or 0, min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS)
        self.results: list[Accuracies] = []
        self.during: list[dict[str, Any]] = []  # for --eval_epochs and --eval_steps
        self.ahead: list[tuple[Accuracies, Accuracies]] | None = [] if args.enable_other_metrics else None
        self.id = new_id()
        self.begin, self.spent = time.monotonic(), 0.0  # seconds, in processes before this one
        self.inside: dict[str, Any] | None = None  # a checkpoint within a task, until the task comes
        self.leg = 0  # trainings of this task so far: `joint` has a second one
        self.saved = ""  # what there is to go on from
        self.missing: dict[Path, str] = {}  # what could not be written, or not where it should be

    # ---- before the first step

    def prepare(self) -> dict[str, Any] | None:
        """Find where to go on, and try every place that will be written to; the result, if all is done already."""
        state, result = self.find(), None
        if state is not None:
            self.results, self.spent, self.first = state["results"], state["seconds"], state["tasks_done"]
            self.during = state["during"]
            if self.ahead is not None:  # not known if the tasks before were learned without it
                self.ahead = state["ahead"]
            if self.args.start_from is not None:
                self.go_back(state)
            restore(state, self.model)  # within a task once more, after it has begun
            self.inside = state if state["inside"] is not None else None
            if self.file(state["run"]).exists():
                result = self.file(state["run"])
            else:  # stopped before its end: its file is ours
                self.id = state["run"]
        if self.args.resume and self.first == self.end and result is not None:
            try:
                found = json.loads(result.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise UserError(f"{result}: not JSON; remove it, and the same command writes it again") from None
            say(f"finished already; result file: {result}")
            return found
        if self.first > self.end or (self.first == self.end and (state is None or result is not None)):
            raise UserError(f"nothing to do: the run would start at task {self.first + 1} and stop after task "
                            f"{self.end}; see --start_from, --stop_after and --loadcheck")
        self.try_places()
        return None

    def find(self) -> dict[str, Any] | None:
        """The checkpoint to go on from: the given one, or with `--resume` the newest of this run, if there is one."""
        args = self.args
        if not args.resume:
            return load_checkpoint(args.loadcheck, args, may_differ={"compile"}) if args.loadcheck is not None else None
        newest: dict[str, Any] | None = None
        last, *of_tasks = self.checkpoints()
        for file in (file for file in (last, *of_tasks) if file.exists()):
            try:
                state = read_checkpoint(file, "--resume")
            except UserError as e:
                warn(f"{e.what}; going on without it")
                continue
            check_same_run(state, args, f"--resume {file}", "give another --ckpt_name")
            if state["tasks_done"] <= self.end and (newest is None or progress(state) > progress(newest)):
                newest, self.saved = state, f"{file} ({progress_text(state)})"
                if file != last:  # those of earlier tasks come after it
                    break
        if newest is not None:
            say(f"going on from {self.saved}")
        return newest

    def go_back(self, state: dict[str, Any]) -> None:
        """`--start_from`: Mammoth's way to learn tasks again that a checkpoint has behind it."""
        if state["inside"] is not None:
            raise UserError(f"--start_from {self.args.start_from}: the checkpoint is from within task "
                            f"{state['tasks_done'] + 1} and goes on there; leave it out")
        self.first = self.args.start_from
        self.results = self.results[: self.first]
        self.during = [entry for entry in self.during if entry["task"] <= self.first]
        self.ahead = self.ahead[: self.first] if self.ahead is not None else None

    def try_places(self) -> None:
        """Checkpoints of another run are not overwritten, and what cannot be written is found out now."""
        args = self.args
        if args.savecheck:
            for file in self.checkpoints() if not args.resume else ():
                self.spare(file)
            try_to_write(self.checkpoint(), "checkpoint", "--checkpoint_path and --ckpt_name", self.size())
            say(f"Saving checkpoint into: {self.name}")
        if not args.disable_log:
            try_to_write(self.file(), "result file", "--base_path and --results_path", 100_000)

    def spare(self, file: Path) -> None:
        """What another run has saved under this name is not to be lost."""
        try:
            state = read_checkpoint(file)
        except UserError:
            return  # not there, or of no worth
        if self.args.savecheck == "task" or file == self.checkpoint("last"):
            check_same_run(state, self.args, f"--savecheck would overwrite {file}", "give another --ckpt_name")
            if self.args.loadcheck is None:
                say(f"note: {file} is of this run ({progress_text(state)}); --resume would go on from it")

    def size(self) -> int:
        """Bytes of a checkpoint with a full buffer, about."""
        args = self.args
        weights = sum(tensor.nbytes for tensor in self.model.net.state_dict().values())
        image = math.prod(self.dataset.input_shape) + self.dataset.N_CLASSES + 4
        return weights * (1 + COPIES_OF_WEIGHTS[args.optimizer]) + 4 * image * getattr(args, "buffer_size", 0) + 100_000

    # ---- names of files

    def file(self, run_id: str | None = None) -> Path:
        """The result file."""
        return result_file(self.args, self.dataset.SETTING, run_id or self.id)

    @property
    def marked(self) -> Path:
        """Its name until all is done."""
        return Path(f"{self.file()}.unfinished")

    def checkpoint(self, task: int | str | None = None) -> Path:
        """Where the state after a task is saved; `--savecheck` may keep the last only."""
        if task is None:
            task = len(self.results) - 1 if self.args.savecheck == "task" else "last"
        return Path(get_checkpoint_path()) / f"{self.name}_{task}.pt"

    @property
    def name(self) -> str:
        """What the checkpoints are called, but for the task: by default a name that no other run has."""
        args = self.args
        parts = args.model, args.dataset, args.dataset_config, getattr(args, "buffer_size", 0), args.n_epochs, args.seed
        return args.ckpt_name or f"{'_'.join(map(str, parts))}_{run_digest(args)}"

    def checkpoints(self) -> list[Path]:
        """All names that a checkpoint of this run may have."""
        return [self.checkpoint("last"), *(self.checkpoint(task) for task in reversed(range(self.dataset.N_TASKS)))]

    @property
    def points(self) -> Path | None:
        """Where a search for q and s keeps its finished points, so that it too goes on."""
        return Path(f"{self.checkpoint('last')}.points.jsonl") if self.args.savecheck == "epoch" else None

    # ---- on the way

    def begin_training(self, loader: TaskLoader, scheduler: LRScheduler | None) -> int:
        """How many epochs of this training are done already; the checkpoint that says so is loaded now."""
        leg, self.leg = self.leg, self.leg + 1
        if self.inside is None:
            return 0
        inside = self.inside["inside"]
        if leg < inside["leg"]:
            return self.args.n_epochs
        restore(self.inside, self.model, loader, scheduler)
        self.inside = None
        return inside["epochs"]

    def epoch_done(self, epochs: int, loader: TaskLoader, scheduler: LRScheduler | None) -> None:
        """The first `epochs` of this training are done."""
        if self.args.savecheck == "epoch":
            self.save(place_in_task(self.model, loader, scheduler, epochs, self.leg - 1))

    def task_done(self, accuracies: Accuracies) -> None:
        """A task is learned and evaluated."""
        args = self.args
        self.results.append(accuracies)
        self.leg = 0
        done = len(self.results)
        if args.savecheck in ("epoch", "task") or (args.savecheck == "last" and done == self.end):
            self.save()
        if self.points is not None:
            self.points.unlink(missing_ok=True)
        if done < self.end and not args.disable_log:
            self.write({**self.content(), "unfinished": f"{done} of {self.end} tasks"})

    def save(self, inside: dict[str, Any] | None = None) -> None:
        """A checkpoint. One that cannot be written costs a warning: the run itself is worth more."""
        file, done = self.checkpoint(), len(self.results)
        try:
            save_checkpoint(file, self.model, self.args, done, self.results, inside=inside, run=self.id,
                            seconds=self.seconds, during=self.during, ahead=self.ahead)
        except UserError as e:
            self.missing[file] = e.what
            warn(f"{self.missing[file]}; the run goes on without it")
        else:
            self.missing.pop(file, None)
            self.saved = f"{file} ({progress_text({'tasks_done': done, 'inside': inside})})"

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self.begin

    # ---- the end

    def content(self, info: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the result file says now."""
        known: dict[str, Any] = getattr(self.model, "run_info", dict)()
        for what in ("epoch", "step"):
            if found := [entry for entry in self.during if what in entry]:
                known[f"eval_{what}s"] = found
        return run_record(self.args, metrics(self.results, self.ahead, self.during), self.seconds, known | (info or {}))

    def write(self, record: dict[str, Any]) -> Path:
        """The result file. Until the run is done it is marked, by its name too: nobody takes it for a result."""
        text = json.dumps(record, indent=1).encode()
        try:
            write_atomically(self.marked, lambda f: f.write(text), "result file")
            if "unfinished" in record:
                return self.marked
            os.replace(self.marked, self.file())  # a second step, so that a kill never leaves both
            return self.file()
        except (UserError, OSError) as e:
            if "unfinished" in record:
                warn(f"{getattr(e, 'what', e)}; the run goes on")
                return self.marked
        place, elsewhere = write_somewhere(self.file(), lambda f: f.write(text), "result file")
        if elsewhere:
            self.missing[place] = elsewhere
        return place

    def finish(self, info: dict[str, Any]) -> dict[str, Any]:
        """All tasks are done: the result."""
        record = self.content(info)
        if not self.args.disable_log:
            say(f"\nresult file: {self.write(record)}")
        return record

    def complain(self) -> None:
        """What to say at the end if something is not where it should be."""
        if self.missing:
            raise UserError(f"the run is finished, but {'; '.join(self.missing.values())}")

    def stopped(self, by: KeyboardInterrupt) -> Interrupted:
        """One line on what is saved, and the command that goes on."""
        where = f" in task {len(self.results) + 1} of {self.end}" if len(self.results) < self.end else ""
        marked = [str(self.marked)] * self.marked.exists()
        last = self.checkpoint()
        self.saved = self.saved or str(last) * last.exists()  # the signal may have come with the first one
        if not self.saved:
            kept = f"the results so far are in {marked[0]}; " if marked else ""
            return Interrupted(f"{where}: {kept}there is no checkpoint to go on from; with --resume a run saves itself "
                               "after every epoch", by)
        words = shlex.split(self.args.command)
        for flag in ("--loadcheck", "--start_from", "--resume"):
            if flag in words:
                at = words.index(flag)
                del words[at : at + 2]
        return Interrupted(f"{where}; saved: {', '.join([self.saved, *marked])}. "
                           f"To go on: {shlex.join([*words, '--resume', '1'])}", by)


def progress(state: dict[str, Any]) -> tuple[int, int, int]:
    """How far a checkpoint is."""
    inside = state["inside"] or {"leg": -1, "epochs": 0}
    return state["tasks_done"], inside["leg"], inside["epochs"]


def progress_text(state: dict[str, Any]) -> str:
    """How far a checkpoint is, in words."""
    tasks, inside = state["tasks_done"], state["inside"]
    text = f"{tasks} task{'s' * (tasks != 1)}"
    return text if inside is None else f"{text} and {inside['epochs']} epoch{'s' * (inside['epochs'] != 1)}"
