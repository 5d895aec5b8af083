"""The `mammoth-sbs` command: one thin module per subcommand, imported when it is asked for."""

from __future__ import annotations

import importlib
import io
import sys

from mammoth_sbs import __version__
from mammoth_sbs.errors import UserError, command, one_line
from mammoth_sbs.parser import Parser, suggest

__all__ = ["COMMANDS", "Parser", "main"]

COMMANDS = {
    "demo": "SBS beside its alternatives on real digits, in less than a minute",
    "run": "train a model, as `python main.py` does",
    "doctor": "what is installed and found, and what to do about what is not",
    "data": "look at pictures of your own; which data sets are there, and write them as torchvision's files",
    "tune": "choose q and s by the rotation task",
    "sweep": "run a grid of experiments, again and again until it is done",
    "pack": "make one file of the runs of a sweep",
    "forgotten": "what a recorded run forgot, and whether learning speed had said so",
    "figure": "draw the paper's figures and tables from the runs of a sweep",
    "report": "one page with every run, to filter and to read",
    "configs": "list or copy the sweeps and examples that come with the package",
    "patch": "print the patch for a Mammoth checkout",
    "completion": "print what makes a shell complete commands and flags",
}


def never_fail_to_print() -> None:
    """A name that the terminal's encoding does not have is printed with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(argv: list[str] | None = None) -> None:
    """Hand the rest of the command line to the subcommand's `main`."""
    never_fail_to_print()
    if argv is None:
        argv, sys.excepthook = sys.argv[1:], one_line
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: mammoth-sbs COMMAND ...\n")
        for name, text in COMMANDS.items():
            print(f"  {name:10} {text}")
        print("\nmammoth-sbs COMMAND --help says more; mammoth-sbs --version is what it says.")
        return
    if argv[0] == "--version":
        print(f"mammoth-sbs {__version__}")
        return
    if argv[0] not in COMMANDS:
        raise UserError(f"mammoth-sbs {argv[0]}: no such command{suggest(argv[0], COMMANDS) or '.'} "
                        f"There are: {', '.join(COMMANDS)}")
    with command():
        importlib.import_module(f"{__name__}.{argv[0]}").main(argv[1:])

