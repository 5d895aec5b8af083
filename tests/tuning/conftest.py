"""What the tests of tuning share."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mammoth_sbs.models.base import content
from mammoth_sbs.tuning import rotation

from utils.training import train_task

SMALL = "--train_per_class 40 --buffer_size 40 --n_epochs 2"
CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 4"
AUTO = "--sbs-q auto --sbs-s auto --sbs-grid .2 .4"


def learn(it: SimpleNamespace, tasks: int = 1) -> rotation.Rotation:
    """Train some tasks, up to the moment before the last one's buffer is filled."""
    for t in range(tasks):
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        train_task(it.model, it.dataset, it.args)
        if t < tasks - 1:
            it.model.meta_end_task(it.dataset)
    it.model.close_task(it.dataset)
    return rotation.Rotation(it.model, it.dataset, it.model.describe(it.dataset.train_loader.dataset))


def everything(model: Any) -> list[torch.Tensor]:
    """All that a search must not change: network, buffer, optimiser, and every generator's state."""
    return [*(value.clone() for value in model.net.state_dict().values()),
            *(p.grad.clone() for p in model.net.parameters() if p.grad is not None),
            *(value.clone() for value in content(model.buffer).values()),
            torch.tensor([len(model.buffer), model.current_task, model.args.batch_size, model.net.training]),
            model.generator.get_state(), torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64)),
            torch.tensor(random.getstate()[1])]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
