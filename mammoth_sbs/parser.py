"""What the command lines of the commands and of the embedded host have in common."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import Range


def program() -> str:
    """What this user types to train, for the usage line and for commands to repeat."""
    if given := os.environ.get("MAMMOTH_SBS_PROGRAM"):  # set by scripts/run
        return given
    return "python main.py" if Path(sys.argv[0]).name == "main.py" else "mammoth-sbs run"


def spelled(flag: str) -> str:
    """A flag of a run as it is written here: SBS's own with dashes, all others, as in Mammoth, with underscores."""
    name = flag.lstrip("-").replace("-", "_")
    return "--" + (name.replace("_", "-") if name.startswith("sbs_") else name)


def suggest(given: str, known: Iterable[str]) -> str:
    """'; did you mean ...?', if something known is near."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest flag for a typo. In a flag, `-` and `_` are the same."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Defaults, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def all_flags(self) -> set[str]:
        """Its own, and those of its actions."""
        actions = [part for action in self._actions if isinstance(action, argparse._SubParsersAction)
                   for part in action.choices.values()]
        return set(self._option_string_actions).union(*(part.all_flags() for part in actions))

    def unknown(self, flag: str) -> str:
        """What to say about a flag that is not among these."""
        return f"unknown flag {flag}{suggest(flag, self.all_flags())}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = {flag.replace("_", "-"): flag for flag in self._option_string_actions}
        words = []
        for word in sys.argv[1:] if args is None else args:
            flag, equals, value = word.partition("=")
            words.append(known.get(flag.replace("_", "-"), flag) + equals + value if word.startswith("--") else word)
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """All of the command line. A typo comes before what is missing because of it."""
        known = self.all_flags()
        for word in sys.argv[1:] if args is None else args:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag.replace("_", "-") not in (name.replace("_", "-") for name in known):
                raise UserError(f"{self.unknown(flag)}; see {self.prog} --help")
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise UserError(f"{unknown[0]} belongs to no flag; see {self.prog} --help")
        return parsed


class Defaults(argparse.RawDescriptionHelpFormatter):
    """Every flag's default stands in the help, and its `origin`, unless the help names it in words of its own; and the
    range of every number."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = self._with_default(action)
        return f"{text} [{action.type.range}]" if isinstance(action.type, Range) else text

    def _with_default(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help or ""
        if action.required:
            return f"{text} (required)"
        if default is argparse.SUPPRESS or action.nargs == 0 or not action.option_strings or "(default" in text:
            return action.help
        values = default if isinstance(default, list) else [default]
        shown = " ".join(str(int(value) if isinstance(value, bool) else value) for value in values)
        shown = "none" if default in (None, []) else shown.replace("%", "%%")
        return f"{text} (default: {shown}{getattr(action, 'origin', '')})"
