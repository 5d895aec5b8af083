"""Buffers with an equal quota per class, as X-DER and RPC keep them."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.buffer import Buffer


def reduce_classes(buffer: Buffer, quota: int) -> None:
    """Keep the first `quota` examples of every class."""
    content = dict(zip(buffer.used_attributes, buffer.get_all_data(), strict=True))
    buffer.empty()
    for c in content["labels"].unique():
        rows = torch.where(content["labels"] == c)[0][:quota]
        buffer.add_data(**{name: value[rows] for name, value in content.items()})


def new_class_quotas(buffer: Buffer, n_classes: int) -> Tensor:
    """The free room divided among the new classes; what does not divide goes to classes drawn at random."""
    room = buffer.buffer_size - buffer.num_seen_examples
    quota = torch.full((n_classes,), room // n_classes)
    quota[torch.randperm(n_classes)[: room % n_classes]] += 1
    return quota


def take_by_quota(classes: Tensor, quota: Tensor) -> Tensor:
    """Which of a batch to take, first come first served; `quota` goes down by what was taken."""
    same = classes[:, None] == classes[None, :]
    rank = torch.tril(same, -1).sum(1)  # how many of its class came before it in this batch
    take = rank < quota[classes]
    quota -= torch.bincount(classes[take], minlength=len(quota))
    return take
