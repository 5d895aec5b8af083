"""The one error a user should ever see."""

from __future__ import annotations

import re
import sys
from types import TracebackType


def reason(e: BaseException) -> str:
    """The first line of what went wrong, without addresses in memory, which libraries like to print."""
    text = f"has no {e}" if isinstance(e, KeyError) else str(e)
    text = re.sub(r" ?<[^<>]* at 0x[0-9a-fA-F]+>", "", text).strip()
    return text.partition("\n")[0].strip() or type(e).__name__


class UserError(Exception):
    """Bad input. Its message is one line that names the flag or file, what was wrong and what to do.

    An ordinary exception for those who import the package; a program shows it by `one_line`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A program's `sys.excepthook`: a `UserError` is its message alone, all else is as ever."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
