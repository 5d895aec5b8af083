"""The progress of loops that a method runs by itself."""

from __future__ import annotations

import sys


def progress_bar(i: int, max_iter: int, epoch: int | str, task_number: int | str, loss: float) -> None:
    """One line on a terminal, rewritten at every step; nothing in a file."""
    if sys.stderr.isatty():
        print(f"\r{task_number}: epoch {epoch}, {i + 1}/{max_iter}, loss {loss:.4f}", end="\n" * (i + 1 == max_iter),
              file=sys.stderr, flush=True)
