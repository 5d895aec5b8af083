"""What a value may be, said once: a flag is read by it, `--help` shows it, and what a file holds is checked by it."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_FLOAT = sys.float_info.max
Check = Callable[[Any, str], None]  # a value and what it is called; raises `Unfit`


class Unfit(ValueError):
    """Something in a file is not what it should be: which, what it is, and what was expected."""


def shown(value: Any) -> str:
    """A value in a message: short, on one line, and never an address in memory."""
    if not isinstance(value, str | bytes | int | float | None):
        return f"a {type(value).__name__}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    return text if len(text) <= 40 else f"{text[:37]}..."


class Range:
    """A finite number between two limits, or one of some words. As the `type` of a flag it reads text."""

    def __init__(self, kind: type[int] | type[float], least: float, most: float, above: bool = False,
                 below: bool = False, words: Sequence[str] = ()) -> None:
        self.kind, self.least, self.most, self.above, self.below, self.words = kind, least, most, above, below, words

    @property
    def limits(self) -> str:
        """`from 0 to 1`, `above 0`, `of at least 1 and below 100`."""
        low, high = (f"{int(x)}" if float(x).is_integer() and math.isfinite(x) else f"{x:g}"
                     for x in (self.least, self.most))
        if math.isfinite(self.least) and math.isfinite(self.most) and not self.above and not self.below:
            return f"from {low} to {high}"
        low = f"{'above' if self.above else 'of at least'} {low}" if math.isfinite(self.least) else ""
        high = f"{'below' if self.below else 'up to'} {high}" if math.isfinite(self.most) else ""
        return " and ".join(filter(None, (low, high)))

    @property
    def range(self) -> str:
        """The limits and the words: what `--help` shows."""
        return ", ".join(filter(None, (self.limits.removeprefix("of ").removeprefix("from "), *self.words)))

    def __str__(self) -> str:
        kind = "a whole number" if self.kind is int else "a number"
        *before, last = (f"{kind} {self.limits}".strip(), *self.words)
        return f"{', '.join(before)} or {last}" if before else last

    def holds(self, value: float) -> bool:
        """Whether a number is in the range."""
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low and high and abs(value) <= (math.inf if isinstance(value, int) and self.kind is int else MAX_FLOAT)

    def __call__(self, text: str) -> Any:
        """The value of a flag."""
        if text in self.words:
            return text
        try:
            value = self.kind(text)
            fits = self.holds(value)
        except (ValueError, OverflowError):
            value, fits = math.nan, False
        if not fits:
            slip = f"; did you mean {value / 100:g}?" if self.most <= 1 < value and self.holds(value / 100) else ""
            raise argparse.ArgumentTypeError(f"{self} is needed, not {text or 'nothing'}{slip}")
        return value

    def check(self, value: Any, name: str) -> None:
        """For a file: the same range, and of the right type."""
        right = isinstance(value, int if self.kind is int else int | float) and not isinstance(value, bool)
        if not (value in self.words if isinstance(value, str) else right and self.holds(value)):
            raise Unfit(f"{name} is {shown(value)}, not {self}")


def at_least(least: int, most: int | float = math.inf, words: Sequence[str] = ()) -> Range:
    """A whole number."""
    return Range(int, least, most, words=words)


def number(least: float = -math.inf, most: float = math.inf, *, above: float | None = None, below: float | None = None,
           words: Sequence[str] = ()) -> Range:
    """Any number; `above` and `below` are limits that do not belong to the range."""
    return Range(float, least if above is None else above, most if below is None else below, above is not None,
                 below is not None, words)


SEED = at_least(0, 2**64 - 1)  # what torch's generators take
PERCENT = number(0, 100)


def text(value: str) -> str:
    """The value of a flag that names something: an empty one is a slip, in a script with an unset variable."""
    if not value.strip() or "\0" in value:
        raise argparse.ArgumentTypeError("something is needed, not an empty text" if "\0" not in value else
                                         "a text without NUL characters is needed")
    return value


def path(value: str) -> Path:
    """The value of a flag that names a file or folder: an empty one would be the folder one is in."""
    return Path(text(value))


# ---- for files: what JSON, or a checkpoint, may hold at a place


def is_text(value: Any, name: str) -> None:
    """A string that can be written to a UTF-8 file."""
    if not isinstance(value, str):
        raise Unfit(f"{name} is {shown(value)}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{name} is {shown(value)}, not a text") from None


def is_plain(value: Any, name: str) -> None:
    """What a flag may have: nothing, a truth value, a finite number, a text, or a list of such."""
    if isinstance(value, list):
        for item in value:
            is_plain(item, name)
    elif isinstance(value, str):
        is_text(value, name)
    elif not (value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))):
        raise Unfit(f"{name} is {shown(value)}, not the value of a flag")


def maybe(check: Check) -> Check:
    """Nothing, or what `check` wants."""

    def optional(value: Any, name: str) -> None:
        if value is not None:
            check(value, name)

    return optional


def each(check: Check, length: int | None = None) -> Check:
    """A list (of this many) in which everything is as `check` wants."""

    def items(value: Any, name: str) -> None:
        if not isinstance(value, list | tuple):
            raise Unfit(f"{name} is {shown(value)}, not a list")
        if length is not None and len(value) != length:
            raise Unfit(f"{name} is a list of {len(value)}, not of {length}")
        for i, item in enumerate(value):
            check(item, f"{name}[{i}]")

    return items


def table(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Names with values: all that are required, and those optional ones that are there. Others may be there too."""

    def mapping(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise Unfit(f"{name or 'it'} is {shown(value)}, not a table of names and values")
        for key, check in {**required, **(optional or {})}.items():
            inside = f"{name}.{key}" if name else key
            if key in value:
                check(value[key], inside)
            elif key in required:
                raise Unfit(f"{inside} is missing")

    return mapping


def accuracies(value: Any, name: str) -> None:
    """An accuracy matrix: after each task, per cent correct on each task so far."""
    each(each(PERCENT.check))(value, name)
    if not value:
        raise Unfit(f"{name} is empty")
    for i, row in enumerate(value):
        if len(row) != i + 1:
            raise Unfit(f"{name}[{i}] has {len(row)} accuracies, not {i + 1}")


POINT = table(  # what a pair (q, s) gave on the rotation task
    {"q": number(0, below=1).check, "s": number(0, below=1).check, "old": PERCENT.check, "rotation": PERCENT.check,
     "forgotten": PERCENT.check, "stored": at_least(0).check}, {"seconds": number(0).check})
