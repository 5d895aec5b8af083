"""`mammoth-sbs sweep CONFIG.yaml`: execute the runs of a grid that are not finished yet."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn, Protocol

from tqdm import tqdm

from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.cluster import Cluster
from mammoth_sbs.experiments.config import Config, Flag, Point, read_config, words
from mammoth_sbs.experiments.local import Local
from mammoth_sbs.experiments.store import Store, digest, read_results, version
from mammoth_sbs.experiments.worker import Failure, calibrate, trial

OF_EACH_RUN = ("--sbs-record", "--ckpt_name")  # files of a run: they must have a name of their own


@dataclass(frozen=True)
class Run:
    """One run: known by its resolved arguments, without paths and other things that do not change its numbers."""

    id: str
    point: Point
    args: dict[str, Any]
    base_path: str
    first_task: str | None  # the same for all runs that are the same up to the end of the first task

    def words(self, more: dict[str, str] | None = None) -> list[str]:
        """Its command line; the data's folder in full, for a worker may stand elsewhere."""
        flags = {flag: [value.replace("{id}", self.id) for value in given.values]
                 for flag, given in self.point.flags.items()}
        flags |= {"--seed": [str(self.args["seed"])], "--base_path": [str(Path(self.base_path).resolve())]}
        flags |= {flag: [value] for flag, value in (more or {}).items()}
        return [word for flag, values in flags.items() for word in (flag, *values)]

    @property
    def title(self) -> str:
        """What makes it different from the others."""
        varied = {flag: self.point.flags[flag] for flag in self.point.varied}
        return shlex.join([*words(varied), "--seed", str(self.args["seed"])])

    @property
    def command(self) -> str:
        """How to make it by hand."""
        return shlex.join(["python", "main.py", *words(self.point.flags), "--seed", str(self.args["seed"])])


class Executor(Protocol):
    """Where runs are executed."""

    slots: int

    def call(self, function: Any, *args: Any) -> Any: ...

    def run(self, runs: list[Run], store: Store) -> Generator[tuple[Run, Any], None, None]: ...


def resolve(config: Config) -> list[Run]:
    """All runs, checked by the host's own reading of their command lines."""
    from mammoth_sbs.run import load_host

    host = load_host()
    from utils.checkpoints import NOT_OF_THE_FIRST_TASK, NOT_OF_THE_RUN

    aside = NOT_OF_THE_RUN - {"loadcheck", "start_from", "stop_after"} | {"command"}
    resolved = []
    for point in config.points:
        try:
            namespace = vars(host.parse_args([*words(point.flags), "--seed", "0"]))
        except SystemExit as e:
            raise config.blame(point.flags, str(e.code).removeprefix("error: ")) from None
        resolved.append((point, namespace, {key: value for key, value in namespace.items() if key not in aside}))
    runs: dict[str, Run] = {}
    for seed in config.seeds:
        for point, namespace, args in resolved:
            args = args | {"seed": seed}
            before = {key: value for key, value in args.items() if key not in NOT_OF_THE_FIRST_TASK}
            # a stock method, or one that inserts as stock, has used its buffer in the first task
            alike = args["model"].endswith("-sbs") and args.get("sbs_during", "closed") == "closed" \
                and not (args["loadcheck"] or args["start_from"] or namespace["sbs_record"])
            run_id = digest({"args": args, "threads": config.threads})
            first_task = digest([before, config.threads, version()]) if alike else None
            runs.setdefault(run_id, Run(run_id, point, args, namespace["base_path"], first_task))
    _no_common_files(config, list(runs.values()))
    return list(runs.values())


def _no_common_files(config: Config, runs: list[Run]) -> None:
    """Runs would overwrite each other's checkpoints and records."""
    for flags in (run.point.flags for run in runs if len(runs) > 1):
        for flag in OF_EACH_RUN:
            if flag in flags and not any("{id}" in value for value in flags[flag].values):
                raise config.blame(flags, f"{flag}: all runs would write the same file; put {{id}} into its name")
        if "--savecheck" in flags and "--ckpt_name" not in flags:
            raise config.blame(flags, "--savecheck: give --ckpt_name too, with {id} in it: a name for each run")


