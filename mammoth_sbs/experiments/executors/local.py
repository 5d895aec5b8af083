"""Runs in processes of this machine, each forked from a server that has imported everything."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mammoth_sbs
from mammoth_sbs.experiments.store import Store
from mammoth_sbs.experiments.worker import THREAD_LIMITS, Failure, attempt, execute
from mammoth_sbs.files import partial_folder

if TYPE_CHECKING:
    from mammoth_sbs.experiments.runs import Run

COMPILED = "MAMMOTH_SBS_COMPILED"  # tells the server what its workers are to inherit
OF_A_NETWORK = ("backbone", "num_filters", "mlp_hidden_size", "dataset", "max_classes", "n_tasks", "extra_models")
_holds: list[str] = []  # the server, if there is one: what was compiled in it
POLL = 0.1  # seconds between looks for a first task that has appeared


def kinds(runs: list[Run]) -> set[str]:
    """Of networks, compiled or not."""
    return {str([run.args.get(name) for name in ("compile", *OF_A_NETWORK)]) for run in runs}


def _child(answer: Connection, log: Path, function: Callable[..., Any], args: tuple) -> None:
    """The life of a worker: one call."""
    os.setpgrp()  # with the processes that a run may start: Ctrl-C is for the sweep, and they end together
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_after, args=(parent.sentinel,), daemon=True).start()
    answer.send(attempt(log, function, *args))


def _die_after(sentinel: int) -> None:
    """Nobody waits for the result of a worker whose sweep was killed."""
    wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def _start_server(compiled: str = "") -> None:
    """Have one that runs, with the networks of the command lines in `compiled` (JSON) in its memory, or with none.

    Its socket lies in a folder that the next sweep removes, should this one be killed.
    """
    if _holds == [compiled]:
        return
    if _holds:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        _holds.clear()
    if compiled:
        os.environ[COMPILED] = compiled
    folder = ExitStack()
    kept, tempfile.tempdir = tempfile.tempdir, str(folder.enter_context(partial_folder()))
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = kept
        os.environ.pop(COMPILED, None)
    _holds.append(compiled)
    Finalize(None, folder.close, exitpriority=-200)  # after multiprocessing, at -100, has removed its own


class Local:
    """At most `slots` runs at a time, each in a process of its own."""

    def __init__(self, slots: int, threads: int) -> None:
        self.slots, self.threads = slots, threads
        for name in THREAD_LIMITS:
            os.environ[name] = str(threads)
        package, known = str(Path(mammoth_sbs.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")
        if package not in (known or "").split(os.pathsep):  # the server does not get our sys.path
            os.environ["PYTHONPATH"] = f"{package}{os.pathsep}{known}" if known else package
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["mammoth_sbs.experiments.executors.preload"])
        _start_server()  # imports while the sweep is checked

    def _start(self, log: Path, function: Callable[..., Any], *args: Any) -> tuple[Connection, BaseProcess]:
        receive, send = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(send, log, function, args))
        process.start()
        send.close()
        return receive, process

    @staticmethod
    def _finish(answer: Connection, process: BaseProcess) -> Any:
        try:
            outcome = answer.recv()
        except EOFError:
            outcome = None
        process.join()
        if outcome is None:
            code = process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            hint = "; if memory is short, give fewer --jobs" if code == -signal.SIGKILL else ""
            return Failure(f"its process {how}{hint}")
        return outcome

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """One call in a worker."""
        answer, process = self._start(Path(os.devnull), function, *args)
        try:
            return self._finish(answer, process)
        finally:
            process.kill()

    def _inherit(self, runs: list[Run]) -> None:
        """With `--compile 1`: let workers begin with compiled code in memory, which each would read from the cache for
        seconds. Not with several threads, for OpenMP's do not survive a fork; and only if all runs have one kind of
        network, for it settles how a process convolves."""
        if len(kinds(runs)) == 1 and len(runs) > 2 and runs[0].args.get("compile") and self.threads == 1:
            _start_server(json.dumps([runs[0].words()]))

    def run(self, runs: list[Run], store: Store) -> Generator[tuple[Run, Any], None, None]:
        """Execute all, and give each with its result or `Failure` as it ends."""
        self._inherit(runs)
        waiting = list(runs)
        active: dict[Any, tuple[BaseProcess, Run]] = {}

        def first_task(run: Run) -> Path:
            return store.first_tasks / f"{run.first_task}.pt"

        def of_running(run: Run) -> bool:
            return any(run.first_task == other.first_task for _, other in active.values())

        def may_start(run: Run) -> bool:
            """Not while another run trains the first task that it will use."""
            return not run.first_task or first_task(run).exists() or not of_running(run)

        try:
            while waiting or active:
                while len(active) < self.slots and (run := next(filter(may_start, waiting), None)):
                    waiting.remove(run)
                    shared = {"--shared_first_task": str(first_task(run))} if run.first_task else {}
                    answer, process = self._start(store.log(run.id), execute, run.words(shared), self.threads)
                    active[answer] = process, run
                for ready in wait(list(active), timeout=POLL):
                    process, run = active.pop(ready)
                    yield run, self._finish(ready, process)  # type: ignore[arg-type]
                    if run.first_task and not of_running(run) and all(run.first_task != r.first_task for r in waiting):
                        for file in store.first_tasks.glob(f"{run.first_task}.*"):
                            file.unlink(missing_ok=True)
        finally:
            for process, _ in active.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid or 0, signal.SIGKILL)
