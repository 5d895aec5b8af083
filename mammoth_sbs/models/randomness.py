"""Randomness that belongs to somebody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def own_randomness(generator: torch.Generator) -> Iterator[None]:
    """Random draws inside come from `generator`; everybody else's go on afterwards as if nothing had happened."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    seed = int(torch.randint(2**31, (), generator=generator))
    torch.random.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
