"""A data set cut into tasks, and the loader that feeds one task to training."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mammoth_sbs.errors import UserError
from mammoth_sbs.few import per_class

from datasets.utils import streams
from datasets.utils.features import features_of, turned_features
from datasets.utils.sources import Images, Source, load
from datasets.utils.tasks import (
    ROTATIONS,
    check_second_task,
    class_order_file,
    custom_class_order,
    make_second_task,
)
from utils.augmentations import Augment, DeNormalize, Normalize, there, to_float
from utils.conf import base_path


class MammothDatasetWrapper:
    """A task's images as one uint8 tensor, or their features, with labels, places in the data set, and extra fields."""

    def __init__(self, data: Tensor, targets: Tensor, indexes: np.ndarray, transform: Augment) -> None:
        self.data, self.targets, self.indexes, self.transform = data, targets, indexes, transform
        self.extra_return_fields: tuple[str, ...] = ()
        self._there: dict[str, tuple[Any, Tensor]] = {}  # by name: what was brought to a GPU, and what it became

    def __len__(self) -> int:
        return len(self.targets)

    def add_extra_return_field(self, field_name: str, field_value: Sequence | Tensor) -> None:
        """Let every batch carry `field_value` of its examples, as a further element."""
        setattr(self, field_name, field_value)
        self.extra_return_fields += (field_name,)

    def keep(self, mask: Tensor) -> None:
        """Forget the other examples."""
        self.data, self.targets, self.indexes = self.data[mask], self.targets[mask], self.indexes[mask.numpy()]

    def extend(self, images: Tensor, labels: Tensor) -> None:
        """Further examples for this task, such as those of a buffer. They have no place in the whole data set."""
        self.data = torch.cat([self.data, images.to(self.data)])
        self.targets = torch.cat([self.targets, labels.to(self.targets)])
        self.indexes = np.concatenate([self.indexes, np.full(len(labels), -1)])

    def batch(self, index: Tensor, generator: Generator | None = None,
              device: torch.device | str = "cpu") -> tuple[Tensor, ...]:
        """`(inputs, labels, not_aug_inputs, *extra fields)` of some examples, cut and augmented on the device."""
        index = there(index, device)
        images = self._on("data", device).index_select(0, index)
        extra = (self._field(name, index, device) for name in self.extra_return_fields)
        inputs = self.transform(images, generator)
        not_aug = inputs if images.is_floating_point() else to_float(images)  # features are as they are
        return (inputs, self._on("targets", device)[index], not_aug, *extra)

    def not_augmented(self, index: Tensor) -> Tensor:
        """The images of a batch without augmentation, between 0 and 1."""
        return to_float(self.data[index])

    def _on(self, name: str, device: torch.device | str) -> Tensor:
        """A tensor of all examples on a device: it is brought to a GPU once."""
        value = getattr(self, name)
        if torch.device(device).type == "cpu":
            return torch.as_tensor(value)
        if name not in self._there or self._there[name][0] is not value:
            self._there[name] = value, torch.as_tensor(value).to(device)
        return self._there[name][1]

    def _field(self, name: str, index: Tensor, device: torch.device | str) -> Tensor:
        value = getattr(self, name)
        if isinstance(value, range):  # a running number needs no memory
            return index * value.step + value.start
        return self._on(name, device)[index]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(field[0] for field in self.batch(torch.tensor([index])))


class TaskLoader:
    """Batches of a task. Order and augmentation come from its own generator, whatever else draws random numbers."""

    def __init__(self, dataset: MammothDatasetWrapper, batch_size: int, shuffle: bool = False,
                 drop_last: bool = False, seed: int = 0) -> None:
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.generator = Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size if self.drop_last else -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.on("cpu")

    def on(self, device: torch.device | str) -> Iterator[tuple[Tensor, ...]]:
        """An epoch's batches, made on the device that learns from them."""
        n = len(self.dataset)
        order = torch.randperm(n, generator=self.generator) if self.shuffle else torch.arange(n)
        for i in range(len(self)):
            yield self.dataset.batch(order[i * self.batch_size : (i + 1) * self.batch_size], self.generator, device)


