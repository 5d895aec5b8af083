"""`mammoth-sbs report RESULTS... -o report.html`: one page with every run."""

from __future__ import annotations

import shlex
from pathlib import Path

from mammoth_sbs.commands import Parser
from mammoth_sbs.commands.figure import add_selection, selected
from mammoth_sbs.figures.output import write_text
from mammoth_sbs.figures.report import page
from mammoth_sbs.values import path


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs report",
                description="One self-contained page: means with paired differences, accuracy per task, heat maps, "
                            "every run, filters, and the command that makes each number again.")
    add_selection(it)
    it.add_argument("-o", "--out", type=path, default=Path("report.html"), metavar="FILE.html", help="the page")
    return it


def main(argv: list[str]) -> None:
    """Write the page."""
    args = parser().parse_args(argv)
    runs = selected(args)
    chosen = [f"--where {shlex.quote(f'{flag}={value}')}" for flag, value in args.where]
    chosen += ["--common-seeds"] * args.common_seeds
    chosen += [f"--metric {args.metric}"] * (args.metric != "final")
    chosen += [f"--accept-version {shlex.quote(name)}" for name in args.accept_version]
    words = " ".join([*(shlex.quote(str(folder)) for folder in args.results), *chosen])
    print(write_text(args.out, page(runs, words, args.common_seeds, args.metric), "report"))
