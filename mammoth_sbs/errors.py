"""The one error a user should ever see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class UserError(SystemExit):
    """Bad input. Carries one line that names the flag or file, what was wrong and what to do.

    It is a `SystemExit`, so any host ends with that line and no traceback, if it does not swallow it: see `aloud`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"error: {message}")


class Stopped(Exception):
    """A `UserError` on its way out of Mammoth's training loop, which would end silently on a `SystemExit`."""


@contextmanager
def aloud() -> Iterator[None]:
    """For what Mammoth's training loop calls: a `UserError` gets through it, and is still one line for the user."""
    try:
        yield
    except UserError as e:
        sys.excepthook = _one_line
        raise Stopped(e.code) from None


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, Stopped):
        print(error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