def batches_on(loader: Any, device: torch.device | str) -> Iterator[Any]:
    """`loader.on(device)`; of a loader that a method has put in place of ours, what it gives."""
    return loader.on(device) if isinstance(loader, TaskLoader) else iter(loader)


class ContinualDataset:
    """A data set whose classes arrive task by task. A subclass names its source and its numbers."""

    NAME: ClassVar[str]
    SETTING: str = "class-il"
    SOURCE: ClassVar[str]
    MEAN: tuple[float, ...] | None = None
    STD: tuple[float, ...] | None = None
    SIZE: tuple[int, int]
    N_TASKS: int
    N_CLASSES: int
    N_CLASSES_PER_TASK: int
    PADDING: int = 0  # of the random crop
    FLIP: bool = False
    DEFAULTS: ClassVar[dict[str, Any]] = {}  # of command-line flags: backbone, n_epochs, batch_size, ...
    FLAGS: ClassVar[dict[str, tuple[Any, Any, str]]] = {}  # of its own: default, type and help
    domains: tuple[np.ndarray, np.ndarray, list[str]] | None = None  # of training and test images, if tasks are these

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.source = self.get_source()
        self.frozen = bool(getattr(args, "frozen", False))  # the trunk: images are its features
        if self.frozen and getattr(args, "augment", "none") != "none":
            raise UserError(f"--augment {args.augment}: it changes pictures, and --frozen 1 keeps features only; leave "
                            "one of the two out")
        self.use_trunk(args)
        found = len(self.source.classes)
        if args.max_classes is not None and not 1 < args.max_classes <= found:
            raise UserError(f"--max_classes {args.max_classes}: {self.NAME} has {found} classes; give 2 to {found}")
        self.N_CLASSES = args.max_classes or found
        self.N_TASKS = 1 if args.joint else (args.n_tasks or self.N_TASKS)
        if self.domains is None and (self.N_TASKS < 1 or self.N_CLASSES % self.N_TASKS):
            fits = [n for n in range(1, self.N_CLASSES + 1) if self.N_CLASSES % n == 0]
            raise UserError(f"--n_tasks {self.N_TASKS} does not divide the {self.N_CLASSES} classes of {self.NAME}; "
                            f"use one of {', '.join(map(str, fits))}")
        self.N_CLASSES_PER_TASK = self.N_CLASSES if self.domains else self.N_CLASSES // self.N_TASKS
        self.input_shape = self.source.train.images.shape[1:]
        self.class_order = np.arange(found)
        if args.second_task == ROTATIONS and self.frozen:
            raise UserError(f"--second_task {ROTATIONS}: it turns images, and --frozen 1 keeps features only; leave "
                            "one of the two out")
        if args.second_task:
            check_second_task(args, self.N_TASKS, self.N_CLASSES_PER_TASK, self.input_shape[1:])
        if args.custom_class_order:
            self.class_order = custom_class_order(args.custom_class_order, self.source.classes, self.N_CLASSES)
        elif args.class_order:
            self.class_order = class_order_file(args.class_order, self.source.classes, self.N_CLASSES)
        elif args.permute_classes:
            self.class_order = np.random.RandomState(args.seed % 2**32).permutation(found)
        streams.check(args, self.domains)
        self.check_sizes()
        self.train_loader: TaskLoader
        self.test_loaders: list[TaskLoader] = []
        self.c_task = -1

    def use_trunk(self, args: Namespace) -> None:
        """For a trunk: images as its weights saw them, if it has any, in three channels; frozen, its features."""
        from backbone.pretrained import has_trunk, normalization  # which imports this package

        if not has_trunk(args):
            return
        if self.frozen or args.pretrained or args.weights:
            self.MEAN, self.STD = normalization(args)
        elif self.source.train.images.shape[1] == 1:  # normalised per channel, they have as many as these numbers
            self.MEAN, self.STD = (self.MEAN or (0.0,)) * 3, (self.STD or (1.0,)) * 3
        if self.frozen:
            self.pictures = self.source
            self.source, self.MEAN, self.STD = features_of(self.source, self.SOURCE, args), None, None

    def turned(self, turns: int, rows: np.ndarray) -> np.ndarray:
        """With a frozen trunk: the features of some training images after so many quarter turns. They are computed for
        all that runs with these flags learn from, whatever the seed, and kept."""
        used, pictures = self.used(), self.pictures
        if len(used) < len(pictures.train.labels):
            pictures = pictures._replace(train=Images(pictures.train.images[used], pictures.train.labels[used]))
        return turned_features(pictures, self.SOURCE, self.args, turns)[np.searchsorted(used, rows)]

    def used(self) -> np.ndarray:
        """Rows of the training images that some task may have; the same for every seed."""
        train, args = self.source.train, self.args
        rows = np.arange(len(train.labels))
        if args.train_per_class and not args.validation:
            rows = per_class(grouped(train, self, 0), args.train_per_class, 0)
        in_order = np.array_equal(self.class_order, np.arange(len(self.class_order)))
        return rows[train.labels[rows] < self.N_CLASSES] if in_order else rows

    def get_source(self) -> Source:
        """The images and labels."""
        return load(self.SOURCE, base_path())

    def train_counts(self) -> np.ndarray:
        """How many images there are to train on, by class: without those held out by `--validation`."""
        labels = self.class_order[self.source.train.labels]
        counts = np.bincount(labels, minlength=len(self.class_order))
        if self.args.validation:
            counts -= np.bincount(labels[held_out(labels, self.args)], minlength=len(counts))
        return counts[: self.N_CLASSES]

    def check_sizes(self) -> None:
        """One line for flags that ask for more images than there are."""
        args, counts = self.args, self.train_counts()
        if counts.min() < 1:
            raise UserError(f"--validation {args.validation:g}: leaves no image of some class to train on; give less")
        if args.train_per_class:
            if args.train_per_class > counts.min():
                raise UserError(f"--train_per_class {args.train_per_class}: a class of {self.NAME} has {counts.min()} "
                                "images to train on; give at most that")
            counts = np.full_like(counts, args.train_per_class)
        fewest = np.bincount(self.source.test.labels).min()
        if args.test_per_class and args.test_per_class > fewest and not args.validation:
            raise UserError(f"--test_per_class {args.test_per_class}: a class of {self.NAME} has {fewest} test images; "
                            "give at most that")
        if args.batch_size > counts.sum():
            raise UserError(f"--batch_size {args.batch_size}: there are {counts.sum()} images to train on in all; give "
                            "at most that")
        if args.drop_last and args.imbalance:
            raise UserError("--drop_last 1: with --imbalance a task of rare classes may have less than a batch; leave "
                            "it out")
        smallest = counts.reshape(1 if self.domains else self.N_TASKS, -1).sum(1).min()
        if args.drop_last and args.batch_size > smallest:
            raise UserError(f"--drop_last 1: a task has {smallest} images, less than a batch; give --batch_size "
                            f"{smallest} or less")

    def get_offsets(self, task_idx: int | None = None) -> tuple[int, int]:
        """The first class of a task and the one after its last."""
        task = 0 if self.domains else self.c_task if task_idx is None else task_idx
        return task * self.N_CLASSES_PER_TASK, (task + 1) * self.N_CLASSES_PER_TASK

    def get_data_loaders(self) -> tuple[TaskLoader, TaskLoader]:
        """Go to the next task; its loaders become `train_loader` and the last of `test_loaders`."""
        return store_masked_loaders(self.source.train, self.source.test, self)

    def get_normalization_transform(self) -> Normalize | None:
        return Normalize(self.MEAN, self.STD) if self.MEAN and self.STD else None

    def get_denormalization_transform(self) -> DeNormalize:
        channels = self.input_shape[0]
        return DeNormalize(self.MEAN or (0.0,) * channels, self.STD or (1.0,) * channels)

    def get_transform(self) -> Augment:
        """The augmentation of training, for batches; features have none."""
        if self.frozen:
            return Augment(None)
        return Augment(self.get_normalization_transform(), self.PADDING, self.FLIP)

    @staticmethod
    def get_loss() -> Callable[..., Tensor]:
        return F.cross_entropy

    def get_class_names(self) -> list[str]:
        """Names in the order in which the tasks bring the classes."""
        return [self.source.classes[c] for c in np.argsort(self.class_order)][: self.N_CLASSES]


