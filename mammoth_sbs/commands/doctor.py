"""`mammoth-sbs doctor`: which host, what it has of what the plugin needs, which data; and what to do about the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mammoth_sbs import host
from mammoth_sbs.commands import Parser
from mammoth_sbs.host.doctor import examine
from mammoth_sbs.models import load_host, wrappable
from mammoth_sbs.values import path, text


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs doctor", description=__doc__)
    it.add_argument("--mammoth", type=text, metavar="CHECKOUT",
                    help="look at this Mammoth (default: MAMMOTH_ROOT, else the embedded host)")
    it.add_argument("--base_path", type=path, metavar="DIR", help="where data sets are (default: data)")
    return it


def main(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    base = (args.base_path or Path("data")).expanduser().resolve()  # before Mammoth changes the working directory
    if args.mammoth:
        os.environ["MAMMOTH_ROOT"] = args.mammoth
    folder = host.root()
    if folder != host.EMBEDDED:
        host.check(folder)
    problems = examine(folder, base, load_host, wrappable)
    if args.base_path and not base.is_dir():
        problems.append(f"--base_path {args.base_path}: there is no such folder; make it, or give the one with data")
    if problems:
        print("\nwhat to do")
        for problem in problems:
            print(f"  {problem}")
        sys.exit(1)
    print("\nall is well")
