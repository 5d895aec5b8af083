"""`mammoth-sbs tune`: choose q and s by the rotation task, as a command of its own."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mammoth_sbs import host
from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically
from mammoth_sbs.run import load_host
from mammoth_sbs.search import OPEN, Pair, Point, best, fingerprint

USAGE = """usage: mammoth-sbs tune --model M --dataset D ... [--out FOLDER]

Trains the first task, tries the grid of (q, s) on the rotation task, prints it, and says which flags to paste.
Takes all flags of `mammoth-sbs run`; --sbs-grid, --sbs-tune-epochs and --sbs-scope are about the search, and
--sbs-q rule --sbs-s rule asks for the rule instead. --seed is 0 if it is not given.
Stopped at any moment, the same command goes on where it was.

  --out FOLDER   where the trained first task, the points, the JSON file and the heat map go
                 (default: a folder per first task in tune/ of the results folder)
"""


def main(argv: list[str]) -> None:
    """`mammoth-sbs tune`."""
    if not argv or "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return
    if host.root() != host.EMBEDDED:
        raise UserError("mammoth-sbs tune: works on the embedded host only; unset MAMMOTH_ROOT, or give --sbs-q auto "
                        "--sbs-s auto to a run on your Mammoth")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--share", default="0/1")  # i/n: every n-th pair from the i-th; how further GPUs are used
    own, words = parser.parse_known_args(argv)
    model = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    model.add_argument("--model", default="")
    name = model.parse_known_args(words)[0].model
    if name.replace("-", "_") in host.MODELS:
        raise UserError(f"--model {name}: the stock method has no q and s; take --model {name}_sbs")
    given = {word.split("=")[0] for word in words}
    for flag, value in (("--sbs-q", "auto"), ("--sbs-s", "auto"), ("--seed", "0")):
        words += [] if flag in given else [flag, value]
    host_main = load_host()
    args = host_main.parse_args(words)
    if not {args.sbs_q, args.sbs_s} & set(OPEN):
        raise UserError("mammoth-sbs tune: --sbs-q and --sbs-s are both numbers, so there is nothing to choose; leave "
                        "one out")
    try:
        tune(host_main, args, own, argv)
    except KeyboardInterrupt:
        raise UserError("stopped; the same command goes on at the next pair") from None


def tune(host_main: ModuleType, args: Namespace, own: Namespace, argv: list[str]) -> None:
    """Learn the first task unless it is there, choose, and say what was found."""
    from mammoth_sbs import rotation  # needs the host

    from utils.checkpoints import NOT_OF_THE_FIRST_TASK, NOT_OF_THE_RUN
    from utils.loggers import results_folder
    from utils.training import learn_first_task

    first_task = {key: value for key, value in vars(args).items()
                  if key not in NOT_OF_THE_RUN | NOT_OF_THE_FIRST_TASK}
    out = own.out or results_folder(args) / "tune" / f"{args.dataset}_{args.model}_{fingerprint(first_task)}"
    args.shared_first_task = args.shared_first_task or str(out / "first_task.pt")
    one_device = args.device is not None or "auto" not in (args.sbs_q, args.sbs_s)
    model, dataset, args = host_main.initialize(args)
    model.net.train()
    dataset.get_data_loaders()
    model.meta_begin_task(dataset)
    learn_first_task(model, dataset, args)
    model.close_task(dataset)
    task = model.describe(dataset.train_loader.dataset)
    start = time.monotonic()
    others = [] if one_device else further_gpus(model)
    helpers = [helper(argv, f"{k}/{len(others) + 1}", device) for k, device in enumerate(others, 1)]
    i, n = (0, len(others) + 1) if helpers else map(int, own.share.split("/"))
    choice = rotation.choose(model, dataset, task, part=(i, n))
    if i > 0:
        return
    for process in helpers:
        process.wait()
    if helpers:  # all pairs now; one that a helper did not finish is done here
        choice = rotation.choose(model, dataset, task)
    points = [Point(**point) for point in choice["points"]]
    print(table(points, choice["before"]))
    flags = f"--sbs-q {choice['q']:g} --sbs-s {choice['s']:g}"
    record = {"command": f"mammoth-sbs tune {shlex.join(argv)}", "flags": flags, "model": args.model,
              "dataset": args.dataset, "seed": args.seed, "seconds": round(time.monotonic() - start, 2), **choice}
    write_atomically(out / "tune.json", lambda f: f.write(json.dumps(record, indent=1).encode()), "result")
    print(f"\nresult file: {out / 'tune.json'}")
    if len(points) > 1:
        draw(points, (choice["q"], choice["s"]), out / "tune", f"{args.model} on {args.dataset}, seed {args.seed}")
    print(f"flags to paste: {flags}", flush=True)


def further_gpus(model: Any) -> list[str]:
    """The visible GPUs beside the model's own."""
    everyone = range(torch.cuda.device_count()) if model.device.type == "cuda" else ()
    return [f"cuda:{k}" for k in everyone if k != (model.device.index or 0)]


def helper(argv: list[str], share: str, device: str) -> subprocess.Popen:
    """This command once more, for its share of the pairs on another device."""
    words = [sys.executable, "-m", "mammoth_sbs.cli", "tune", *argv, "--device", device, "--share", share]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def draw(points: Sequence[Point], chosen: Pair, stem: Path, title: str) -> None:
    """The heat map; without matplotlib there is a line instead, for the search is worth more than its picture."""
    from mammoth_sbs.figures import heatmap

    try:
        files = heatmap.draw({title: {(p.q, p.s): p.score for p in points}}, stem, chosen={title: chosen})
        print("heat map: " + ", ".join(map(str, files)))
    except UserError as e:
        print(f"no heat map: {str(e).removeprefix('error: ')}")


def table(points: Sequence[Point], before: float) -> str:
    """The grid, a row per pair, the best first."""
    lines = [f"{'q':>5} {'s':>5} {'score':>7} {'old task':>9} {'rotation':>9} {'forgotten':>10} {'stored':>7}"]
    top = best(points) if len(points) > 1 else None
    for p in sorted(points, key=lambda p: -p.score):
        lines.append(f"{p.q:5g} {p.s:5g} {p.score:7.2f} {p.old:9.2f} {p.rotation:9.2f} {p.forgotten:10.2f} {p.stored:7}"
                     + ("  <- chosen" if p is top else ""))
    lines.append(f"old task: per cent correct on the held-out tenth; before the rotation task {before:.2f}")
    return "\n".join(lines)
