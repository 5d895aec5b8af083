"""Progress that is a bar on a terminal and a few plain lines in a file."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


class Progress:
    """One task's steps, with the loss and how it stood before the task began."""

    def __init__(self, title: str, total: int, silent: bool, note: str = "", done: int = 0) -> None:
        self.title, self.total, self.note = title, total, note
        self.done, self.loss, self.start = done, float("nan"), time.monotonic()
        self.on_terminal = sys.stderr.isatty() and not silent
        self.lines = not self.on_terminal and not silent
        self.bar = tqdm(total=total, initial=done, desc=title, disable=not self.on_terminal, dynamic_ncols=True,
                        mininterval=0.2)

    def step(self, loss: float) -> None:
        """Count one step."""
        self.done += 1
        self.loss = loss if self.loss != self.loss else 0.98 * self.loss + 0.02 * loss
        if self.on_terminal:
            self.bar.set_postfix_str(f"loss {self.loss:.3f}{self.note}", refresh=False)
            self.bar.update()
        elif self.lines and self.done * 4 // self.total > (self.done - 1) * 4 // self.total:
            seconds = time.monotonic() - self.start
            print(f"{self.title}: {self.done}/{self.total} steps, {seconds:.0f} s, loss {self.loss:.3f}{self.note}",
                  file=sys.stderr, flush=True)

    def close(self) -> None:
        self.bar.close()
