"""Runs as tasks of a Ray cluster: Ray decides where, and again elsewhere when a node dies."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mammoth_sbs
from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.experiments.executors.local import kinds
from mammoth_sbs.experiments.store import Store, version
from mammoth_sbs.experiments.worker import THREAD_LIMITS, Failure, attempt, execute
from mammoth_sbs.files import partial_folder

if TYPE_CHECKING:
    from mammoth_sbs.experiments.runs import Run

ANSWER_WITHIN = 30  # seconds
RETRIES = 3  # of a run whose node or process died; an error of the run itself is not repeated


def _logged(function: Callable[..., Any], *args: Any) -> Any:
    """`attempt`, with the log in the failure: the node's disk is not ours."""
    with partial_folder() as folder:
        log = Path(folder, "log")
        outcome = attempt(log, function, *args)
        if isinstance(outcome, Failure):
            outcome.log = log.read_text(encoding="utf-8", errors="replace")
        return outcome


def _run(words: list[str], threads: int, driver: str, first_task: bytes | None = None) -> Any:
    """A run on a node, continuing from a first task that was trained anywhere in the cluster."""
    if version() != driver:
        return Failure(f"the node has other code or another torch: {version()}, not {driver}")
    with partial_folder() as folder:
        if first_task is not None:
            file = Path(folder, "first.pt")
            file.write_bytes(first_task)
            words = [*words, "--shared_first_task", str(file)]
        return _logged(execute, words, threads)


def _first_task(words: list[str], threads: int, driver: str) -> bytes | None:
    """The checkpoint of a first task; nothing if it fails, for then the runs will fail and say why."""
    with partial_folder() as folder:
        file = Path(folder, "first.pt")
        _run([*words, "--shared_first_task", str(file)], threads, driver)
        return file.read_bytes() if file.exists() else None


@contextmanager
def _in_time(address: str) -> Iterator[None]:
    """Ray itself tries for minutes."""

    def give_up(*_: Any) -> None:
        raise UserError(f"--ray {address}: no Ray cluster answers there within {ANSWER_WITHIN} s; start one with "
                        "`ray start --head`, or check the address")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(ANSWER_WITHIN)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Cluster:
    """As many runs at a time as the cluster's CPUs, or GPUs, allow."""

    def __init__(self, address: str, threads: int, gpus: float) -> None:
        os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")
        try:
            import ray
        except ImportError:
            raise UserError("--ray: Ray is not installed; pip install 'mammoth-sbs[ray]'") from None
        host, _, port = address.rpartition(":")
        try:
            if port.isdecimal():
                socket.create_connection((host, int(port)), timeout=5).close()
            with _in_time(address):
                limits = dict.fromkeys(THREAD_LIMITS, str(threads))
                if "MAMMOTH_ROOT" in os.environ:  # the checkout is to be at the same place on every node
                    limits["MAMMOTH_ROOT"] = os.path.abspath(os.environ["MAMMOTH_ROOT"])
                package = str(Path(mammoth_sbs.__file__).resolve().parent)
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR,
                         runtime_env={"py_modules": [package], "excludes": ["**/__pycache__"], "env_vars": limits})
        except (OSError, ValueError, RuntimeError) as e:
            raise UserError(f"--ray {address}: no Ray cluster answers there ({reason(e)}); start one with "
                            "`ray start --head`, or check the address") from None
        self.ray, self.threads = ray, threads
        self.options: dict[str, Any] = {"num_cpus": threads, "num_gpus": gpus, "max_retries": RETRIES}
        there = ray.cluster_resources()
        self.slots = int(min(there.get("CPU", 0) / threads, there.get("GPU", 0) / gpus if gpus else float("inf")))
        if not self.slots:
            print(f"warning: the cluster has not {threads} CPUs and {gpus:g} GPUs for a run; waiting until it has",
                  flush=True)

    def _submit(self, function: Callable[..., Any], *args: Any, alone: bool = False) -> Any:
        """`alone`: in a process that does nothing after it, for a compiled network settles how a process convolves."""
        last: dict[str, Any] = {"max_calls": 1} if alone else {}
        return self.ray.remote(**self.options, **last)(function).remote(*args)

    def _result(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as e:
            return Failure(f"Ray gave up: {reason(e)}", str(e))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """One call on some node."""
        return self._result(self._submit(_logged, function, *args, alone=True))

    def run(self, runs: list[Run], store: Store) -> Generator[tuple[Run, Any], None, None]:
        """Execute all, and give each with its result or `Failure` as it ends. A first task travels as a Ray object."""
        first_tasks: dict[str, Any] = {}
        pending = {}
        mixed = len(kinds(runs)) > 1 and any(run.args.get("compile") for run in runs)
        submit = partial(self._submit, alone=mixed)
        for run in runs:
            if run.first_task and run.first_task not in first_tasks:
                words = run.words({"--stop_after": "1"})
                first_tasks[run.first_task] = submit(_first_task, words, self.threads, version())
            first = [first_tasks[run.first_task]] if run.first_task else []
            pending[submit(_run, run.words(), self.threads, version(), *first)] = run
        first_tasks.clear()  # Ray keeps them as long as a run needs them
        while pending:
            for reference in self.ray.wait(list(pending), num_returns=1, timeout=None)[0]:
                yield pending.pop(reference), self._result(reference)
