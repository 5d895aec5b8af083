"""`mammoth-sbs doctor`: which host, what it has of what the plugin needs, which data; and what to do about the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mammoth_sbs import host
from mammoth_sbs.commands import Parser
from mammoth_sbs.host.doctor import examine
from mammoth_sbs.models import load_host


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs doctor", description=__doc__)
    it.add_argument("--mammoth", metavar="CHECKOUT", help="look at this Mammoth (default: MAMMOTH_ROOT, else the "
                                                          "embedded host)")
    it.add_argument("--base_path", default="data", metavar="DIR", help="where data sets are")
    return it


def main(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    base = Path(args.base_path).expanduser().resolve()  # before Mammoth changes the working directory
    if args.mammoth:
        os.environ["MAMMOTH_ROOT"] = args.mammoth
    folder = host.root()
    if folder != host.EMBEDDED:
        host.check(folder)
    problems = examine(folder, base, load_host)
    if problems:
        print("\nwhat to do")
        for problem in problems:
            print(f"  {problem}")
        sys.exit(1)
    print("\nall is well")
