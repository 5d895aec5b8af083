"""How a command ends: one line for a mistake or a signal, and never because nobody reads its output."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Any, NoReturn


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

    @property
    def what(self) -> str:
        """The message without its advice."""
        return str(self).partition("; ")[0]


def one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A program's `sys.excepthook`: a `UserError` is its message alone, all else is as ever."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
    elif isinstance(error, Interrupted):
        print(error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


# ---- Ctrl-C and SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, with which batch systems and shut-downs end a process: handled as Ctrl-C is."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. Its message is one line that says what is saved and how to go on."""

    def __init__(self, line: str, by: KeyboardInterrupt) -> None:
        super().__init__(f"stopped{line}")
        self.status = 128 + (signal.SIGTERM if isinstance(by, Terminated) else signal.SIGINT)  # as shells count


_came: type[KeyboardInterrupt] | None = None  # a signal that the command in progress has got


def _stop(number: int, frame: object) -> NoReturn:
    global _came
    _came = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    raise _came


def heed() -> None:
    """Raise again what a signal has raised, if somebody dropped it: Python does while it deletes an object, libraries
    do when they call back. Loops that go on for long ask here."""
    if _came is not None:
        raise _came


def not_a_signal(e: BaseException) -> None:
    """An error may be the mere consequence of a signal, as torch.save's are: then that is what goes on up."""
    inner: BaseException | None = e
    while inner is not None:
        if isinstance(inner, KeyboardInterrupt):
            raise inner from None
        inner = inner.__cause__ or inner.__context__
    heed()


@contextmanager
def command() -> Iterator[None]:
    """Around what a user typed: SIGTERM is Ctrl-C, both end in a line, and lost output loses no work."""
    global _came
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM)
               if in_main and signal.getsignal(number) is not signal.SIG_IGN]  # as shells have it in the background
    before = {number: signal.signal(number, _stop) for number in numbers}
    _came = None
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = steady(sys.stdout, 1), steady(sys.stderr, 2)
    try:
        yield
    except KeyboardInterrupt as e:
        stopped = e if isinstance(e, Interrupted) else Interrupted("", e)
        print(stopped, file=sys.stderr, flush=True)
        sys.exit(stopped.status)
    finally:
        sys.stdout.flush()
        _came = None
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout, sys.stderr = (old or new for old, new in zip(streams, (sys.stdout, sys.stderr), strict=True))


# ---- output that nobody reads


def steady(stream: Any, descriptor: int) -> Any:
    """The stream, such that a reader who goes away (`| head`), a full disk or a closed descriptor stops nobody."""
    if stream is None:  # Python found it closed; a file that is opened later must not get its number
        with suppress(OSError):
            os.fstat(descriptor)  # something is there by now: leave it alone
            return open(os.devnull, "w", encoding="utf-8")
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        return open(descriptor, "w", encoding="utf-8", closefd=False)
    return stream if isinstance(stream, Steady) else Steady(stream)


class Steady:
    """A text stream whose failures cost the text and nothing else."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except (OSError, ValueError) as e:
            self._give_up(e)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as e:
            self._give_up(e)

    def _give_up(self, e: Exception) -> None:
        """From now on into nothing; what is still in the stream's own buffers too."""
        with suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.stream.fileno())
            os.close(nothing)
        if self is sys.stdout:
            print(f"warning: standard output cannot be written ({getattr(e, 'strerror', None) or e}): going on "
                  "without it", file=sys.stderr, flush=True)