def check(config: Config, runs: list[Run], executor: Executor) -> None:
    """Build the model of every point once, without training: what is wrong is found before the first run."""
    points = {id(run.point): run for run in runs}
    if not points:
        return
    print(f"checking {len(points)} points of the grid", file=sys.stderr, flush=True)
    found = executor.call(trial, [run.words() for run in points.values()])
    if isinstance(found, Failure):
        raise UserError(f"{config.path}: the runs could not be checked: {found.reason}")
    for run, message in zip(points.values(), found, strict=True):
        if message:
            raise config.blame(run.point.flags, message)


def share(runs: list[Run], store: Store) -> list[Run]:
    """Only a first task that several runs wait for, or that is there already, is worth a file."""
    users = Counter(run.first_task for run in runs)
    return [run if users[run.first_task] > 1 or (store.first_tasks / f"{run.first_task}.pt").exists()
            else replace(run, first_task=None) for run in runs]


class Progress:
    """A bar over runs on a terminal; a line per run elsewhere."""

    def __init__(self, total: int, before: int) -> None:
        self.total, self.done, self.failed, self.before = total, before, 0, before
        self.begin = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        tqdm.set_lock(threading.RLock())  # no processes draw this bar
        self.bar = tqdm(total=total, initial=before, unit="run", smoothing=0, disable=not self.on_terminal,
                        dynamic_ncols=True)

    def step(self, run: Run, failure: Failure | None) -> None:
        """One run has ended."""
        self.done += 1
        self.failed += failure is not None
        seconds = time.monotonic() - self.begin
        left = seconds / (self.done - self.before) * (self.total - self.done)
        if self.on_terminal:
            if failure:
                self.bar.write(f"failed: {run.title}: {failure.reason}", file=sys.stderr)
                self.bar.set_postfix_str(f"{self.failed} failed", refresh=False)
            self.bar.update()
        else:
            end = f"failed ({failure.reason})" if failure else "finished"
            print(f"{self.done}/{self.total} runs, {duration(seconds)} so far, about {duration(left)} left: "
                  f"{run.title} {end}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def execute_all(runs: list[Run], before: int, config: Config, executor: Executor, store: Store) -> list[str]:
    """Execute the runs; returns a line for each that failed."""
    failures = []
    progress = Progress(before + len(runs), before)
    with closing(progress.bar), closing(executor.run(runs, store)) as outcomes:
        for run, outcome in outcomes:
            failed = isinstance(outcome, Failure)
            if failed:
                if outcome.log:
                    store.log(run.id).write_text(outcome.log)
                log = f" (log: {store.log(run.id)})" if store.log(run.id).exists() else ""
                failures.append(f"{run.title}: {outcome.reason}{log}")
            else:
                store.save(run.id, run.command, run.args, config.threads, outcome)
            progress.step(run, outcome if failed else None)
    return failures


def expected_seconds(runs: list[Run], config: Config, executor: Executor, finished: dict) -> tuple[float, str]:
    """Of all runs one after the other, and where that is known from."""
    from utils.checkpoints import NOT_OF_THE_FIRST_TASK

    def kind(args: dict[str, Any]) -> str:
        """Runs of one kind take equally long."""
        return digest({key: value for key, value in args.items() if key not in NOT_OF_THE_FIRST_TASK | {"seed"}})

    known = defaultdict(list)
    for record in finished.values():
        known[kind(record["args"])].append(record["volatile"]["wall_time"])
    cost: dict[str, tuple[float, float]] = {name: (0.0, fmean(times)) for name, times in known.items()}
    seconds, first_tasks, source = 0.0, set(), "from the finished runs"
    for run in runs:
        if kind(run.args) not in cost:
            # without the search for q and s, which is not among the steps that are timed
            fixed = {"--sbs-q": "0.2", "--sbs-s": "0.2"} if "sbs_q" in run.args else {}
            measured = executor.call(calibrate, run.words(fixed), config.threads)
            if isinstance(measured, Failure):
                return float("nan"), f"{run.title}: {measured.reason}"
            cost[kind(run.args)], source = measured, "from a few steps of each kind of run"
        first, rest = cost[kind(run.args)]
        seconds += rest + (0 if run.first_task and run.first_task in first_tasks else first)
        first_tasks.add(run.first_task)
    return seconds, source


def dry_run(runs: list[Run], config: Config, executor: Executor, folder: Path, finished: dict, todo: list[Run]) -> None:
    """List the runs and say how long they will take."""
    waiting = {run.id for run in todo}
    for run in runs:
        print(f"{'to do   ' if run.id in waiting else 'finished'}  {run.id}  {run.title}")
    shared = Counter(run.first_task for run in todo if run.first_task)
    print(f"\n{len(runs)} runs in {folder}: {len(runs) - len(todo)} finished, {len(todo)} to do"
          + (f"; {sum(shared.values())} of them share {len(shared)} first tasks" if shared else ""))
    if todo:
        check(config, todo, executor)
        seconds, source = expected_seconds(todo, config, executor, finished)
        slots = max(1, min(executor.slots, len(todo)))
        time_left = "unknown" if seconds != seconds else f"about {duration(seconds / slots)} with {slots} at a time"
        print(f"expected time: {time_left} ({source})")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see mammoth-sbs sweep --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mammoth-sbs sweep", allow_abbrev=False,
                     description="Execute the runs of a grid. What is finished is skipped: start it again after "
                                 "whatever happened, or with more seeds.")
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG.yaml", help="base command line, grid and seeds")
    add("--results", type=Path, metavar="DIR", help="one JSON file per finished run (default: results/<name>)")
    add("--base_path", metavar="DIR", help="where the data sets are, instead of what the config says")
    add("--dry-run", action="store_true", help="list the runs and the expected time")
    add("--jobs", type=int, help="runs at a time (default: one per CPU core, divided by the config's `threads`; "
                                 "1 if there is a GPU)")
    add("--no-share", action="store_true", help="train the first task anew in every run; the numbers are the same")
    add("--accept-version", action="append", default=[], metavar="VERSION",
        help="count results of this other code as finished; may be given again")
    add("--ray", metavar="ADDRESS", help="execute on the Ray cluster that this machine is in: host:port, or auto")
    add("--gpus-per-run", type=float, metavar="X", help="with --ray: GPUs of a run, may be a fraction (default: 0)")
    return parser


