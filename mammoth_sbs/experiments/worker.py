"""What is done in a worker process, local or on a cluster: one run, or a look at what runs would do."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError, steady
from mammoth_sbs.files import partial_folder

THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when the libraries are loaded


@dataclass
class Failure:
    """Why something came to nothing, and what it had said until then."""

    reason: str
    log: str = ""


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Everything written to stdout and stderr, by whatever library, goes to `file`."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = steady(sys.stdout, 1), steady(sys.stderr, 2)  # a full disk costs the log, not the run
    sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1), os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for old, fd in zip(kept, (1, 2), strict=True):
            os.dup2(old, fd)
            os.close(old)
        sys.stdout, sys.stderr = streams


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
    """One run, from its command line to what its result file would say."""
    import torch

    from mammoth_sbs.models import load_host

    begin = time.process_time()
    host = load_host()
    torch.set_num_threads(threads)  # Mammoth, while it is imported, sets a number of its own
    with partial_folder() as folder:
        record = folder / "record.npz"  # it travels as the result does
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
            args = host.parse_args([*words, "--disable_log", "1"])
            host.check_places(*host.initialize(args, must_compile=True))
            found.append(None)
        except UserError as e:
            found.append(str(e))
    return found
