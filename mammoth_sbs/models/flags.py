"""The flags that every `_sbs` model adds, and the defaults that make `--model derpp_sbs --dataset ...` enough."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mammoth_sbs import host
from mammoth_sbs.core.dynamics import DYNAMICS
from mammoth_sbs.core.samplers import sampler_names
from mammoth_sbs.core.streams import STREAM_SAMPLERS, StreamSpeed
from mammoth_sbs.values import at_least, number, text

TRIED = ("auto", "rule")  # chosen by trials on the rotation task
OPEN = (*TRIED, "share")  # what --sbs-q and --sbs-s take in place of a number
DEFAULT = 0.2  # the paper's q = s, "SBS-fix"
MOST = 0.95  # of q + s: a twentieth of a task at the least to draw from
GRID = (0.0, 0.2, 0.4, 0.6)  # that auto tries, on each side


def adder(parser: argparse.ArgumentParser) -> Callable[..., None]:
    """Adds flags. Mammoth's parser takes them as they are written, so there both ways are written."""

    def add(flag: str, **kwargs: Any) -> None:
        other = () if host.is_embedded() or "-" not in flag[2:] else (f"--{flag[2:].replace('-', '_')}",)
        parser.add_argument(flag, *other, **kwargs)

    return add


def add_sbs_args(parser: argparse.ArgumentParser, inserts_each_step: bool) -> None:
    """The plugin's own flags. `--sbs-during` is for methods whose stock version inserts at every step."""
    add, streams = adder(parser), f"; at every step: {', '.join(STREAM_SAMPLERS)}" * inserts_each_step
    add("--sampler", type=text, default="speed",
        help=f"how the buffer's examples are chosen: {', '.join(sampler_names())}{streams}")
    for side, which in (("q", "quickest"), ("s", "slowest")):
        add(f"--sbs-{side}", type=number(0, MOST, words=OPEN), default=DEFAULT,
            help=f"fraction of {which} learned examples left out; auto: searched on the rotation task at the end of "
                 "the first task; rule: from what is forgotten there with a uniform buffer; share: by the share of the "
                 "data that the buffer holds, q 0 and s .4, from a tenth on s .2")
    add("--sbs-grid", type=number(0, MOST), nargs="+", default=list(GRID), metavar="FRACTION",
        help="the values that auto tries, on each side (default: 0 .2 .4 .6); pairs with q + s up to "
             f"{MOST:g} count")
    add("--sbs-tune", choices=["first", "each"], default="first",
        help="auto and rule choose once, or anew at the end of each task")
    add("--sbs-tune-epochs", type=at_least(1), metavar="N",
        help="epochs of the rotation task (default: a tenth of --n_epochs, at least 1)")
    add("--sbs-score", choices=["speed", "loss", "uncertainty", "c-score", *DYNAMICS], default="speed",
        help="rank by learning speed, final loss, consistency under augmentation, accuracy when held out; or by what "
             "training shows as it goes on: area under the margin, length of the error, how often forgotten")
    add("--sbs-scope", choices=["task", "seen"], default="task",
        help="learning speed counts predictions among the task's classes, or among all classes seen")
    if inserts_each_step:
        add("--sbs-during", choices=["closed", "stock"], default="closed",
            help="closed: nothing is inserted before the task ends (Algorithm 1); "
                 "stock: the method inserts as always, and at the end the task's examples are replaced")


def add_stream_args(parser: argparse.ArgumentParser) -> None:
    """For `--sampler stream-speed`; what is not given is what core/streams/speed.py says."""
    add = adder(parser)
    add("--sbs-look", choices=["p", "margin", "correct"],
        help="stream-speed: what a look at an example is worth (default: p, the probability of its label)")
    add("--sbs-looks", choices=["both", "arrival", "replay"],
        help="stream-speed: which looks count (default: both, at arrival and at each replay)")
    add("--sbs-band", choices=["leave", "enter", "both"],
        help="stream-speed: whom the band concerns: who leaves the buffer, or who enters it (default: leave)")
    add("--sbs-near", type=at_least(0), metavar="N",
        help="stream-speed: compare with this many of the class, the nearest by arrival (default: 0, with all)")


STREAM_FLAGS = ("sbs_look", "sbs_looks", "sbs_band", "sbs_near")


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


def unused(args: argparse.Namespace, takes: frozenset[str], ranks: bool) -> list[str]:
    """A line for flags that were given and change nothing; the sampler may take neither q nor s, or rank nothing."""
    searches = bool({args.sbs_q, args.sbs_s} & set(TRIED))
    lines = []
    for used, why, defaults in (
        (False, f"with --sampler {args.sampler}", {f"sbs_{side}": DEFAULT for side in "qs" if side not in takes}),
        (ranks, f"with --sampler {args.sampler}", {"sbs_score": "speed"}),
        (searches, "without auto or rule", {"sbs_grid": list(GRID), "sbs_tune": "first", "sbs_tune_epochs": None}),
    ):
        given = [f"--{name.replace('_', '-')}" for name, default in defaults.items() if getattr(args, name) != default]
        if given and not used:
            lines.append(f"{', '.join(given)} changes nothing {why}")
    return lines


def unused_in_streams(args: argparse.Namespace) -> list[str]:
    """Likewise for stream samplers, and for their flags where there is none."""
    sampler = args.sampler.replace("_", "-")
    without: dict[str, Any] = {name: None for name in STREAM_FLAGS} if sampler != StreamSpeed.name else {}
    if sampler in STREAM_SAMPLERS:
        without |= {"sbs_score": "speed", "sbs_during": "closed", "sbs_scope": "task", "sbs_grid": list(GRID),
                    "sbs_tune": "first", "sbs_tune_epochs": None}
        if sampler != StreamSpeed.name:
            without |= {"sbs_q": DEFAULT, "sbs_s": DEFAULT}
    given = [f"--{name.replace('_', '-')}" for name, default in without.items() if getattr(args, name) != default]
    return [f"{', '.join(given)} changes nothing with --sampler {args.sampler}"] if given else []