def held_out(labels: np.ndarray, args: Namespace) -> np.ndarray:
    """The rows that `--validation` takes: so many per cent of each class, or below 1 that fraction."""
    fraction = args.validation / 100 if args.validation >= 1 else args.validation
    return per_class(labels, float(fraction), args.seed)


def grouped(part: Images, setting: ContinualDataset, i: int) -> np.ndarray:
    """What a few images are taken of: each class, and where tasks are domains, each class of each."""
    return part.labels if setting.domains is None else setting.domains[i] * len(setting.class_order) + part.labels


def store_masked_loaders(train: Images, test: Images, setting: ContinualDataset) -> tuple[TaskLoader, TaskLoader]:
    """Cut the next task out of the whole data: only its images are copied out of the (memory-mapped) whole."""
    args = setting.args
    setting.c_task += 1
    second = args.second_task if setting.c_task == 1 else None
    first, end = setting.get_offsets(0 if second == ROTATIONS else None)
    labels = setting.class_order[train.labels]
    groups, test_groups = grouped(train, setting, 0), grouped(test, setting, 1)
    rows = np.arange(len(labels))
    test_data, test_labels = test.images, setting.class_order[test.labels]
    test_rows = np.arange(len(test_labels))
    if args.validation:  # a part of the training data takes the place of the test set
        test_data, test_labels, test_rows = train.images, labels, held_out(labels, args)
        test_groups = groups
        rows = np.setdiff1d(rows, test_rows)
    if args.train_per_class:  # the same few images for every seed, split and order of classes
        rows = rows[per_class(groups[rows], args.train_per_class, 0)]
    if args.test_per_class:
        test_rows = test_rows[per_class(test_groups[test_rows], args.test_per_class, 0)]
    rows = rows[labels[rows] < setting.N_CLASSES]
    if args.noise_rate:
        labels = streams.relabelled(labels, rows, args)
    if args.imbalance:
        rows = streams.long_tail(labels, rows, args)
    if args.blurry or args.drift:
        rows = streams.part(labels, rows, args, setting.c_task, setting.N_CLASSES_PER_TASK, setting.N_TASKS)
    else:
        rows = rows[(labels[rows] >= first) & (labels[rows] < end)]
    test_rows = test_rows[(test_labels[test_rows] >= first) & (test_labels[test_rows] < end)]
    if setting.domains:
        rows, test_rows = (part[of[part] // len(setting.class_order) == setting.c_task]
                           for part, of in ((rows, groups), (test_rows, test_groups)))

    def wrap(data: np.ndarray, labels: np.ndarray, rows: np.ndarray, transform: Augment) -> MammothDatasetWrapper:
        images = torch.from_numpy(data[rows])
        images = images.float() if setting.frozen else images  # in the cache, features have half precision
        return MammothDatasetWrapper(images, torch.from_numpy(labels[rows]), rows, transform)

    train_set = wrap(train.images, labels, rows, setting.get_transform())
    test_set = wrap(test_data, test_labels, test_rows, Augment(setting.get_normalization_transform()))
    seed = (args.seed * 1_000_003 + setting.c_task) % 2**63  # a task's order does not depend on what came before
    if second:
        for i, part in enumerate((train_set, test_set)):
            make_second_task(second, part, *setting.get_offsets(), seed + i)
    setting.train_loader = TaskLoader(train_set, args.batch_size, shuffle=not args.drift, drop_last=args.drop_last,
                                      seed=seed)
    setting.test_loaders.append(TaskLoader(test_set, max(args.batch_size, 256)))
    return setting.train_loader, setting.test_loaders[-1]
