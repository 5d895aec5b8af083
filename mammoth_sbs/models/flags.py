"""The flags that every `_sbs` model adds, and the defaults that make `--model derpp_sbs --dataset ...` enough."""

from __future__ import annotations

import argparse
from typing import Any

from mammoth_sbs import host
from mammoth_sbs.core.samplers import sampler_names
from mammoth_sbs.values import at_least, number, text

OPEN = ("auto", "rule")  # what --sbs-q and --sbs-s take in place of a number
DEFAULT = 0.2  # the paper's q = s, "SBS-fix"
MOST = 0.95  # of q + s: a twentieth of a task at the least to draw from
GRID = (0.0, 0.2, 0.4, 0.6)  # that auto tries, on each side


def add_sbs_args(parser: argparse.ArgumentParser, inserts_each_step: bool) -> None:
    """The plugin's own flags. `--sbs-during` is for methods whose stock version inserts at every step."""

    def add(flag: str, **kwargs: Any) -> None:
        """Mammoth's parser takes flags as they are written, so there both ways are written."""
        other = () if host.is_embedded() or "-" not in flag[2:] else (f"--{flag[2:].replace('-', '_')}",)
        parser.add_argument(flag, *other, **kwargs)

    add("--sampler", type=text, default="speed",
        help=f"how the buffer's examples are chosen: {', '.join(sampler_names())}")
    for side, which in (("q", "quickest"), ("s", "slowest")):
        add(f"--sbs-{side}", type=number(0, MOST, words=OPEN), default=DEFAULT,
            help=f"fraction of {which} learned examples left out; auto: searched on the rotation task at the end of "
                 "the first task; rule: from what is forgotten there with a uniform buffer")
    add("--sbs-grid", type=number(0, MOST), nargs="+", default=list(GRID), metavar="FRACTION",
        help="the values that auto tries, on each side (default: 0 .2 .4 .6); pairs with q + s up to "
             f"{MOST:g} count")
    add("--sbs-tune", choices=["first", "each"], default="first",
        help="auto and rule choose once, or anew at the end of each task")
    add("--sbs-tune-epochs", type=at_least(1), metavar="N",
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
    add("--sbs-record", type=text, metavar="FILE.npz",
        help="keep M of every task through all later ones, learning speeds and what the buffer held (costs a forward "
             "pass over earlier tasks and test data per epoch)")
    add("--sbs-record-every", type=at_least(1), metavar="K",
        help="add to M after every K-th epoch and the last one only (default: 1)")
    add("--sbs-record-tasks", type=at_least(1), metavar="N",
        help="follow the first N tasks only, through all tasks (default: every task)")
    add("--sbs-record-scores", nargs="+", choices=["loss", "uncertainty", "c-score"], metavar="SCORE",
        help="keep these scores of each task's examples too: loss, uncertainty, c-score (costs three more trainings)")


def unused(args: argparse.Namespace, has_band: bool, ranks: bool) -> list[str]:
    """A line for flags that were given and change nothing; the sampler may have no band, or rank nothing at all."""
    searches = bool({args.sbs_q, args.sbs_s} & set(OPEN))
    lines = []
    for used, why, defaults in (
        (has_band, f"with --sampler {args.sampler}", {"sbs_q": DEFAULT, "sbs_s": DEFAULT}),
        (ranks, f"with --sampler {args.sampler}", {"sbs_score": "speed"}),
        (searches, "without auto or rule", {"sbs_grid": list(GRID), "sbs_tune": "first", "sbs_tune_epochs": None}),
    ):
        given = [f"--{name.replace('_', '-')}" for name, default in defaults.items() if getattr(args, name) != default]
        if given and not used:
            lines.append(f"{', '.join(given)} changes nothing {why}")
    return lines