def _executor(args: argparse.Namespace, threads: int) -> Executor:
    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: at least 1 is needed")
    if args.gpus_per_run is not None and (args.ray is None or args.gpus_per_run < 0):
        raise UserError("--gpus-per-run: a number from 0, together with --ray")
    if args.ray is not None:
        if args.jobs is not None:
            raise UserError("--jobs is for runs on this machine; with --ray the cluster's CPUs and GPUs decide")
        return Cluster(args.ray, threads, args.gpus_per_run or 0.0)
    local = Local(args.jobs or 0, threads)  # begins to import, while we do too
    if args.jobs is None:
        import torch

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        local.slots = 1 if torch.cuda.is_available() else max(1, cores // threads)
    return local


def main(argv: list[str]) -> None:
    """Execute what is not finished, or with `--dry-run` say what that is."""
    args = _parser().parse_args(argv)
    if os.environ.get("MAMMOTH_ROOT"):
        raise UserError("MAMMOTH_ROOT is set, but sweeps run on the embedded host only; unset it")
    try:
        _sweep(args)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _sweep(args: argparse.Namespace) -> None:
    config = read_config(args.config)
    if args.base_path is not None:
        for point in config.points:
            point.flags["--base_path"] = Flag((args.base_path,), config.base_line)
    store = Store(args.results or Path("results") / config.name)
    executor = _executor(args, config.threads)
    runs = resolve(config)
    if args.no_share:
        runs = [replace(run, first_task=None) for run in runs]

    def state() -> tuple[dict[str, dict], list[Run]]:
        finished = read_results(store.folder, {version(), *args.accept_version})
        return finished, share([run for run in runs if run.id not in finished], store)

    if args.dry_run:
        dry_run(runs, config, executor, store.folder, *state())
        return
    with store.locked():
        finished, todo = state()
        before = len(runs) - len(todo)
        known = {id(run.point) for run in runs if run.id in finished}
        check(config, [run for run in todo if id(run.point) not in known], executor)
        failures = execute_all(todo, before, config, executor, store)
        if not failures:
            store.forget_first_tasks()
    print(f"{len(runs) - len(failures)} of {len(runs)} runs finished ({before} before): {store.folder}")
    if failures:
        print(f"{len(failures)} failed:", *failures, sep="\n  ")
        sys.exit(1)
