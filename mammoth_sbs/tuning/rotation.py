"""The rotation task (paper, "Choosing q and s"): what a pair (q, s) is worth, tried on a copy of the model.

The copy gets the buffer that (q, s) would give, learns how images were turned as if that were the next task, by its
method's own replay, and is asked what it still knows of the task before. The model itself is never touched.
"""

from __future__ import annotations

import copy
import io
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mammoth_sbs.core.samplers import Sampler, Task
from mammoth_sbs.core.samplers.speed import Speed, by_share
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.base import INDEX, content, own_randomness
from mammoth_sbs.models.chosen import View, fetch
from mammoth_sbs.models.flags import TRIED
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK, NOT_OF_THE_RUN
from mammoth_sbs.tuning.pairs import Pair, Point, best, grid, rule, settled, tune_epochs
from mammoth_sbs.tuning.search import Journal, fingerprint, processes_for, search

from utils import augmentations
from utils.schedulers import get_scheduler

LOOK = 50  # steps after which a GPU's loss is looked at
TURNS = 4  # by 0, 90, 180 and 270 degrees


def turn(images: Tensor, turns: Tensor) -> Tensor:
    """Each image turned by its own multiple of 90 degrees."""
    turned = images.clone()
    for k in range(1, TURNS):
        turned[turns == k] = torch.rot90(images[turns == k], k, (-2, -1))
    return turned


def apply(transform: Any, images: Tensor) -> Tensor:
    """A host's transform on a batch; Mammoth's may be one for single images."""
    return images if transform is None else augmentations.apply_transform(images, transform)


def images_of(data: Any) -> Tensor:
    """A task's images as bytes, not augmented: the embedded host has them so, of another they are made."""
    if hasattr(data, "batch"):
        return data.data
    parts = torch.arange(len(data.targets)).split(256)
    return torch.cat([(fetch(data, index)[2] * 255).round().to(torch.uint8) for index in parts])


