"""Where files go, which device is used, and how randomness is seeded."""

from __future__ import annotations

import ctypes
import logging
import random
import sys
from functools import cache
from typing import Any

import numpy as np
import torch

from mammoth_sbs.errors import UserError, reason

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_state: dict[str, str | torch.device] = {"base_path": "./data/", "checkpoint_path": "./checkpoints/"}


def base_path(override: str | None = None) -> str:
    """The folder of data sets and results; remembers `override`."""
    if override is not None:
        _state["base_path"] = override
    return str(_state["base_path"])


def get_checkpoint_path(override: str | None = None) -> str:
    """The folder of checkpoints; remembers `override`."""
    if override is not None:
        _state["checkpoint_path"] = override
    return str(_state["checkpoint_path"])


def get_device(avail_devices: str | torch.device | None = None) -> torch.device:
    """The device to train on: as asked, else the first GPU, else the CPU."""
    if avail_devices is not None:
        name = str(avail_devices).split(",")[0]
        try:
            device = torch.device(f"cuda:{name}" if name.isdigit() else name)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as e:
            raise UserError(f"--device {avail_devices}: not usable here ({reason(e)}); try cpu") from None
        _state["device"] = device
    elif "device" not in _state:
        _state["device"] = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    found = _state["device"]
    assert isinstance(found, torch.device)
    return found


def set_precision(level: int, device: torch.device) -> None:
    """How exact matrix products of float32 are, as `--code_optimization` says; those of a CPU stay as they are."""
    if level > 1 and not (device.type == "cuda" and torch.cuda.is_bf16_supported()):
        raise UserError(f"--code_optimization {level}: needs a GPU with bfloat16, not {device}; give 0 or 1, "
                        "and --compile 1 for compiled code")
    precision = ("highest", "high", "medium", "medium")[level if device.type == "cuda" else 0]
    torch.set_float32_matmul_precision(precision)


@cache
def warn_once(*words: object) -> None:
    """A warning in Python's log, the first time only."""
    logging.warning(" ".join(map(str, words)))


def create_seeded_dataloader(args: Any, dataset: Any, non_verbose: bool = False, **how: Any) -> Any:
    """torch's loader for a data set of a method's own, whose order comes from `--seed`."""
    return torch.utils.data.DataLoader(dataset, **{"generator": torch.Generator().manual_seed(args.seed), **how})


def keep_memory() -> None:
    """Let the C library keep what it frees. It would give large blocks back to the system and ask for them again in
    every step, a quarter of the time that a small network takes."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:  # glibc
        set_option(M_MMAP_THRESHOLD, 32 << 20)  # the largest it takes
        set_option(M_TRIM_THRESHOLD, 2**31 - 1)
        set_option(M_TOP_PAD, 64 << 20)


def set_random_seed(seed: int) -> None:
    """Seed every generator that a method may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
