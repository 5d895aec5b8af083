"""The one error a user should ever see."""

from __future__ import annotations

import sys
from types import TracebackType


class UserError(Exception):
    """Bad input. Its message is one line that names the flag or file, what was wrong and what to do.

    An ordinary exception for those who import the package; a program shows it by `one_line`.
    """


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A program's `sys.excepthook`: a `UserError` is its message alone, all else is as ever."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
