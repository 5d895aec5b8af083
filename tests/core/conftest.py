"""What the tests of the core share: a made-up task, and a sampler's choice from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mammoth_sbs.core.samplers import Task, get_sampler

NAMES = ["uniform", "max-entropy", "ipm", "gss", "herding", "lars", "ccs", "rainbow"]  # not those of speed
FIELDS = ("speed", "features", "logits", "losses", "uncertainty")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_task(n: int, d: int = 6, classes: int = 3, first_class: int = 0, seed: int = 0, scale: float = 1.0) -> Task:
    """Random, but like a network's: features not negative, logits a linear function of them."""
    g = seeded(seed)
    columns = torch.arange(n) % classes
    features = torch.randn(n, d, generator=g, dtype=torch.float64).add(0.5).relu()
    logits = scale * features @ torch.randn(d, classes, generator=g, dtype=torch.float64)
    losses = F.cross_entropy(logits, columns, reduction="none")
    speed, uncertainty = torch.rand(n, generator=g), torch.randint(5, (n,), generator=g) / 5
    return Task(columns + first_class, speed, features, logits, losses, first_class, uncertainty)


def choose(name: str, task: Task, k: int, seed: int = 0) -> list[int]:
    return get_sampler(name).choose(task, k, seeded(seed)).tolist()
