"""The replay buffer: a fixed number of slots, filled by reservoir sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mammoth_sbs.errors import UserError

from utils.augmentations import Transform, there


class Buffer:
    """Holds examples and whatever a method stores beside them, in tensors of `buffer_size` rows."""

    attributes = ("examples", "labels", "logits", "task_labels")
    examples: Tensor
    labels: Tensor
    logits: Tensor
    task_labels: Tensor

    def __init__(self, buffer_size: int, device: torch.device | str = "cpu",
                 sample_selection_strategy: str = "reservoir", **_: Any) -> None:
        if sample_selection_strategy != "reservoir":
            raise UserError(f"a buffer that is filled by {sample_selection_strategy}: this host has reservoir sampling "
                            "only; run this method on Mammoth itself")
        self.buffer_size, self.device = buffer_size, device
        self.num_seen_examples = 0

    def __len__(self) -> int:
        return min(self.num_seen_examples, self.buffer_size)

    @property
    def used_attributes(self) -> list[str]:
        """What this method stores."""
        return [name for name in self.attributes if hasattr(self, name)]

    def is_empty(self) -> bool:
        return self.num_seen_examples == 0

    def is_full(self) -> bool:
        return self.num_seen_examples >= self.buffer_size

    def empty(self) -> None:
        """Forget everything, the number of examples seen included."""
        for name in self.used_attributes:
            delattr(self, name)
        self.num_seen_examples = 0

    def add_data(self, examples: Tensor, labels: Tensor | None = None, logits: Tensor | None = None,
                 task_labels: Tensor | None = None) -> None:
        """Offer a batch to the reservoir: the n-th example ever seen takes a slot with probability size / n."""
        fields = {"examples": examples, "labels": labels, "logits": logits, "task_labels": task_labels}
        given = {name: value for name, value in fields.items() if value is not None}
        for name, value in given.items():
            if not hasattr(self, name):
                dtype = torch.int64 if name.endswith("labels") else torch.float32
                setattr(self, name, torch.zeros((self.buffer_size, *value.shape[1:]), dtype=dtype, device=self.device))
        seen = self.num_seen_examples + np.arange(len(examples))
        slots = seen.copy()
        late = seen >= self.buffer_size
        if late.any():
            slots[late] = np.random.randint(0, seen[late] + 1)
        self.num_seen_examples += len(examples)
        # of two examples that drew the same slot, the later one stays: unique() keeps the first of the reversed
        slots, last = np.unique(slots[::-1], return_index=True)
        rows = (len(examples) - 1 - last)[slots < self.buffer_size]
        slots = slots[slots < self.buffer_size]
        if len(slots):
            index, source = torch.from_numpy(slots), torch.from_numpy(rows)
            for name, value in given.items():
                target = getattr(self, name)
                chosen = value.detach()[there(source, value.device)]
                target[there(index, target.device)] = there(chosen, target.device).to(target.dtype)

    def get_data(self, size: int, transform: Transform | None = None, return_index: bool = False,
                 device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """`size` examples (or all, if there are fewer) drawn without replacement, with what is stored beside them."""
        index = self.draw(size)
        data = self.get_data_by_index(index, transform, device)
        return (there(index, device or self.device), *data) if return_index else data

    def draw(self, size: int) -> Tensor:
        """That many slots in use (or all, if there are fewer), without replacement."""
        return torch.from_numpy(np.random.choice(len(self), size=min(size, len(self)), replace=False))

    def get_data_by_index(self, indexes: Tensor, transform: Transform | None = None,
                          device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """The content of some slots."""
        indexes = there(indexes, self.device)
        if indexes.dtype == torch.bool:  # a mask
            indexes = indexes.nonzero().flatten()
        first, *rest = (there(getattr(self, name).index_select(0, indexes), device or self.device)
                        for name in self.used_attributes)
        return (transform(first) if transform else first, *rest)

    def get_all_data(self, transform: Transform | None = None,
                     device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """The content of all slots in use."""
        return self.get_data_by_index(torch.arange(len(self)), transform, device)

    def to(self, device: torch.device | str) -> Buffer:
        """Move what is stored."""
        self.device = device
        for name in self.used_attributes:
            setattr(self, name, getattr(self, name).to(device))
        return self

    def serialize(self) -> dict[str, Tensor | int]:
        """Content for a checkpoint."""
        content: dict[str, Tensor | int] = {name: getattr(self, name).cpu() for name in self.used_attributes}
        return {**content, "num_seen_examples": self.num_seen_examples}

    def load(self, content: dict) -> None:
        """Undo of `serialize`."""
        self.empty()
        self.num_seen_examples = content["num_seen_examples"]
        for name in content.keys() - {"num_seen_examples"}:
            if name not in self.attributes or len(content[name]) < len(self):
                raise ValueError(f"the buffer's {name} are not {len(self)}")
            setattr(self, name, content[name].to(self.device))


@torch.no_grad()
def fill_buffer(buffer: Buffer, dataset: Any, t_idx: int, net: Any = None, use_herding: bool = False,
                required_attributes: list[str] | None = None, normalize_features: bool = False,
                extend_equalize_buffer: bool = False) -> None:
    """Give every class seen an equal quota: cut old classes to it; draw the new ones at random (GEM), or by herding on
    the features of `net` (iCaRL). With `extend_equalize_buffer` the buffer grows to a multiple of the classes."""
    required = required_attributes or ["examples", "labels"]
    old, seen = dataset.get_offsets(t_idx)
    if extend_equalize_buffer:
        buffer.buffer_size = -(-dataset.args.buffer_size // seen) * seen
    domains = t_idx + 1 if getattr(dataset, "SETTING", "") == "domain-il" else 1  # each has all classes
    quota = buffer.buffer_size // (seen * domains)
    kept = dict(zip(buffer.used_attributes, buffer.get_all_data(), strict=True)) if not buffer.is_empty() else {}
    buffer.empty()
    for c in range(old) if kept else ():
        rows = torch.where(kept["labels"] == c)[0][:quota]
        if len(rows):
            buffer.add_data(**{name: value[rows] for name, value in kept.items()})
    for group in (kept["task_labels"] * seen + kept["labels"]).unique() if domains > 1 else ():
        rows = torch.where(kept["task_labels"] * seen + kept["labels"] == group)[0][:quota]
        buffer.add_data(**{name: value[rows] for name, value in kept.items()})
    data = dataset.train_loader.dataset
    if (data.targets < old).any():  # what `icarl_replay` has put there
        data.keep(data.targets >= old)
    for c in data.targets.unique():
        rows = torch.where(data.targets == c)[0]
        if net is None:
            logits = None
            rows = rows[torch.randperm(len(rows))[:quota]]
        else:
            logits, features = _outputs(net, dataset, data, rows)
            chosen = _herded(features, quota, normalize_features) if use_herding else torch.randperm(len(rows))[:quota]
            rows, logits = rows[chosen], torch.sigmoid(logits[chosen])
        _, labels, examples = data.batch(rows)[:3]
        given = {"examples": examples, "labels": labels, "logits": logits,
                 "task_labels": torch.full((len(rows),), t_idx)}
        buffer.add_data(**{name: given[name] for name in required})


def _outputs(net: Any, dataset: Any, data: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features of some of a task's images as evaluation sees them."""
    was_training, normalize = net.training, dataset.get_normalization_transform()
    net.eval()
    parts = []
    for index in rows.split(256):
        images = data.batch(index)[2].to(next(net.parameters()).device)
        features = net(normalize(images) if normalize else images, returnt="features")
        parts.append((net.classifier(features).cpu(), features.cpu()))
    net.train(was_training)
    logits, features = (torch.cat(part) for part in zip(*parts, strict=True))
    return logits, features


def _herded(features: Tensor, count: int, normalized: bool) -> Tensor:
    """iCaRL's herding: one by one, the example that brings the mean of the chosen nearest to the mean of all."""
    features = features / features.norm(dim=1, keepdim=True) if normalized else features.clone()
    mean, total = features.mean(0), torch.zeros_like(features[0])
    chosen: list[int] = []
    for n in range(1, min(count, len(features)) + 1):
        distance = (mean - (features + total) / n).norm(dim=1)
        distance[chosen] = torch.inf
        chosen.append(int(distance.argmin()))
        total = total + features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.int64)


def icarl_replay(self: Any, dataset: Any, val_set_split: float = 0) -> None:
    """Put the buffer's examples into the task's training data, as iCaRL trains on both alike."""
    if val_set_split:
        raise UserError(f"--model {self.args.model}: its buffer is to be split into training and validation data, "
                        "which this host does not do; run it on Mammoth itself")
    if self.current_task > 0:
        examples, labels = self.buffer.get_all_data()[:2]
        dataset.train_loader.dataset.extend((examples * 255).round().to(torch.uint8), labels)
