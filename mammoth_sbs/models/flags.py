"""The flags that every `_sbs` model adds, and the defaults that make `--model derpp_sbs --dataset ...` enough."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from mammoth_sbs import host
from mammoth_sbs.core.samplers import sampler_names

BUFFER_SIZE = 500
OPEN = ("auto", "rule")  # what --sbs-q and --sbs-s take in place of a number
GRID = (0.0, 0.2, 0.4, 0.6)  # that auto tries, on each side


def fraction(flag: str, words: Sequence[str] = ()) -> Callable[[str], float | str]:
    """A number in [0, 1), or one of `words`; a percentage is a likely slip, so the answer names the fraction."""
    takes = ", ".join(["a fraction in [0, 1)", *words])

    def parse(text: str) -> float | str:
        if text in words:
            return text
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{flag} takes {takes}, not {text}") from None
        if not 0 <= value < 1:
            hint = f"; did you mean {value / 100:g}?" if 1 <= value < 100 else ""
            raise argparse.ArgumentTypeError(f"{flag} takes {takes}, not {text}{hint}")
        return value

    return parse


def epochs(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text}")
    return int(text)


def add_sbs_args(parser: argparse.ArgumentParser, inserts_each_step: bool) -> None:
    """The plugin's own flags. `--sbs-during` is for methods whose stock version inserts at every step."""

    def add(flag: str, **kwargs: Any) -> None:
        """Mammoth's parser takes flags as they are written, so there both ways are written."""
        other = () if host.is_embedded() or "-" not in flag[2:] else (f"--{flag[2:].replace('-', '_')}",)
        parser.add_argument(flag, *other, **kwargs)

    add("--sampler", default="speed", help=f"how the buffer's examples are chosen: {', '.join(sampler_names())}")
    for side, which in (("q", "quickest"), ("s", "slowest")):
        add(f"--sbs-{side}", type=fraction(f"--sbs-{side}", OPEN), default=0.2,
            help=f"fraction of {which} learned examples left out; auto: searched on the rotation task at the end of "
                 "the first task; rule: from what is forgotten there with a uniform buffer")
    add("--sbs-grid", type=fraction("--sbs-grid"), nargs="+", default=list(GRID), metavar="FRACTION",
        help="the values that auto tries, on each side (default: 0 .2 .4 .6); pairs with q + s < 1 count")
    add("--sbs-tune", choices=["first", "each"], default="first",
        help="auto and rule choose once, or anew at the end of each task")
    add("--sbs-tune-epochs", type=epochs, metavar="N",
        help="epochs of the rotation task (default: a tenth of --n_epochs, at least 1)")
    add("--sbs-score", choices=["speed", "loss", "uncertainty", "c-score"], default="speed",
        help="rank by learning speed, final loss, consistency under augmentation, or accuracy when held out")
    add("--sbs-scope", choices=["task", "seen"], default="task",
        help="learning speed counts predictions among the task's classes, or among all classes seen")
    if inserts_each_step:
        add("--sbs-during", choices=["closed", "stock"], default="closed",
            help="closed: nothing is inserted before the task ends (Algorithm 1); "
                 "stock: the method inserts as always, and at the end the task's examples are replaced")


def add_record_args(parser: argparse.ArgumentParser) -> None:
    """For every model that can be recorded."""
    add = parser.add_argument
    add("--sbs-record", metavar="FILE.npz",
        help="keep M of every task through all later ones, learning speeds and what the buffer held (costs a forward "
             "pass over earlier tasks and test data per epoch)")
    add("--sbs-record-every", type=epochs, metavar="K",
        help="add to M after every K-th epoch and the last one only (default: 1)")
    add("--sbs-record-scores", nargs="+", choices=["loss", "uncertainty", "c-score"], metavar="SCORE",
        help="keep these scores of each task's examples too: loss, uncertainty, c-score (costs three more trainings)")


def published(stock: str, dataset: str | None) -> dict[str, Any]:
    """The method's `best` hyper-parameters on a data set, or nothing for one that is not listed."""
    with open(host.EMBEDDED / "models" / "config" / f"{stock}.yaml") as f:
        config = yaml.safe_load(f)
    return dict(config.get((dataset or "").replace("_", "-"), {}).get(BUFFER_SIZE, {}))
