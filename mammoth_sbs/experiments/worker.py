"""What is done in a worker process, local or on a cluster: one run, or a look at what runs would do."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from mammoth_sbs.errors import UserError

CALIBRATION_STEPS = 5  # what the host makes of an epoch in --debug_mode
CALIBRATION_SECONDS = 1.0  # of steps in a task: then the rest is passed over
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when the libraries are loaded


@dataclass
class Failure:
    """Why something came to nothing, and what it had said until then."""

    reason: str
    log: str = ""


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Everything written to stdout and stderr, by whatever library, goes to `file`."""
    sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(file, "wb", buffering=0) as f:
        os.dup2(f.fileno(), 1), os.dup2(f.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for old, fd in zip(kept, (1, 2), strict=True):
            os.dup2(old, fd)
            os.close(old)


def attempt(log: Path, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, or a `Failure`; its output goes to `log`."""
    with _output_to(log):
        try:
            return function(*args)
        except UserError as e:
            print(f"error: {e}", file=sys.stderr)
            return Failure(str(e))
        except BaseException as e:
            traceback.print_exc()
            return Failure("".join(traceback.format_exception_only(e)).strip().splitlines()[-1])


def execute(words: list[str], threads: int) -> dict[str, Any]:
    """One run, from its command line to the content of its result file."""
    import torch

    from mammoth_sbs.models import load_host

    begin = time.process_time()
    torch.set_num_threads(threads)
    host = load_host()
    with TemporaryDirectory() as folder:
        record = Path(folder, "record.npz")  # it travels as the result does
        words = [str(record) if i and words[i - 1] == "--sbs-record" else word for i, word in enumerate(words)]
        args = host.parse_args([*words, "--disable_log", "1"])
        result = host.train(*host.initialize(args, must_compile=True))
        where = {"node": platform.node(), "cpu_time": round(time.process_time() - begin, 2)}
        recorded = {"record": record.read_bytes()} if record.exists() else {}
        return {**result, **where, **recorded}


def trial(commands: list[list[str]]) -> list[str | None]:
    """What is wrong with each command line, found by building its data set and model without training.

    With `--compile 1` this is when each kind of network is compiled: the runs find it in the cache.
    """
    from mammoth_sbs.models import load_host

    host = load_host()
    found: list[str | None] = []
    for words in commands:
        try:
            host.initialize(host.parse_args(words), must_compile=True)
            found.append(None)
        except UserError as e:
            found.append(str(e))
    return found


def calibrate(words: list[str], threads: int) -> tuple[float, float]:
    """Seconds that the first task would take, and all the rest of the run: from a few steps of two tasks, on no more
    images than these need, and an evaluation's first batch."""
    import torch

    from mammoth_sbs.models import load_host

    torch.set_num_threads(threads)
    host = load_host()
    from mammoth_sbs.models.record import images_passed

    from utils import training

    args = host.parse_args(words)
    recorded, args.sbs_record = args if args.sbs_record else None, None
    whole = host.initialize(args)[1]
    tasks, epochs = min(args.stop_after or whole.N_TASKS, whole.N_TASKS), args.n_epochs
    steps = []
    for _ in range(min(tasks, 2)):
        whole.get_data_loaders()
        steps.append(len(whole.train_loader))
    trained, tested = (len(loader.dataset) for loader in (whole.train_loader, whole.test_loaders[0]))
    few = -(-CALIBRATION_STEPS * args.batch_size * whole.N_TASKS // whole.N_CLASSES)
    args = host.parse_args(words)
    args.sbs_record = None
    args.train_per_class = min(few, args.train_per_class or few, int(whole.train_counts().min()))

    start = time.perf_counter()
    model, dataset, args = host.initialize(args)
    build = time.perf_counter() - start
    seconds: defaultdict[int, list[float]] = defaultdict(list)
    evaluating: list[float] = []  # per image
    observe, evaluate = model.meta_observe, training.evaluate

    def timed(*batch: Any, **fields: Any) -> float:
        if sum(seconds[model.current_task]) > CALIBRATION_SECONDS:
            return 0.0
        begin = time.perf_counter()
        loss = observe(*batch, **fields)
        seconds[model.current_task].append(time.perf_counter() - begin)
        return loss

    @torch.no_grad()
    def evaluate_a_batch(model: Any, dataset: Any, last: bool = False) -> tuple[list[float], list[float]]:
        inputs = next(iter(dataset.test_loaders[-1]))[0].to(model.device)
        begin = time.perf_counter()
        model.net.eval()
        model(inputs)
        model.net.train()
        evaluating.append((time.perf_counter() - begin) / len(inputs))
        found = [0.0] * (1 if last else len(dataset.test_loaders))
        return found, found

    model.meta_observe, training.evaluate = timed, evaluate_a_batch
    args.debug_mode = args.disable_log = args.non_verbose = True
    within = (epochs - 1) // args.eval_epochs if args.eval_epochs else 0  # evaluations before a task ends
    args.n_epochs, args.stop_after, args.savecheck = 1, min(tasks, 2), None
    try:
        host.train(model, dataset, args)
    finally:
        training.evaluate = evaluate
    first, *other = (epochs * n * median(seconds[task] or [0.0]) for task, n in enumerate(steps))
    passed = tested * (1 + within) * tasks * (tasks + 1) / 2  # after each task on all so far
    passed += tested * 2 * tasks * bool(args.enable_other_metrics)
    if recorded is not None:
        passed += images_passed(trained, tested, tasks, recorded)
    return first, build + (tasks - 1) * sum(other) + median(evaluating) * passed
