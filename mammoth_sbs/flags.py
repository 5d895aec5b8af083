"""The flags that every `_sbs` model adds, and the defaults that make `--model derpp_sbs --dataset ...` enough."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import yaml

from mammoth_sbs.host import EMBEDDED

BUFFER_SIZE = 500


def fraction(flag: str) -> Callable[[str], float]:
    """A number in [0, 1); a percentage is a likely slip, so the answer names the fraction."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{flag} takes a fraction in [0, 1), not {text}") from None
        if not 0 <= value < 1:
            hint = f"; did you mean {value / 100:g}?" if 1 <= value < 100 else ""
            raise argparse.ArgumentTypeError(f"{flag} takes a fraction in [0, 1), not {text}{hint}")
        return value

    return parse


def add_sbs_args(parser: argparse.ArgumentParser, inserts_each_step: bool) -> None:
    """The plugin's own flags. `--sbs-during` is for methods whose stock version inserts at every step."""
    add = parser.add_argument
    add("--sampler", default="speed", help="how the buffer's examples are chosen: speed (SBS), uniform, ...")
    add("--sbs-q", type=fraction("--sbs-q"), default=0.2, help="fraction of quickest learned examples left out")
    add("--sbs-s", type=fraction("--sbs-s"), default=0.2, help="fraction of slowest learned examples left out")
    add("--sbs-scope", choices=["task", "seen"], default="task",
        help="learning speed counts predictions among the task's classes, or among all classes seen")
    if inserts_each_step:
        add("--sbs-during", choices=["closed", "stock"], default="closed",
            help="closed: nothing is inserted before the task ends (Algorithm 1); "
                 "stock: the method inserts as always, and at the end the task's examples are replaced")
    add("--sbs-record", metavar="FILE.npz",
        help="keep learning speeds, M and what was stored (costs a forward pass over old tasks per epoch)")


def published(stock: str, dataset: str | None) -> dict[str, Any]:
    """The method's `best` hyper-parameters on a data set, or nothing for one that is not listed."""
    with open(EMBEDDED / "models" / "config" / f"{stock}.yaml") as f:
        config = yaml.safe_load(f)
    return dict(config.get((dataset or "").replace("_", "-"), {}).get(BUFFER_SIZE, {}))
