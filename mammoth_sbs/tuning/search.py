"""The search over pairs (q, s): finished points are kept, and as many are tried at a time as there are cores.

What a pair is worth, the rotation task on a copy of the model, is in `rotation.py`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mammoth_sbs.errors import UserError, heed
from mammoth_sbs.tuning.pairs import Pair, Point
from mammoth_sbs.values import POINT, Unfit

Trial = Callable[[float, float], Point]


# ---- finished points

class Journal:
    """Finished points in a file of JSON lines, each with the key of the search it belongs to and a digest of itself.

    A line is one write to the end of the file: a process killed at any moment leaves whole lines, or a last one that
    is broken off. What is no whole line of this search does not count, and its pair is tried again.
    """

    def __init__(self, path: str | Path | None, key: str) -> None:
        self.path, self.key = Path(path) if path else None, key

    def read(self) -> dict[Pair, Point]:
        """The points of this search."""
        points: dict[Pair, Point] = {}
        if self.path is None or not self.path.exists():
            return points
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as e:
            raise UserError(f"cannot read the finished points {self.path}: {e.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            digest = entry.pop("digest", None) if isinstance(entry, dict) else None
            if digest is None or digest != fingerprint(entry) or entry.pop("key", None) != self.key:
                continue
            try:
                POINT(entry, "")
                if set(entry) != set(Point._fields):
                    raise Unfit(f"it has {', '.join(sorted(set(entry) - set(Point._fields))) or 'no seconds'}")
            except Unfit as e:
                raise UserError(f"{self.path}, line {number}: {e}; take the line out") from None
            point = Point(**entry)
            points.setdefault((point.q, point.s), point)
        return points

    def add(self, point: Point) -> None:
        if self.path is None:
            return
        entry = {"key": self.key, **point._asdict()}
        line = json.dumps({**entry, "digest": fingerprint(entry)}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as f:
                f.seek(0, os.SEEK_END)
                if f.tell():
                    f.seek(-1, os.SEEK_END)
                    if f.read(1) != b"\n":  # the line of a process that was killed while writing
                        line = "\n" + line
                f.write(line.encode())
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            print(f"warning: cannot write the finished points {self.path}: {e.strerror}; the search goes on, and will "
                  "try them again if it is stopped", file=sys.stderr, flush=True)


def fingerprint(*parts: Any) -> str:
    """A short name for tensors and plain values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.detach().cpu().contiguous().numpy().tobytes() if isinstance(part, torch.Tensor)
                      else json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


# ---- the search

def in_turn(trial: Trial, pairs: Sequence[Pair]) -> Iterator[Point]:
    """One pair after the other in this process: on a GPU, which a forked process cannot use."""
    for pair in pairs:
        yield trial(*pair)


def side_by_side(trial: Trial, pairs: Sequence[Pair], processes: int) -> Iterator[Point]:
    """Each pair in a forked process: model and data are there without a copy, and stay untouched here."""
    context = get_context("fork")
    todo, running = list(pairs), dict[Connection, Any]()
    try:
        while todo or running:
            while todo and len(running) < processes:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(trial, todo.pop(0), sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process = running.pop(ready)
                try:
                    answer = ready.recv()
                except EOFError:
                    process.join()
                    raise UserError(f"a process of the search for q and s ended with code {process.exitcode}; if "
                                    "memory is short, OMP_NUM_THREADS=1 tries one pair at a time") from None
                process.join()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
    finally:
        for process in running.values():
            process.kill()


def _child(trial: Trial, pair: Pair, sender: Connection) -> None:
    """One pair. A child does not outlive its parent, and takes one core, as a DataLoader's workers do."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    try:
        sender.send(trial(*pair))
    except KeyboardInterrupt:
        pass
    except UserError as e:
        sender.send(e)
    except Exception:
        sender.send(RuntimeError(f"at q = {pair[0]:g}, s = {pair[1]:g}:\n{traceback.format_exc()}"))


def processes_for(device: torch.device) -> int:
    """How many pairs at a time: as many as the run has threads; 0 is in this process, where forking does not work."""
    can_fork = sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_available()
    return torch.get_num_threads() if can_fork else 0


def search(trial: Trial, pairs: Sequence[Pair], journal: Journal, processes: int, silent: bool = False) -> list[Point]:
    """All pairs' points, in the order of `pairs`; those that the journal has are not tried again."""
    done = journal.read()
    todo = [pair for pair in pairs if pair not in done]
    before = len(pairs) - len(todo)
    on_terminal = sys.stderr.isatty() and not silent
    bar = tqdm(total=len(pairs), initial=before, desc="choosing q and s", unit="pair", disable=not on_terminal)
    start = time.monotonic()
    points = side_by_side(trial, todo, processes) if processes else in_turn(trial, todo)
    for n, point in enumerate(points, 1):
        journal.add(point)
        heed()
        done[point.q, point.s] = point
        bar.set_postfix_str(f"q {point.q:g} s {point.s:g}: {point.score:.1f}")
        bar.update()
        if not (silent or on_terminal):
            seconds = time.monotonic() - start
            print(f"choosing q and s: {before + n}/{len(pairs)} pairs, q {point.q:g} s {point.s:g} scores "
                  f"{point.score:.2f}, {seconds:.0f} s, about {seconds / n * (len(todo) - n):.0f} s left",
                  file=sys.stderr, flush=True)
    bar.close()
    return [done[pair] for pair in pairs]
