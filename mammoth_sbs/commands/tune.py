"""`mammoth-sbs tune`: choose q and s by the rotation task, as a command of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mammoth_sbs import host
from mammoth_sbs.errors import Interrupted, UserError
from mammoth_sbs.models import load_host
from mammoth_sbs.models.flags import TRIED
from mammoth_sbs.parser import Parser, spelled
from mammoth_sbs.values import path, text

if TYPE_CHECKING:
    from mammoth_sbs.tuning.pairs import Pair, Point

USAGE = """usage: mammoth-sbs tune --model M --dataset D ... [--out FOLDER]

Trains the first task, tries the grid of (q, s) on the rotation task, prints it, and says which flags to paste.
Takes all flags of `mammoth-sbs run`; --sbs-grid, --sbs-tune-epochs and --sbs-scope are about the search, and
--sbs-q rule --sbs-s rule asks for the rule instead. --seed is 0 if it is not given.
Stopped at any moment, the same command goes on where it was; with MAMMOTH_ROOT it first learns the task again.

  --out FOLDER   where the trained first task, the points, the JSON file and the heat map go
                 (default: a folder per first task in tune/ of the results folder)
"""


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs tune", add_help=False)
    it.add_argument("--out", type=path)
    it.add_argument("--share", type=share, default="0/1", help=argparse.SUPPRESS)  # for further GPUs
    return it


def main(argv: list[str]) -> None:
    """`mammoth-sbs tune`."""
    if not argv or "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return
    own, words = parser().parse_known_args(argv)
    model = Parser(prog="mammoth-sbs tune", add_help=False)
    model.add_argument("--model", type=text, default="")
    name = model.parse_known_args(words)[0].model
    if name.replace("-", "_") in host.MODELS:
        raise UserError(f"--model {name}: the stock method has no q and s; take --model {name}_sbs")
    given = {spelled(word.split("=")[0]) for word in words}
    for flag, value in (("--sbs-q", "auto"), ("--sbs-s", "auto"), ("--seed", "0")):
        words += [] if flag in given else [flag, value]
    host_main = load_host()
    args = host_main.parse_args(words)
    if not {args.sbs_q, args.sbs_s} & set(TRIED):
        raise UserError("mammoth-sbs tune: neither --sbs-q nor --sbs-s is left to a search, so there is nothing to "
                        "choose; leave one out")
    from mammoth_sbs.tuning.first_task import tune, tune_on_mammoth  # need the host

    try:
        if host.is_embedded():
            found = tune(host_main, args, own.out, own.share, argv)
        else:
            found = tune_on_mammoth(host_main, args, own.out, argv)
    except KeyboardInterrupt as e:
        raise Interrupted("; the same command goes on at the next pair", e) from None
    if found is not None:
        say(*found)


def share(text: str) -> tuple[int, int]:
    """`i/n`: every n-th pair from the i-th."""
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and int(i) < int(n)):
        raise argparse.ArgumentTypeError(f"i/n with i below n is needed, not {text}")
    return int(i), int(n)


def say(out: Path, record: dict[str, Any]) -> None:
    """The table, the files, and what to paste."""
    from mammoth_sbs.tuning.pairs import Point

    points = [Point(**point) for point in record["points"]]
    print(table(points, record["before"]))
    print(f"\nresult file: {out / 'tune.json'}")
    if len(points) > 1:
        draw(points, (record["q"], record["s"]), out / "tune",
             f"{record['model']} on {record['dataset']}, seed {record['seed']}")
    print(f"flags to paste: {record['flags']}", flush=True)


def draw(points: Sequence[Point], chosen: Pair, stem: Path, title: str) -> None:
    """The heat map; without matplotlib there is a line instead, for the search is worth more than its picture."""
    from mammoth_sbs.figures import heatmap

    try:
        files = heatmap.draw({title: {(p.q, p.s): p.score for p in points}}, stem, chosen={title: chosen})
        print("heat map: " + ", ".join(map(str, files)))
    except UserError as e:
        print(f"no heat map: {e}")


def table(points: Sequence[Point], before: float) -> str:
    """The grid, a row per pair, the best first."""
    from mammoth_sbs.tuning.pairs import best

    lines = [f"{'q':>5} {'s':>5} {'score':>7} {'old task':>9} {'rotation':>9} {'forgotten':>10} {'stored':>7}"]
    top = best(points) if len(points) > 1 else None
    for p in sorted(points, key=lambda p: -p.score):
        lines.append(f"{p.q:5g} {p.s:5g} {p.score:7.2f} {p.old:9.2f} {p.rotation:9.2f} {p.forgotten:10.2f} {p.stored:7}"
                     + ("  <- chosen" if p is top else ""))
    lines.append(f"old task: per cent correct on the held-out tenth; before the rotation task {before:.2f}")
    return "\n".join(lines)
