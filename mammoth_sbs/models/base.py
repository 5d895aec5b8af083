"""The layer shared by all `_sbs` models: measure learning speed during a task, choose the buffer at its end."""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mammoth_sbs import host
from mammoth_sbs.core.dynamics import DYNAMICS, Dynamics
from mammoth_sbs.core.samplers import Sampler, Task, get_sampler
from mammoth_sbs.core.samplers.speed import Speed
from mammoth_sbs.core.speed import Learned, LearningSpeed, SpeedHook
from mammoth_sbs.core.streams import STREAM_SAMPLERS
from mammoth_sbs.errors import UserError, one_line
from mammoth_sbs.host import BUFFER_SIZE, published
from mammoth_sbs.models.chosen import even_parts, fetch
from mammoth_sbs.models.flags import MOST, OPEN, add_sbs_args, unused
from mammoth_sbs.models.randomness import own_randomness
from mammoth_sbs.models.record import INDEX, Recorded
from mammoth_sbs.models.scores import SCORES
from mammoth_sbs.watch import say, warn

from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer

if not host.is_embedded():  # a patched checkout's own main.py knows nothing of our errors
    sys.excepthook = one_line


@contextmanager
def closed(buffer: Buffer) -> Iterator[None]:
    """While it lasts, the buffer takes no examples."""
    vars(buffer)["add_data"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del vars(buffer)["add_data"]


def content(buffer: Buffer) -> dict[str, Tensor]:
    """What the buffer holds, slot by slot."""
    return {name: getattr(buffer, name)[: len(buffer)] for name in buffer.attributes if hasattr(buffer, name)}


def tuning() -> ModuleType:
    """The room where q and s are chosen. It builds on the models, so they call it by name, and only if they must."""
    return importlib.import_module("mammoth_sbs.tuning")


class SpeedSampled(Recorded):
    """To be put before a stock method's class: trains as the stock method does, fills the buffer by a sampler."""

    stock: ClassVar[str]  # the stock method's name
    stores: ClassVar[tuple[str, ...]] = ()  # what the method stores with an image: labels, logits, task_labels
    inserts_each_step: ClassVar[bool] = False

    @classmethod
    def get_parser(cls, parser: ArgumentParser) -> ArgumentParser:
        defaults = {"buffer_size": BUFFER_SIZE, **published(cls.stock, parser.get_default("dataset"))}
        saved = [name for name in defaults if parser.get_default(name) is not None]  # in Mammoth, by a checkpoint
        add_sbs_args(parser, cls.inserts_each_step)  # first, as the help shows them
        super().get_parser(parser)
        parser.set_defaults(**{name: value for name, value in defaults.items() if name not in saved})
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None) -> None:
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.sampler = self.build_sampler()
        if args.buffer_size < self.n_tasks:
            raise UserError(f"--buffer_size {args.buffer_size}: too small for a share of {self.n_tasks} tasks each; "
                            f"give at least {self.n_tasks}")
        if args.n_epochs == 1 and "speed" in self.sampler.needs and args.sbs_score == "speed":
            warn("with --n_epochs 1 learning speed is 0 or 1 and cannot rank examples (the paper's limitation); give "
                 "more epochs")
        self.generator = torch.Generator().manual_seed((args.seed or 0) ^ 0x5B5)
        self.speed: LearningSpeed | None = None
        self.dynamics: Dynamics | None = None  # for a --sbs-score that is measured on the way
        self.hook: SpeedHook | None = None
        self.learned: Learned | None = None  # the task that ended last, until the next begins
        self.choice: dict[str, Any] | None = None  # of q and s, where the flags leave them open
        self._history: list[dict] = []
        self._seen: int | None = None  # by the buffer of a loaded checkpoint
        chosen = {"buffer_size": BUFFER_SIZE, **published(self.stock, args.dataset)}
        say(f"{self.NAME} on {args.dataset}: " + ", ".join(f"{name} {getattr(args, name)}" for name in chosen))

    def build_sampler(self) -> Sampler:
        """The sampler that the flags ask for."""
        if self.args.sampler.replace("_", "-") in STREAM_SAMPLERS:
            raise UserError(f"--sampler {self.args.sampler}: is for methods that insert at every step; take er_sbs, "
                            "der_sbs or derpp_sbs")
        sampler = get_sampler(self.args.sampler)
        if self.leaves_open:
            tuning().check(self.args)
        q, s = (0.0 if side in OPEN else side for side in (self.args.sbs_q, self.args.sbs_s))
        if sampler.takes:
            if q + s > MOST + 1e-9:
                raise UserError(f"--sbs-q {q:g}, --sbs-s {s:g}: q + s must be at most {MOST:g}, or hardly anything is "
                                "left to draw from")
            build: Any = type(sampler)
            sampler = build(**{side: value for side, value in (("q", q), ("s", s)) if side in sampler.takes})
        for line in unused(self.args, sampler.takes, "speed" in sampler.needs):
            warn(line)
        return sampler

    @property
    def leaves_open(self) -> bool:
        """Whether q or s is to be chosen."""
        return bool({self.args.sbs_q, self.args.sbs_s} & set(OPEN))

    # ---- learning speed, from the forward passes that happen anyway

    def classify(self, outputs: Tensor) -> Tensor:
        """The logits that the method's predictions are read from, given its network's outputs."""
        return outputs

    def predict(self, outputs: Tensor, task: int | None = None) -> Tensor:
        """Predicted classes: among those of the task (`--sbs-scope task`) or of all tasks seen."""
        first, end = self.dataset.get_offsets(self.current_task if task is None else task)
        if self.args.sbs_scope == "seen":
            first, end = 0, self.n_seen_classes
        return self.classify(outputs)[:, first:end].argmax(1) + first

    def follow(self, index: Tensor, labels: Tensor, outputs: Tensor) -> None:
        """Show a batch to `--sbs-score`, if it is one that training dynamics give."""
        assert self.dynamics is not None
        first, end = self.n_past_classes, self.n_seen_classes
        self.dynamics.update(index, labels - first, self.classify(outputs)[:, first:end])

    def begin_task(self, dataset: Any) -> None:
        data = dataset.train_loader.dataset
        if not hasattr(data, "add_extra_return_field"):
            raise UserError(f"--dataset {self.args.dataset}: its examples cannot carry an index, which SBS needs; "
                            "build its loaders with store_masked_loaders")
        labels = torch.as_tensor(data.targets)
        low, high = int(labels.min()), int(labels.max())
        if low < self.n_past_classes or high >= self.n_seen_classes:
            raise UserError(f"--dataset {self.args.dataset}: task {self.current_task + 1} has labels {low} to {high}, "
                            f"outside its classes {self.n_past_classes} to {self.n_seen_classes - 1}")
        data.add_extra_return_field(INDEX, range(len(labels)))
        self.speed, self.learned = LearningSpeed(len(labels)), None
        if kind := DYNAMICS.get(self.args.sbs_score):
            self.dynamics = kind(len(labels))
        self.hook = SpeedHook(self.net, self.speed, self.predict, self.follow if kind else None)
        self._before = {name: value.clone() for name, value in content(self.buffer).items() if name != "examples"}
        super().begin_task(dataset)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None,
                sbs_index: Tensor | None = None) -> float | Tensor:
        assert self.hook is not None
        if sbs_index is None:
            raise UserError(f"--dataset {self.args.dataset}: its batches carry no index, which SBS needs; "
                            "build its loaders with store_masked_loaders")
        self.hook.expect(inputs, labels, sbs_index, epoch or 0)
        if self.inserts_each_step and self.args.sbs_during == "closed":
            with closed(self.buffer):
                loss = super().observe(inputs, labels, not_aug_inputs, epoch=epoch)
        else:
            loss = super().observe(inputs, labels, not_aug_inputs, epoch=epoch)
        if self.hook.waiting:
            raise UserError(f"--model {self.NAME}: a training step made no forward pass on its batch, so there is no "
                            "learning speed")
        return loss

    # ---- the buffer, at the end of the task

    def close_task(self, dataset: Any) -> None:
        """Measure no longer."""
        assert self.hook is not None
        self.hook.remove()
        self.hook = None
        data = dataset.train_loader.dataset
        data.extra_return_fields = tuple(name for name in data.extra_return_fields if name != INDEX)

    def choose_band(self, dataset: Any, task: Task) -> None:
        """q and s from the rotation task, where the flags leave them open: once, or at each task that has a next."""
        args = self.args
        again = args.sbs_tune == "each" and self.current_task < self.n_tasks - 1
        if self.leaves_open and (self.choice is None or again):
            self.choice = {"task": self.current_task + 1, **tuning().choose(self, dataset, task)}
            self.sampler = Speed(self.choice["q"], self.choice["s"])

    def end_task(self, dataset: Any) -> None:
        assert self.speed is not None
        self.close_task(dataset)
        if self.speed.epochs == 0:  # Mammoth's --start_from passes through tasks without training on them
            super().end_task(dataset)
        else:
            data = dataset.train_loader.dataset
            task = self.describe(data)
            self.choose_band(dataset, task)
            with own_randomness(self.generator):
                stored = self.fill(dataset, task)
            self.report(task, stored, data)
        self.speed = None

    def describe(self, data: Any) -> Task:
        """The task's examples with just what the sampler needs; a forward pass only if it needs one."""
        assert self.speed is not None
        task = Task(torch.as_tensor(data.targets), speed=self.speed.value, first_class=self.n_past_classes)
        if self.sampler.needs - {"speed", "uncertainty"}:
            task.features, task.logits = self.features_and_logits(data)
            task.losses = torch.nn.functional.cross_entropy(task.logits, task.labels - task.first_class,
                                                            reduction="none")
        if self.dynamics is not None:
            task.speed = self.dynamics.value
        elif self.args.sbs_score != "speed":
            with own_randomness(self.generator):
                task.speed = SCORES[self.args.sbs_score](self, data)
        if "uncertainty" in self.sampler.needs:
            with own_randomness(self.generator):
                task.uncertainty = 1 - SCORES["uncertainty"](self, data)
        return task

    @torch.no_grad()
    def features_and_logits(self, data: Any) -> tuple[Tensor, Tensor]:
        """One pass over the task without augmentation: what the last layer sees, and its logits of the task."""
        classifier = getattr(self.net, "classifier", None)
        if classifier is None:
            raise UserError(f"--sampler {self.sampler.name} needs features, and --backbone {self.args.backbone} has no "
                            "`classifier` layer to take them from; use --sampler speed or another network")
        features, logits = [], []
        handle = classifier.register_forward_pre_hook(lambda _, given: features.append(given[0].float().cpu()))
        was_training = self.net.training
        self.net.eval()
        for index in torch.arange(len(data.targets)).split(256):
            outputs = self.net(self.normalized(data, index).to(self.device))
            logits.append(self.classify(outputs)[:, self.n_past_classes : self.n_seen_classes].float().cpu())
        self.net.train(was_training)
        handle.remove()
        return torch.cat(features), torch.cat(logits)

    def fill(self, dataset: Any, task: Task) -> Tensor:
        """Give the task its share |B|/t: old examples leave at random, new ones are the sampler's choice."""
        size, old = self.args.buffer_size, self.old_content()
        n_old = len(old["examples"]) if old else 0
        share = max(size // (self.current_task + 1), size - n_old)  # room that old tasks do not use is used
        chosen = self.sampler.choose(task, share, self.generator)
        stay = torch.randperm(n_old, generator=self.generator)[: size - len(chosen)].sort().values
        seen = self.buffer.num_seen_examples
        self.buffer.empty()
        if len(stay):
            self.buffer.add_data(**{name: value[stay] for name, value in old.items()})
        for index in even_parts(chosen, self.args.batch_size):
            self.buffer.add_data(**self.to_store(fetch(dataset.train_loader.dataset, index)))
        if len(self.buffer) == size:  # a stock reservoir goes on where it was
            self.buffer.num_seen_examples = max(seen, size)
        return chosen

    def old_content(self) -> dict[str, Tensor]:
        """What the buffer holds of earlier tasks: with `--sbs-during stock`, not the slots written in this one."""
        now = content(self.buffer)
        n_before = len(next(iter(self._before.values()))) if self._before else 0
        old = torch.zeros(len(self.buffer), dtype=torch.bool)
        old[:n_before] = True
        for name, before in self._before.items():
            old[:n_before] &= (now[name][:n_before] == before).flatten(1).all(1).cpu() if before.dim() > 1 \
                else (now[name][:n_before] == before).cpu()
        return {name: value[old] for name, value in now.items()}

    def to_store(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """What goes into the buffer: the image, and beside it what the stock method keeps."""
        inputs, labels, not_aug_inputs = batch[:3]
        beside = {"labels": labels, "task_labels": torch.full_like(labels, self.current_task)}
        if "logits" in self.stores:
            beside["logits"] = self.training_outputs(inputs)
        return {"examples": not_aug_inputs, **{name: beside[name] for name in self.stores}}

    @torch.no_grad()
    def training_outputs(self, inputs: Tensor) -> Tensor:
        """Outputs as a training step sees them: augmented images, in training mode; the network learns nothing."""
        was_training = self.net.training
        self.net.train()
        with bn_track_stats(self, False):
            outputs = self.net(inputs.to(self.device))
        self.net.train(was_training)
        return outputs

    # ---- seeing it

    def report(self, task: Task, stored: Tensor, data: Any) -> None:
        """One line per task, and the same for the run's JSON file and for whoever watches."""
        assert self.speed is not None and task.speed is not None
        speed, n = self.speed.value, len(task)
        low, middle, high = torch.quantile(speed, torch.tensor([0.25, 0.5, 0.75])).tolist()
        entry: dict[str, Any] = {"task": self.current_task + 1, "examples": n, "epochs": self.speed.epochs,
                                 "train_accuracy": 100 * self.speed.accuracy, "speed_mean": float(speed.mean()),
                                 "speed_quartiles": [low, middle, high], "stored": len(stored),
                                 "stored_speed_mean": float(speed[stored].mean()) if len(stored) else None}
        line = (f"SBS task {entry['task']}: {n} examples, learning speed {entry['speed_mean']:.3f} "
                f"(quartiles {low:.2f} {middle:.2f} {high:.2f}), ")
        if isinstance(self.sampler, Speed):
            quick, slow = self.sampler.band.left_out(n)
            limits = self.sampler.band.limits(task.speed)  # in learning speed, or in --sbs-score
            entry |= {"left_out_quick": quick, "left_out_slow": slow, "band": list(limits)}
            if self.choice is not None:
                entry["choice"] = self.choice if self.choice["task"] == entry["task"] else None
                line += f"q {self.choice['q']:g} and s {self.choice['s']:g} chosen at task {self.choice['task']}, "
            line += f"left out {quick} quickest and {slow} slowest, band {limits[0]:.2f} to {limits[1]:.2f}, "
        at = f" at {entry['stored_speed_mean']:.3f}" if len(stored) else ""
        say(line + f"{len(stored)} stored{at}")
        self._history.append(entry)
        band = self.sampler.band if isinstance(self.sampler, Speed) else None
        indices = torch.as_tensor(np.asarray(data.indexes))
        self.learned = Learned(entry["task"], speed, task.labels, indices, stored, band, entry)

    def run_info(self) -> dict:
        """For the run's JSON file."""
        args = self.args
        return {"sbs": {"sampler": args.sampler, "q": args.sbs_q, "s": args.sbs_s, "scope": args.sbs_scope,
                        "score": args.sbs_score, "tasks": self._history}}

    # ---- checkpoints

    def get_extra_state(self) -> dict:
        within = self.speed is not None  # a task
        return {**super().get_extra_state(), "generator": self.generator.get_state(), "history": self._history,
                "choice": self.choice, "seen": self.buffer.num_seen_examples,
                "before": {name: value.cpu() for name, value in self._before.items()} if within else None,
                "speed": self.speed.state_dict() if self.speed is not None else None,
                "dynamics": self.dynamics.state_dict() if self.dynamics is not None and within else None}

    def set_extra_state(self, state: dict) -> None:
        super().set_extra_state(state)
        self.generator.set_state(state["generator"])
        self._history = state["history"]
        self._seen = state.get("seen")
        self.choice = state.get("choice")
        if self.choice is not None:
            self.sampler = Speed(self.choice["q"], self.choice["s"])
        if state["speed"] is not None and self.speed is not None:
            self.speed.load_state_dict(state["speed"])
            self._before = {name: value.to(self.buffer.device) for name, value in state["before"].items()}
            if self.dynamics is not None:
                found = state.get("dynamics") or {}
                if found.keys() != vars(self.dynamics).keys():
                    raise UserError(f"--sbs-score {self.args.sbs_score}: is measured while a task is learned, and the "
                                    "first task that is shared was learned without; give another --shared_first_task")
                self.dynamics.load_state_dict(found)

    def load_buffer(self, buffer: Any) -> None:
        """Mammoth's way to load a buffer, which takes every buffer for full; called after `set_extra_state`."""
        super().load_buffer(buffer)  # type: ignore[misc]
        if self._seen is not None:
            self.buffer.num_seen_examples = self._seen
