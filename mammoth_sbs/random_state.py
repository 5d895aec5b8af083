"""The state of all random generators that a method may draw from: Python's, NumPy's and torch's."""

from __future__ import annotations

import random

import numpy as np
import torch


def get_random_state() -> dict:
    """It, in types that a checkpoint loads with `weights_only=True`."""
    name, keys, *rest = np.random.get_state(legacy=True)
    assert name == "MT19937" and isinstance(keys, np.ndarray)
    state = {"torch": torch.get_rng_state(), "numpy": (torch.from_numpy(keys.astype(np.int64)), *rest)}
    version, internal, gauss = random.getstate()
    state["python"] = (version, torch.tensor(internal), gauss)
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict) -> None:
    """Undo of `get_random_state`."""
    torch.set_rng_state(state["torch"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
