"""`--sbs-record`: M of every task through all later tasks, Task-IL and Class-IL, in one file (see core/record.py)."""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mammoth_sbs import host
from mammoth_sbs.core.record import SETTINGS, kind
from mammoth_sbs.core.speed import LearningSpeed, SpeedHook
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import try_to_write, write_somewhere
from mammoth_sbs.models.chosen import fetch, not_augmented
from mammoth_sbs.models.flags import add_record_args
from mammoth_sbs.models.forward import ForwardIsCall, calls_forward
from mammoth_sbs.models.randomness import own_randomness
from mammoth_sbs.models.scores import SCORES
from mammoth_sbs.watch import say, warn

from models.utils.continual_model import ContinualModel

INDEX = "sbs_index"  # the extra field with an example's place in its task
CHUNK = 256  # images per forward pass
Row = dict[str, np.ndarray]  # bits of one epoch, by setting


def images_passed(train: int, test: int, tasks: int, args: Any) -> int:
    """Forward passes that recording adds to a run, counted in images: tasks of `train` and `test` images each."""
    rows, most = -(-(args.n_epochs or 1) // (args.sbs_record_every or 1)), args.sbs_record_tasks or tasks
    ends = train * min(tasks, most)  # each task's own data, once, when it ends
    return ends + rows * sum(train * min(before, most) + test * min(before + 1, most) for before in range(tasks))


class Recorder:
    """Follows every task through its own epochs and those of the tasks after it.

    A task's rows of M come from the training steps while it is learned, and from one forward pass per epoch later;
    those of test data always from a forward pass. Nothing that it does is felt by the run.
    """

    def __init__(self, args: Any) -> None:
        path, self.path = args.sbs_record, Path(args.sbs_record)
        self.every, self.tasks = args.sbs_record_every or 1, args.sbs_record_tasks
        self.scores: list[str] = args.sbs_record_scores or []
        if self.path.suffix != ".npz":
            raise UserError(f"--sbs-record {path}: give a file that ends in .npz")
        if not self.path.resolve().parent.is_dir():
            raise UserError(f"--sbs-record {path}: there is no folder {self.path.parent}; make it first")
        try_to_write(self.path, "record", "--sbs-record", 1_000_000)
        if args.model == "joint":
            raise UserError("--sbs-record: joint learns all tasks at once, when the last has come; record another "
                            "--model, such as sgd")
        self.generator = torch.Generator().manual_seed((args.seed or 0) ^ 0x4EC)
        self.data: list[Any] = []  # the training data of each task so far
        self.places: list[dict[bytes, list[int]]] = []  # where in its task a picture is
        self.epochs: list[tuple[int, int]] = []  # (task, epoch) of each row, from 1
        self.rows: defaultdict[str, list[np.ndarray]] = defaultdict(list)  # of all M, and of the buffer
        self.arrays: dict[str, np.ndarray] = {}  # all that has no rows
        self.names: dict[str, np.ndarray] = {}  # of the classes
        self.speed: dict[str, LearningSpeed] = {}  # of the task under way
        self.hooks: list[SpeedHook] = []
        self.before: dict[str, Tensor] = {}  # counts at the end of the last epoch
        self.epoch = 0  # of the task under way, the last that has ended
        self.ended = 0  # the last task that has, from 1
        self.waiting: Row | None = None  # its own row, until it is written down

    # ---- what the model tells it

    def begin_task(self, model: Any, dataset: Any) -> None:
        """Watch the training steps of a new task."""
        task, data = model.current_task, dataset.train_loader.dataset
        if self.ended > task:
            raise UserError(f"--sbs-record {self.path}: the checkpoint's record goes on to task {self.ended}, "
                            f"and --start_from back to task {task + 1}; leave one of the two out")
        if len(self.data) < task:  # the run goes on from a checkpoint
            again = copy(dataset)
            again.c_task, again.test_loaders = -1, []
            with own_randomness(torch.Generator()):  # nothing is drawn here in a run that was not stopped
                while len(self.data) < task:
                    again.get_data_loaders()
                    self.data.append(again.train_loader.dataset)
        self.data[task:] = [data]
        self.epoch = 0
        if INDEX not in data.extra_return_fields:
            data.add_extra_return_field(INDEX, range(len(data.targets)))
        followed = SETTINGS if self.follows(task) else ()
        self.speed = {setting: LearningSpeed(len(data.targets)) for setting in followed}
        self.before = {setting: speed.count.clone() for setting, speed in self.speed.items()}
        self.hooks = [SpeedHook(model.net, speed, partial(self.predict, model, setting, task))
                      for setting, speed in self.speed.items()]
        if not self.epochs:
            self.say_cost(model.args, dataset)

    def follows(self, task: int) -> bool:
        """Whether a task, counted from 0, is among those that are recorded."""
        return self.tasks is None or task < self.tasks

    def say_cost(self, args: Any, dataset: Any) -> None:
        """Before the first step: what the run will spend on recording."""
        train, test = len(dataset.train_loader.dataset), len(dataset.test_loaders[-1].dataset)
        tasks, epochs = min(args.stop_after or dataset.N_TASKS, dataset.N_TASKS), args.n_epochs or 1
        images = images_passed(train, test, tasks, args)
        when = "epoch" if self.every == 1 else f"{self.every} epochs"
        say(f"recording to {self.path}: after every {when} a forward pass over earlier tasks and test data, about "
            f"{images:,} images in all beside {train * tasks * epochs:,} in training steps")

    def expect(self, inputs: Tensor, labels: Tensor, index: Tensor, epoch: int) -> None:
        """Announce the batch of the training step that comes."""
        for hook in self.hooks:
            hook.expect(inputs, labels, index, epoch)

    def end_epoch(self, model: Any, dataset: Any, epoch: int) -> None:
        """Take the row that the steps of the epoch have given, and if it is this epoch's turn add one to all M."""
        if self.epoch == epoch + 1:
            return  # some versions of Mammoth end an epoch twice
        self.epoch = epoch + 1
        self.waiting = {setting: np.packbits((speed.count.cpu() > self.before[setting].cpu()).numpy())
                        for setting, speed in self.speed.items()}
        self.before = {setting: speed.count.clone() for setting, speed in self.speed.items()}
        if (epoch + 1) % self.every == 0:
            self.add_rows(model, dataset)

    def close_task(self, model: Any, dataset: Any) -> None:
        """Before the method fills its buffer: measure no longer, and see to it that the last epoch has its row."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        data = dataset.train_loader.dataset
        data.extra_return_fields = tuple(name for name in data.extra_return_fields if name != INDEX)
        if self.waiting is not None:
            self.add_rows(model, dataset)
        task = model.current_task
        if not self.epoch or not self.follows(task):
            return
        with own_randomness(self.generator):
            for setting, bits in self.correct(model, self.batches(model, task), task).items():
                self.arrays[f"task{task + 1}_known{kind(setting=setting)}"] = bits
            for score in self.scores if task < model.n_tasks - 1 else ():
                self.arrays[f"task{task + 1}_{score}"] = SCORES[score](model, data).numpy()

    def end_task(self, model: Any, dataset: Any) -> None:
        """Add the task that ended and the buffer that it left, and write the file: whole, and anew after every task."""
        task, data = model.current_task, self.data[-1]  # the host has gone on to the next: this one counts from 1
        if not self.epoch:  # Mammoth's --start_from passes through tasks without training on them
            return
        if self.follows(task - 1):
            for ending, of in (("", data), ("_test", dataset.test_loaders[-1].dataset)):
                self.arrays[f"task{task}_labels{ending}"] = np.asarray(of.targets)
                places = getattr(of, "indexes", np.arange(len(of.targets)))
                self.arrays[f"task{task}_indices{ending}"] = np.asarray(places)
            for setting, speed in self.speed.items():
                self.arrays[f"task{task}_speed{kind(setting=setting)}"] = speed.value.numpy()
        held = self.look_into(getattr(model, "buffer", None))
        if self.follows(task - 1):
            self.arrays[f"task{task}_stored"] = held[-1].nonzero().flatten().numpy()
        self.names = class_names(dataset)
        self.ended = task
        self.write()

    def write(self) -> None:
        """The file, as it stands after the last task that has ended."""
        arrays: dict[str, Any] = {**self.arrays, "epochs": np.array(self.epochs), **self.names,
                                  **{name: np.stack(rows) for name, rows in self.rows.items()}}
        elsewhere = write_somewhere(self.path, lambda f: np.savez_compressed(f, **arrays), "record")[1]
        if elsewhere:
            warn(elsewhere)

    # ---- how it finds out

    @staticmethod
    def predict(model: Any, setting: str, task: int, outputs: Tensor) -> Tensor:
        """Classes predicted from a network's outputs: among those of a task, or of all tasks so far."""
        first, end = model.dataset.get_offsets(task)
        if setting == "class_il":
            first, end = 0, model.n_seen_classes
        return model.classify(outputs)[:, first:end].argmax(1) + first

    def add_rows(self, model: Any, dataset: Any) -> None:
        """Append the row of the epoch that has ended to M of every task so far, training and test data."""
        assert self.waiting is not None
        own, self.waiting = self.waiting, None
        task = model.current_task
        self.epochs.append((task + 1, self.epoch))
        with own_randomness(self.generator):  # of a host whose test images are read by workers
            for k, loader in enumerate(dataset.test_loaders[: task + 1 if self.tasks is None else self.tasks]):
                self.add_row(k, True, self.correct(model, ((batch[0], batch[1]) for batch in loader), k))
                self.add_row(k, False, own if k == task else self.correct(model, self.batches(model, k), k))

    def add_row(self, task: int, test: bool, row: Row) -> None:
        for setting, bits in row.items():
            self.rows[f"task{task + 1}_M{kind(test, setting)}"].append(bits)

    def batches(self, model: Any, task: int) -> Iterable[tuple[Tensor, Tensor]]:
        """A task's training data as evaluation sees them."""
        data, normalize = self.data[task], model.normalization_transform
        for index in torch.arange(len(data.targets)).split(CHUNK):
            images = not_augmented(data, index)
            yield normalize(images) if normalize else images, torch.as_tensor(data.targets)[index]

    @torch.no_grad()
    def correct(self, model: Any, batches: Iterable[tuple[Tensor, Tensor]], task: int) -> Row:
        """Which examples are right now, for both settings from one pass."""
        was_training = model.net.training
        model.net.eval()
        found: dict[str, list[Tensor]] = {setting: [] for setting in SETTINGS}
        for inputs, labels in batches:
            outputs = model.net(inputs.to(model.device))
            for setting, parts in found.items():
                parts.append(self.predict(model, setting, task, outputs).cpu() == labels)
        model.net.train(was_training)
        return {setting: np.packbits(torch.cat(parts).numpy()) for setting, parts in found.items()}

    def look_into(self, buffer: Any) -> list[Tensor]:
        """Find each stored picture in the tasks so far: a row of bits for each, zero for what is not stored."""
        for data in self.data[len(self.places) :]:
            found: defaultdict[bytes, list[int]] = defaultdict(list)
            for index in torch.arange(len(data.targets)).split(CHUNK):
                for i, key in zip(index.tolist(), keys(not_augmented(data, index)), strict=True):
                    found[key].append(i)
            self.places.append(found)
        held = [torch.zeros(len(data.targets), dtype=torch.bool) for data in self.data]
        if buffer is not None and not buffer.is_empty():
            taken: defaultdict[bytes, int] = defaultdict(int)
            for key in keys(buffer.examples[: len(buffer)]):
                at = [(task, i) for task, found in enumerate(self.places) for i in found.get(key, ())]
                if taken[key] < len(at):  # a picture may be there twice, and in tasks of other labels again
                    task, i = at[taken[key]]
                    held[task][i] = True
                taken[key] += 1
        for task, bits in enumerate(held):
            if f"task{task + 1}_labels" in self.arrays:
                self.rows[f"task{task + 1}_buffer"].append(np.packbits(bits.numpy()))
        return held

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that an epoch's end leaves, in types that a checkpoint loads with `weights_only=True`."""
        return {"ended": self.ended, "epochs": [list(pair) for pair in self.epochs], "epoch": self.epoch,
                "generator": self.generator.get_state(),
                "rows": {name: torch.from_numpy(np.stack(rows)) for name, rows in self.rows.items()},
                "arrays": {name: torch.from_numpy(array) for name, array in self.arrays.items()},
                "speed": {setting: speed.state_dict() for setting, speed in self.speed.items()},
                "waiting": None if self.waiting is None else
                {setting: torch.from_numpy(row) for setting, row in self.waiting.items()}}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from there: before the next task begins, or in the middle of one that has begun."""
        if state is None:
            raise UserError(f"--sbs-record {self.path}: the checkpoint has no record of what was before, as it was "
                            "saved without --sbs-record; leave it out, or start from the beginning")
        self.ended = state["ended"]
        self.epochs, self.epoch = [(task, epoch) for task, epoch in state["epochs"]], state["epoch"]
        self.generator.set_state(state["generator"])
        self.rows = defaultdict(list, {name: list(rows.numpy()) for name, rows in state["rows"].items()})
        self.arrays = {name: array.numpy() for name, array in state["arrays"].items()}
        waiting = state["waiting"]
        self.waiting = None if waiting is None else {setting: row.numpy() for setting, row in waiting.items()}
        for setting, speed in self.speed.items():
            if setting in state["speed"]:
                speed.load_state_dict(state["speed"][setting])
                self.before[setting] = speed.count.clone()
        if self.epochs and self.epochs[-1][0] == self.ended and not self.path.exists():
            self.write()  # no other task may end


def class_names(dataset: Any) -> dict[str, np.ndarray]:
    """What the host calls the classes, if it does."""
    try:
        return {"classes": np.array(dataset.get_class_names())}
    except (AttributeError, NotImplementedError):
        return {}


def keys(images: Tensor) -> Iterable[bytes]:
    """A digest of each picture, the same for bytes and for the floats that hosts make of them; features have rows."""
    as_it_is = images.dtype == torch.uint8 or images.dim() == 2
    pixels = images.cpu() if as_it_is else (images.cpu() * 255).round().to(torch.uint8)
    return (hashlib.blake2b(picture.numpy().tobytes(), digest_size=16).digest() for picture in pixels)


class Recorded(ContinualModel):
    """To be put before a method's class: trains as it does, and can be recorded."""

    recorder: Recorder | None = None

    @classmethod
    def get_parser(cls, parser: ArgumentParser) -> ArgumentParser:
        parser = super().get_parser(parser) or parser  # some of Mammoth's methods make one of their own
        add_record_args(parser)
        return parser

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.sbs_record:
            self.recorder = Recorder(self.args)

    def get_extra_state(self) -> dict[str, Any]:
        """For checkpoints of either host."""
        return {"record": self.recorder.state_dict() if self.recorder is not None else None}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        if self.recorder is not None:
            self.recorder.load_state_dict(state.get("record"))

    def classify(self, outputs: Tensor) -> Tensor:
        """The logits that predictions are read from. On Mammoth only RPC's are not the network's outputs."""
        of_host = getattr(super(), "classify", None)
        if of_host is not None:
            return of_host(outputs)
        head: Any = getattr(self, "rpchead", None)
        return outputs if head is None else outputs[:, :-1] @ head

    def normalized(self, data: Any, index: Tensor) -> Tensor:
        """Some of a task's images as evaluation sees them: not augmented."""
        images = fetch(data, index)[2]
        return self.normalization_transform(images) if self.normalization_transform else images

    def meta_begin_task(self, dataset: Any) -> None:
        super().meta_begin_task(dataset)
        if self.recorder is not None:
            self.recorder.begin_task(self, dataset)

    def meta_observe(self, *args: Any, **fields: Any) -> float | Tensor:
        if self.recorder is not None:
            self.recorder.expect(args[0], args[1], fields[INDEX], fields.get("epoch") or 0)
        return super().meta_observe(*args, **fields)

    def meta_end_epoch(self, epoch: int, dataset: Any) -> None:
        super().meta_end_epoch(epoch, dataset)
        if self.recorder is not None:
            self.recorder.end_epoch(self, dataset, epoch)

    def meta_end_task(self, dataset: Any) -> None:
        if self.recorder is not None:
            self.recorder.close_task(self, dataset)
        super().meta_end_task(dataset)
        if self.recorder is not None:
            self.recorder.end_task(self, dataset)


@cache
def recorded(method: type[ContinualModel]) -> type[ContinualModel]:
    """A stock method that can be recorded."""
    if issubclass(method, Recorded):
        return method
    bases = (Recorded, method) if host.is_embedded() or not calls_forward(method) else (ForwardIsCall, Recorded, method)
    return type(method.__name__, bases, {})
