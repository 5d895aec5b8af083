"""A sweep: execute the runs of a grid that are not finished yet."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from mammoth_sbs.errors import UserError, heed
from mammoth_sbs.experiments.config import Config
from mammoth_sbs.experiments.duration import calibrate, duration
from mammoth_sbs.experiments.executors import Executor
from mammoth_sbs.experiments.runs import Run, resolve, share
from mammoth_sbs.experiments.schema import digest
from mammoth_sbs.experiments.store import Store, read_results, version
from mammoth_sbs.experiments.worker import Failure, trial
from mammoth_sbs.models import load_host
from mammoth_sbs.models.flags import TRIED
from mammoth_sbs.result import NOT_OF_THE_FIRST_TASK


def check(config: Config, runs: list[Run], executor: Executor) -> None:
    """Build the model of every point once, without training: what is wrong is found before the first run."""
    points = {id(run.point): run for run in runs}
    if not points:
        return
    prepare(config, list(points.values()))
    print(f"checking {len(points)} points of the grid", file=sys.stderr, flush=True)
    found = executor.call(trial, [run.words() for run in points.values()])
    if isinstance(found, Failure):
        raise UserError(f"{config.path}: the runs could not be checked: {found.reason}")
    for run, message in zip(points.values(), found, strict=True):
        if message:
            raise config.blame(run.point.flags, message)


def prepare(config: Config, runs: list[Run]) -> None:
    """The features of frozen trunks, computed once and in view before any worker wants them."""
    host = load_host()
    for run in runs:
        if run.args.get("frozen"):
            try:
                dataset = host.prepare(host.parse_args(run.words()))
                if {run.args.get("sbs_q"), run.args.get("sbs_s")} & set(TRIED):  # the rotation task turns images
                    for turns in (1, 2, 3):
                        dataset.turned(turns, dataset.used()[:0])
            except UserError as e:
                raise config.blame(run.point.flags, str(e)) from None


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


def execute_all(runs: list[Run], before: int, config: Config, executor: Executor, store: Store) -> list[str]:
    """Execute the runs; returns a line for each that failed."""
    failures = []
    progress = Progress(before + len(runs), before)
    with closing(progress.bar), closing(executor.run(runs, store)) as outcomes:
        for run, outcome in outcomes:
            failed = isinstance(outcome, Failure)
            store.check()
            if failed:
                if outcome.log:
                    with suppress(OSError):
                        store.log(run.id).write_text(outcome.log, encoding="utf-8")
                log = f" (log: {store.log(run.id)})" if store.log(run.id).exists() else ""
                failures.append(f"{run.title}: {outcome.reason}{log}")
            else:
                store.save(run.id, run.command, run.args, config.threads, outcome, run.record)
            progress.step(run, outcome if failed else None)
            heed()
    return failures


def expected_seconds(runs: list[Run], config: Config, executor: Executor, finished: dict) -> tuple[float, str]:
    """Of all runs one after the other, and where that is known from."""
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
            measured = executor.call(calibrate, run.words(), config.threads)
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


def sweep(config: Config, store: Store, executor: Executor, accept: Collection[str] = (), no_share: bool = False,
          look_only: bool = False) -> None:
    """Execute what is not finished; with `look_only`, list the runs and the time they will take."""
    runs = resolve(config)
    if no_share:
        runs = [replace(run, first_task=None) for run in runs]

    def state() -> tuple[dict[str, dict], list[Run]]:
        finished = read_results(store.folder, {version(), *accept})
        for run in runs:  # a record is part of a finished run
            if run.record and not (store.folder / run.record).is_file():
                finished.pop(run.id, None)
        return finished, share([run for run in runs if run.id not in finished], store)

    if look_only:
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
