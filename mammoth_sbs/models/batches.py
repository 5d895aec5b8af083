"""Examples of a task as batches, on either host."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate


def fetch(data: Any, index: Tensor) -> tuple[Tensor, ...]:
    """Some of a task's examples as one batch, `(inputs, labels, not_aug_inputs, ...)`."""
    return data.batch(index) if hasattr(data, "batch") else tuple(default_collate([data[int(i)] for i in index]))


def even_parts(index: Tensor, size: int) -> tuple[Tensor, ...]:
    """Batches of about `size`, none much smaller: batch normalisation would not know a batch of one."""
    return index.tensor_split(max(1, math.ceil(len(index) / size))) if len(index) else ()
