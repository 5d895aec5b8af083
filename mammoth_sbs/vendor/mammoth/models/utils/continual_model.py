"""The base of all methods: a network, an optimiser, and what happens at each step, epoch and task."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn, optim

from backbone import MammothBackbone
from datasets.utils.continual_dataset import ContinualDataset
from utils.augmentations import Transform
from utils.buffer import Buffer
from utils.conf import get_device


class ContinualModel(nn.Module):
    """A method learns from the stream in `observe`; the `meta_` wrappers keep the counters right around it."""

    NAME: ClassVar[str]
    COMPATIBILITY: ClassVar[list[str]] = ["class-il", "domain-il", "task-il"]
    AVAIL_OPTIMS: ClassVar[list[str]] = ["sgd", "adam", "adamw", "adagrad"]
    buffer: Buffer
    run: Any = None  # the `utils.run.Run` that it learns in

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        """Add the method's flags; `parser.set_defaults` may set any other flag's default."""
        return parser

    def __init__(self, backbone: MammothBackbone, loss: Callable[..., Tensor], args: Namespace,
                 transform: Transform | None, dataset: ContinualDataset) -> None:
        super().__init__()
        self.net, self.loss, self.args, self.transform, self.dataset = backbone, loss, args, transform, dataset
        self.original_transform, self.SETTING = transform, dataset.SETTING
        self.normalization_transform = dataset.get_normalization_transform()
        self.device = get_device()
        self.num_classes = self.N_CLASSES = dataset.N_CLASSES
        self.n_tasks = self.N_TASKS = dataset.N_TASKS
        self.cpt = self.classes_per_task = dataset.N_CLASSES_PER_TASK
        self.net.to(self.device)
        self._current_task = 0
        self.opt = self.get_optimizer()
        self._n_past_classes = self._n_seen_classes = -1
        self.task_iteration = self.epoch_iteration = 0  # steps made in the task, in the epoch
        self._observe_fields = set(inspect.signature(self.observe).parameters)

    @property
    def current_task(self) -> int:
        """Index of the task being learned, from 0."""
        return self._current_task

    @property
    def n_past_classes(self) -> int:
        """Number of classes of the tasks before this one."""
        return self._n_past_classes

    @property
    def n_seen_classes(self) -> int:
        """Number of classes up to and with this task."""
        return self._n_seen_classes

    @property
    def n_classes_current_task(self) -> int:
        return self._n_seen_classes - self._n_past_classes

    @property
    def n_remaining_classes(self) -> int:
        return self.num_classes - self._n_seen_classes

    def get_parameters(self) -> Iterator[nn.Parameter]:
        """What the optimiser changes."""
        return self.net.parameters()

    def get_optimizer(self, params: Iterable[Tensor] | None = None, lr: float | None = None) -> optim.Optimizer:
        """A new optimiser for the current task, as the flags say."""
        args, params = self.args, list(self.get_parameters() if params is None else params)
        if lr is None:
            later = args.lr_later if self._current_task else None
            lr = later[min(self._current_task, len(later)) - 1] if later else args.lr
        if args.optimizer == "sgd":
            return optim.SGD(params, lr=lr, weight_decay=args.optim_wd, momentum=args.optim_mom,
                             nesterov=args.optim_nesterov)
        kinds = {"adam": optim.Adam, "adamw": optim.AdamW, "adagrad": optim.Adagrad}
        return kinds[args.optimizer](params, lr=lr, weight_decay=args.optim_wd)

    def get_offsets(self, task: int) -> tuple[int, int]:
        return self.dataset.get_offsets(task)

    def get_debug_iters(self) -> int:
        """Steps per epoch with `--debug_mode`."""
        return 5

    def classify(self, outputs: Tensor) -> Tensor:
        """The logits that predictions are read from, given the network's outputs."""
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """The logits that are evaluated."""
        return self.classify(self.net(x))

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        """One training step on a batch of the stream; returns the loss."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it learns")

    def number(self, loss: Tensor) -> float | Tensor:
        """The loss that `observe` returns: on a GPU as it is, for a step must not wait until it is known."""
        return loss.item() if loss.device.type == "cpu" else loss.detach()

    def begin_task(self, dataset: Any) -> None:
        """Called before each task."""

    def end_task(self, dataset: Any) -> None:
        """Called after each task, before evaluation."""

    def begin_epoch(self, epoch: int, dataset: ContinualDataset) -> None:
        """Called before each epoch."""

    def end_epoch(self, epoch: int, dataset: ContinualDataset) -> None:
        """Called after each epoch."""

    def end_eval(self, dataset: Any, accs: tuple[list[float], list[float]]) -> None:
        """Called with the accuracies after each task."""

    def meta_observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, **fields: Any) -> float | Tensor:
        """`observe`, given those extra fields that it asks for."""
        if "kwargs" not in self._observe_fields:
            fields = {name: value for name, value in fields.items() if name in self._observe_fields}
        loss = self.observe(inputs, labels, not_aug_inputs, **fields)
        self.task_iteration += 1
        self.epoch_iteration += 1
        return loss["loss"] if isinstance(loss, dict) else loss

    def meta_begin_task(self, dataset: ContinualDataset) -> None:
        """`begin_task`, with counters and a new optimiser."""
        self._n_past_classes, self._n_seen_classes = self.get_offsets(self._current_task)
        self.task_iteration = self.epoch_iteration = 0
        self.opt = self.get_optimizer()
        self.begin_task(dataset)

    def meta_end_task(self, dataset: ContinualDataset) -> None:
        """`end_task`, then the next task is the current one."""
        self.end_task(dataset)
        self._current_task += 1

    def meta_end_eval(self, dataset: ContinualDataset, accs: tuple[list[float], list[float]]) -> None:
        """`end_eval`, in which the task that was just learned is the current one."""
        self._current_task -= 1
        self.end_eval(dataset, accs)
        self._current_task += 1

    def meta_begin_epoch(self, epoch: int, dataset: ContinualDataset) -> None:
        self.epoch_iteration = 0
        self.begin_epoch(epoch, dataset)

    def meta_end_epoch(self, epoch: int, dataset: ContinualDataset) -> None:
        self.end_epoch(epoch, dataset)


def gradient(net: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of `loss` as one vector; parameters it does not reach count as zero."""
    params = list(net.parameters())
    grads = torch.autograd.grad(loss, params, allow_unused=True)
    pairs = zip(params, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])