def held_out_tenth(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A tenth of each class, drawn at random, as a mask."""
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for c in labels.unique():
        members = (labels == c).nonzero().flatten()
        mask[members[torch.randperm(len(members), generator=generator)[: len(members) // 10]]] = True
    return mask


def clone(generator: torch.Generator) -> torch.Generator:
    """A generator that will draw the same numbers."""
    twin = torch.Generator()
    twin.set_state(generator.get_state())
    return twin


def percent(mask: Tensor) -> float:
    return 100 * int(mask.sum()) / max(len(mask), 1)


class Within(Sampler):
    """A sampler that sees some of the task's examples only."""

    name = "within"

    def __init__(self, sampler: Sampler, index: Tensor) -> None:
        self.sampler, self.index = sampler, index

    def choose(self, task: Task, k: int, generator: torch.Generator) -> Tensor:
        return self.index[self.sampler.choose(task.subset(self.index), k, generator)]

    def choose_per_class(self, task: Task, quotas: dict[int, int], generator: torch.Generator) -> Tensor:
        return self.index[self.sampler.choose_per_class(task.subset(self.index), quotas, generator)]


class Pictures:
    """The task's images between 0 and 1, upright or each with its turn.

    What a transform does comes before the turn: mirroring a turned image would make 90 degrees look like 270.
    """

    def __init__(self, images: Tensor, turns: Tensor) -> None:
        self.images, self.turns = images, turns
        self.height, self.width = images.shape[-2:]

    def upright(self, rows: Tensor, transform: Any = None) -> Tensor:
        return apply(transform, self.images[rows].float() / 255)

    def turned(self, rows: Tensor, transform: Any = None) -> Tensor:
        return turn(self.upright(rows, transform), self.turns[rows])


class Features(Pictures):
    """The same of a frozen trunk: what it says of the images, and of each with its turn. Nothing is augmented."""

    def __init__(self, dataset: Any, turns: Tensor) -> None:
        data = dataset.train_loader.dataset
        self.images, self.turns, self.of_turned = data.data, turns, data.data.clone()
        self.height, self.width = dataset.pictures.train.images.shape[-2:]
        for k in range(1, TURNS) if self.height == self.width else ():
            mine = turns == k
            self.of_turned[mine] = torch.from_numpy(dataset.turned(k, data.indexes[mine.numpy()])).float()

    def upright(self, rows: Tensor, transform: Any = None) -> Tensor:
        return self.images[rows]

    def turned(self, rows: Tensor, transform: Any = None) -> Tensor:
        return self.of_turned[rows]


class TurnedImages:
    """The rotation task's loader and its data set in one: some `rows` of the task's images, each with its turn."""

    def __init__(self, pictures: Pictures, rows: Tensor, first_class: int, transform: Any, batch_size: int,
                 seed: int) -> None:
        self.pictures, self.rows, self.first_class = pictures, rows, first_class
        self.transform, self.batch_size = transform, batch_size
        self.targets = pictures.turns[rows] + first_class
        self.generator = torch.Generator().manual_seed(seed)
        self.extra_return_fields: tuple[str, ...] = ()

    @property
    def dataset(self) -> TurnedImages:
        return self

    def add_extra_return_field(self, name: str, values: Any) -> None:
        """The one field that an `_sbs` model adds is the running number, which a batch carries anyway."""

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        for index in torch.randperm(len(self.rows), generator=self.generator).split(self.batch_size):
            if len(index) == 1:  # batch normalisation would not know a batch of one
                return
            rows = self.rows[index]
            yield self.pictures.turned(rows, self.transform), self.targets[index], self.pictures.turned(rows), index


class WithRotation(View):
    """The data set as a trial's model sees it: the tasks so far and the rotation task, each `width` classes wide."""

    def __init__(self, dataset: Any, loader: TurnedImages, tasks: int, width: int) -> None:
        super().__init__(dataset, loader)
        self.N_TASKS, self.N_CLASSES_PER_TASK, self.N_CLASSES = tasks, width, tasks * width
        self.c_task = tasks - 1
        self.test_loaders: list = []

    def get_offsets(self, task_idx: int | None = None) -> tuple[int, int]:
        task = self.c_task if task_idx is None else task_idx
        return task * self.N_CLASSES_PER_TASK, (task + 1) * self.N_CLASSES_PER_TASK


class Rotation:
    """What all trials at the end of a task share. Called with q and s, it is one trial."""

    def __init__(self, model: Any, dataset: Any, task: Task) -> None:
        self.model, self.dataset, self.task = model, dataset, task
        self.generator = clone(model.generator)  # the model's own is as it was when the search is over
        held_out = held_out_tenth(task.labels, self.generator)
        self.held_out, self.rest = (mask.nonzero().flatten() for mask in (held_out, ~held_out))
        if not held_out.any():
            raise UserError(f"--sbs-q, --sbs-s: to choose them a tenth of each class is held out, and no class of task "
                            f"{model.current_task + 1} has 10 examples; give numbers")
        turns = torch.randint(TURNS, (len(task),), generator=self.generator)
        with own_randomness(self.generator):
            self.pictures = Features(dataset, turns) if getattr(model.args, "frozen", False) else \
                Pictures(images_of(dataset.train_loader.dataset), turns)
        if self.pictures.height != self.pictures.width:
            raise UserError(f"--dataset {model.args.dataset}: the rotation task needs square images, not "
                            f"{self.pictures.height} x {self.pictures.width}; give --sbs-q and --sbs-s numbers")
        if not isinstance(getattr(model.net, "classifier", None), nn.Linear):
            raise UserError(f"--backbone {model.args.backbone}: has no linear `classifier` layer, which the rotation "
                            "task widens; give --sbs-q and --sbs-s numbers")
        offsets = [dataset.get_offsets(t) for t in range(model.current_task + 1)]
        self.tasks = len(offsets) + 1
        self.width = max(TURNS, *(end - first for first, end in offsets))
        # where the outputs of the classes seen so far go, and which of them are this task's
        self.place = torch.cat([torch.arange(end - first) + t * self.width for t, (first, end) in enumerate(offsets)])
        self.own = self.place[slice(*offsets[-1])]
        self.first_turn = (self.tasks - 1) * self.width
        self.known = self.correct(model)  # before the rotation task

    @property
    def epochs(self) -> int:
        return tune_epochs(self.model.args)

    @property
    def key(self) -> str:
        """Names everything that a trial's outcome depends on."""
        args = {name: value for name, value in vars(self.model.args).items()
                if name not in NOT_OF_THE_RUN | NOT_OF_THE_FIRST_TASK}
        return fingerprint(args, Point._fields, self.epochs, self.task.speed, self.generator.get_state(),
                           *self.model.net.state_dict().values(), *content(self.model.buffer).values())

    def __call__(self, q: float, s: float) -> Point:
        """Fill a copy's buffer for (q, s), let it learn the rotation task, and see what it knows."""
        start = time.perf_counter()
        with self.same_randomness() as generator:
            filled = self.copied(generator)
            filled.sampler = Within(Speed(q, s), self.rest)
            stored = filled.fill(self.dataset, self.task)
            trial, data = self.widened(filled, q, s)
            self.learn(trial, data)
            old, turned = self.correct(trial), self.correct(trial, turned=True)
        return Point(q, s, old=percent(old), rotation=percent(turned), forgotten=percent(~old[self.known]),
                     stored=len(stored), seconds=round(time.perf_counter() - start, 3))

    @contextmanager
    def same_randomness(self) -> Iterator[torch.Generator]:
        """Every trial draws the same numbers, and nobody else's are used up."""
        generator, device = clone(self.generator), self.model.device
        gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(gpus), own_randomness(generator):
            for gpu in gpus:
                with torch.cuda.device(gpu):
                    torch.cuda.manual_seed(0)
            yield generator

    def copied(self, generator: torch.Generator) -> Any:
        """The model with a network and a buffer of its own; data, arguments and records are shared, not copied."""
        model = self.model
        shared = [model.dataset, self.dataset, model.args, model.recorder, model.transform, model.loss]
        shared += [part for part in vars(model).values() if isinstance(part, ModuleType)]  # the solver in Mammoth's GEM
        memo: dict[int, Any] = {id(part): part for part in shared}
        return copy.deepcopy(model, memo | {id(model.generator): generator})

    def widened(self, filled: Any, q: float, s: float) -> tuple[Any, WithRotation]:
        """A model of the same method for the rotation task, with the filled one's network and buffer.

        It is built anew, on a data set that has the rotation task as its next: so all that a method derives from the
        numbers of tasks and classes fits.
        """
        args = filled.args
        loader = TurnedImages(self.pictures, self.rest, self.first_turn, filled.transform, args.batch_size,
                              int(torch.randint(2**31, ())))
        data = WithRotation(self.dataset, loader, self.tasks, self.width)
        net = filled.net
        old = net.classifier
        head = nn.Linear(old.in_features, data.N_CLASSES, bias=old.bias is not None).to(filled.device)
        with torch.no_grad():
            for new, known in zip(head.parameters(), old.parameters(), strict=True):
                new[self.place] = known[: len(self.place)]
        net.classifier = head
        milestones = [round(m * self.epochs / args.n_epochs) for m in args.lr_milestones or []]
        changed = {"n_epochs": self.epochs, "lr_milestones": milestones, "num_classes": data.N_CLASSES, "nowand": 1,
                   "sbs_q": q, "sbs_s": s, "sbs_record": None,
                   # never filled in a trial, so that its size only has to pass the method's own checks
                   "buffer_size": max(args.buffer_size, data.N_CLASSES)}
        transform = getattr(filled, "original_transform", filled.transform)  # Mammoth converts the one it is given
        with redirect_stdout(io.StringIO()):
            trial = type(filled)(net, filled.loss, Namespace(**{**vars(args), **changed}), transform, dataset=data)
        trial.to(filled.device)
        trial._current_task = self.tasks - 1
        trial.buffer = filled.buffer
        if hasattr(filled, "grads_cs"):  # Mammoth's GEM: a gradient for each task that has ended
            trial.grads_cs = [torch.zeros_like(trial.grads_da) for _ in filled.grads_cs]
        self.renumber(trial)
        return trial, data

    def renumber(self, trial: Any) -> None:
        """Put stored labels and logits where the widened head has them; new outputs are to stay as they now are."""
        buffer, n = trial.buffer, len(trial.buffer)
        stored = content(buffer)
        if "labels" in stored:
            buffer.labels[:n] = self.place.to(buffer.labels.device)[stored["labels"]]
        if "logits" in stored:
            wide = torch.zeros(len(buffer.logits), self.tasks * self.width, device=buffer.logits.device)
            for rows in torch.arange(n).split(256):
                images = apply(trial.normalization_transform, stored["examples"][rows])
                wide[rows] = trial.training_outputs(images).to(wide)
            wide[:n, self.place] = stored["logits"][:, : len(self.place)]
            buffer.logits = wide

    def learn(self, trial: Any, data: WithRotation) -> None:
        """The host's loop over epochs and batches, without its output."""
        trial.net.train()
        trial.meta_begin_task(data)
        scheduler, device = get_scheduler(trial, trial.args), trial.device
        steps = trial.get_debug_iters() if trial.args.debug_mode else len(data.train_loader)
        for epoch in range(self.epochs):
            trial.meta_begin_epoch(epoch, data)
            for i, (inputs, labels, not_aug, index) in zip(range(steps), data.train_loader, strict=False):
                loss = trial.meta_observe(inputs.to(device), labels.to(device), not_aug.to(device), epoch=epoch,
                                          **{INDEX: index.to(device)})
                # a diverged network knows nothing, and will score so; a GPU is not asked at every step
                if (isinstance(loss, float) or i % LOOK == 0) and not math.isfinite(loss):
                    return
            trial.meta_end_epoch(epoch, data)
            if scheduler is not None:
                scheduler.step()

    @torch.no_grad()
    def correct(self, model: Any, turned: bool = False) -> Tensor:
        """Which of the held-out tenth the model gets right: their classes, or how they were turned.

        Among the outputs of the task, or of all that stand for something, as `--sbs-scope` says.
        """
        widened = model is not self.model
        turns = torch.arange(TURNS) + self.first_turn
        own = self.own if widened else torch.arange(len(self.own)) + self.task.first_class
        columns = turns if turned else own
        if model.args.sbs_scope == "seen":
            columns = torch.cat([self.place, turns]) if widened else torch.arange(len(self.place))
        labels = self.pictures.turns if turned else self.task.labels - self.task.first_class
        truth = (turns if turned else own)[labels]
        show = self.pictures.turned if turned else self.pictures.upright
        was_training = model.net.training
        model.net.eval()
        right = []
        for rows in self.held_out.split(256):
            inputs = show(rows, model.normalization_transform)
            outputs = model(inputs.to(model.device)).cpu()[:, columns]
            right.append(columns[outputs.argmax(1)] == truth[rows])
        model.net.train(was_training)
        return torch.cat(right)


def choose(model: Any, dataset: Any, task: Task, part: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """q and s where the flags leave them open, and what they were chosen by.

    Finished points are kept beside `--shared_first_task`, if it is given, or a checkpoint after every epoch. `part`
    (i, n) is every n-th pair from the i-th only.
    """
    args = model.args
    typed = args.sbs_q, args.sbs_s
    if "share" in typed:
        share = args.buffer_size / (len(task) * model.n_tasks)
        typed = settled(typed, "share", by_share(share))
        if not set(typed) & set(TRIED):
            return {"q": typed[0], "s": typed[1], "share": share, "points": []}
    trials = Rotation(model, dataset, task)
    shared = getattr(args, "shared_first_task", None)
    file = f"{shared}.points.jsonl" if shared else getattr(getattr(model, "run", None), "points", None)
    journal = Journal(file, trials.key if file else "")

    def points_of(pairs: list[Pair]) -> list[Point]:
        return search(trials, pairs, journal, processes_for(model.device), silent=args.non_verbose)

    found: dict[str, Any] = {"epochs": trials.epochs, "held_out": len(trials.held_out), "before": percent(trials.known)}
    points: list[Point] = []
    if "rule" in typed:
        points = points_of([(0.0, 0.0)])
        typed = settled(typed, "rule", rule(points[0].forgotten / 100))
    if "auto" in typed:
        points = points_of(grid(*typed, args.sbs_grid)[part[0] :: part[1]])
        typed = best(points)[:2]
    return {"q": typed[0], "s": typed[1], **found, "points": [point._asdict() for point in points]}
