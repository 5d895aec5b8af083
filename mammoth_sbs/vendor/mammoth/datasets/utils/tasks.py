"""Tasks other than the next classes in line: classes in an order of one's own, and what may follow a first task."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.values import shown

from utils.augmentations import Augment

if TYPE_CHECKING:
    from datasets.utils.continual_dataset import MammothDatasetWrapper

TURNS = 3  # by 90, 180 and 270 degrees
ROTATIONS, RANDOM_LABELS = SECOND_TASKS = ("rotations", "random-labels")


def custom_class_order(text: str, names: Sequence[str], count: int) -> np.ndarray:
    """The label that each class gets when `count` classes arrive in this order: numbers, ranges (0-24) and names.

    Classes that are not named get labels that no task has.
    """
    words = text.split(",") if "," in text or re.fullmatch(r"\d+-\d+", text) else text.split("-")
    order: list[int] = []
    for word in (word.strip() for word in words):
        first, _, last = word.partition("-")
        if word in names:
            order.append(list(names).index(word))
        elif re.fullmatch(r"\d+(-\d+)?", word) and max(int(first), int(last or 0)) < len(names):
            step = 1 if int(last or first) >= int(first) else -1
            order += range(int(first), int(last or first) + step, step)
        else:
            raise UserError(f"--custom_class_order: {word!r} is no class; there are 0 to {len(names) - 1}, or by name "
                            f"{names[0]}, {names[1]}, ...")
    return labels_in_order(order, len(names), count, "--custom_class_order")


def labels_in_order(order: list[int], found: int, count: int, who: str) -> np.ndarray:
    """The label of each of the `found` classes, if those that are used arrive in this order."""
    twice = [number for number in order if order.count(number) > 1]
    if twice:
        raise UserError(f"{who}: class {twice[0]} is named twice")
    if len(order) != count:
        raise UserError(f"{who} names {len(order)} classes, and {count} are used; name as many, or give "
                        f"--max_classes {len(order)}")
    rest = [number for number in range(found) if number not in order]
    return np.argsort(order + rest)


def class_order_file(path: str, names: Sequence[str], count: int) -> np.ndarray:
    """Likewise from a file: a class per line, by name or number; what is behind # does not count."""
    try:
        lines = Path(path).read_text(encoding="utf-8").removeprefix("\ufeff").splitlines()
    except (OSError, ValueError) as e:
        raise UserError(f"--class_order {path}: {reason(e)}; give a file with a class per line") from None
    order: list[int] = []
    for i, line in enumerate(lines, 1):
        word = line.strip() if line.strip() in names else line.partition("#")[0].strip()
        if word in names:
            order.append(list(names).index(word))
        elif word.isdecimal() and int(word) < len(names):
            order.append(int(word))
        elif word:
            raise UserError(f"--class_order {path}: line {i}: {shown(word)} is no class; there are 0 to "
                            f"{len(names) - 1}, or by name {names[0]}, {names[1]}, ...")
    return labels_in_order(order, len(names), count, f"--class_order {path}")


def check_second_task(args: Namespace, tasks: int, classes_per_task: int, size: Sequence[int]) -> None:
    """Whether there is a second task that can be what `--second_task` asks for."""
    if tasks < 2:
        raise UserError(f"--second_task {args.second_task}: there is one task; give --n_tasks 2 or more")
    if args.second_task == ROTATIONS and (classes_per_task < TURNS or size[0] != size[1]):
        raise UserError(f"--second_task {ROTATIONS}: needs square images and tasks of at least {TURNS} classes, not "
                        f"{size[0]} x {size[1]} and {classes_per_task}")


def make_second_task(kind: str, data: MammothDatasetWrapper, first: int, end: int, seed: int) -> None:
    """Replace a task: by its own images, each turned, and the turn as its class; or by labels drawn at random."""
    generator = np.random.RandomState(seed % 2**32)
    if kind == RANDOM_LABELS:
        data.targets = torch.from_numpy(generator.randint(first, end, len(data)))
        return
    turns = generator.randint(1, TURNS + 1, len(data))
    for k in range(1, TURNS + 1):
        data.data[turns == k] = torch.rot90(data.data[turns == k], k, (-2, -1))
    data.targets = torch.from_numpy(turns + first - 1)
    data.transform = Augment(data.transform.normalize, data.transform.padding)  # a mirror would make 90 degrees 270
