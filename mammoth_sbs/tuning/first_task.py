"""Choosing q and s on a first task that is trained for that: what `mammoth-sbs tune` does."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mammoth_sbs.errors import UserError
from mammoth_sbs.files import try_to_write, write_somewhere
from mammoth_sbs.host import way_in
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK, NOT_OF_THE_RUN, results_folder
from mammoth_sbs.tuning.rotation import choose
from mammoth_sbs.tuning.search import fingerprint


def tune(host_main: ModuleType, args: Namespace, folder: Path | None, share: tuple[int, int],
         argv: list[str]) -> tuple[Path, dict[str, Any]] | None:
    """Learn the first task unless it is there, and choose; returns where the files are and what was found.

    `share` (i, n) is every n-th pair from the i-th only, and then nothing is returned: how further GPUs are used, each
    by `argv` in a process of its own.
    """
    from utils.training import learn_first_task

    out = place(args, folder)
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
    i, n = (0, len(others) + 1) if helpers else share
    choice = choose(model, dataset, task, part=(i, n))
    if i > 0:
        return None
    for process in helpers:
        process.wait()
    if helpers:  # all pairs now; one that a helper did not finish is done here
        choice = choose(model, dataset, task)
    return out, write(out, args, choice, time.monotonic() - start, argv)


def tune_on_mammoth(host_main: Any, args: Namespace, folder: Path | None,
                    argv: list[str]) -> tuple[Path, dict[str, Any]]:
    """The same on a user's own Mammoth: a run of the first task there, whose model chooses when the task ends.

    The finished points are kept. The task itself is learned again when the search goes on, for Mammoth's checkpoints
    hold no random state.
    """
    out = place(args, folder, host_main.OF_THE_START)
    args.shared_first_task = str(Path(args.shared_first_task).absolute())  # Mammoth works in a folder of its own
    args.stop_after, args.disable_log = 1, True
    start = time.monotonic()
    model, dataset, args = host_main.initialize(args)
    host_main.train(model, dataset, args)
    choice = {key: value for key, value in model.choice.items() if key != "task"}
    return out, write(out, args, choice, time.monotonic() - start, argv)


def place(args: Namespace, folder: Path | None, aside: Collection[str] = ()) -> Path:
    """Where the files of a search go: tried first, and said to the search in `args`."""
    first_task = {key: value for key, value in vars(args).items()
                  if key not in NOT_OF_THE_RUN | NOT_OF_THE_FIRST_TASK | set(aside)}
    out = folder or results_folder(args) / "tune" / f"{args.dataset}_{args.model}_{fingerprint(first_task)}"
    args.shared_first_task = getattr(args, "shared_first_task", None) or str(out / "first_task.pt")
    for file in (args.shared_first_task, out / "tune.json"):
        try_to_write(file, "result", "--out, --base_path and --results_path", 100_000)
    return out


def write(out: Path, args: Namespace, choice: dict[str, Any], seconds: float, argv: list[str]) -> dict[str, Any]:
    """The JSON file; returns what it holds."""
    flags = f"--sbs-q {choice['q']:g} --sbs-s {choice['s']:g}"
    record = {"command": f"{way_in()}mammoth-sbs tune {shlex.join(argv)}", "flags": flags, "model": args.model,
              "dataset": args.dataset, "seed": args.seed, "seconds": round(seconds, 2), **choice}
    text = json.dumps(record, indent=1).encode()
    elsewhere = write_somewhere(out / "tune.json", lambda f: f.write(text), "result")[1]
    if elsewhere:
        raise UserError(f"{flags} was chosen, but {elsewhere}")
    return record


def further_gpus(model: Any) -> list[str]:
    """The visible GPUs beside the model's own."""
    everyone = range(torch.cuda.device_count()) if model.device.type == "cuda" else ()
    return [f"cuda:{k}" for k in everyone if k != (model.device.index or 0)]


def helper(argv: list[str], share: str, device: str) -> subprocess.Popen:
    """This command once more, for its share of the pairs on another device."""
    words = [sys.executable, "-m", "mammoth_sbs", "tune", *argv, "--device", device, "--share", share]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)
