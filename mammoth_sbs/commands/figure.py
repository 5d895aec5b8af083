"""`mammoth-sbs figure KIND RESULTS... -o DIR`: a figure of the paper from the runs of a sweep."""

from __future__ import annotations

import argparse
import sys

from mammoth_sbs.commands import Parser
from mammoth_sbs.figures import KINDS
from mammoth_sbs.figures.results import Run, group, load
from mammoth_sbs.metrics import METRICS
from mammoth_sbs.values import path, text


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The flags that say which runs."""
    add = parser.add_argument
    add("results", type=path, nargs="+", metavar="RESULTS", help="folders that `mammoth-sbs sweep` has written")
    add("--where", action="append", default=[], metavar="FLAG=VALUE", type=assignment,
        help="only runs with this value of a flag, or without it (FLAG=off); may be given again: of one flag any of "
             "the values, of several all")
    add("--common-seeds", action="store_true",
        help="where seeds are missing, compare those that all have (otherwise this is an error)")
    add("--metric", type=metric, default="final", metavar="METRIC", choices=list(METRICS),
        help=f"what is compared: {', '.join(METRICS)}")
    add("--accept-version", type=text, action="append", default=[], metavar="VERSION",
        help="count results of this code as equal; may be given again")


def metric(text: str) -> str:
    return text.replace("-", "_")


def assignment(text: str) -> tuple[str, str]:
    flag, equals, value = text.lstrip("-").partition("=")
    if not (flag and equals and value):
        raise argparse.ArgumentTypeError(f"{text}: give FLAG=VALUE, such as buffer_size=500")
    return flag.replace("-", "_"), value


def selected(args: argparse.Namespace) -> list[Run]:
    """The runs that the flags ask for, and a line about those whose standard error nobody can know."""
    where, accept = list(args.where), args.accept_version
    if getattr(args, "kind", None) == "hosts":  # each folder is of one code, and the two of two
        runs = [run for folder in args.results for run in load([folder], accept, where)]
    else:
        runs = load(args.results, accept, where)
    for members in group(runs, lambda run: run.all_but_the_seed).values():
        if len(members) == 1:
            run = members[0]
            print(f"note: {run.dataset}, {run.method}, {run.arm}: one seed, so there is no standard error",
                  file=sys.stderr)
    return runs


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs figure",
                description="Figures of the paper from the runs of a sweep: PNG and SVG, the CSV of what is drawn, "
                            "and tables in Markdown and LaTeX.")
    it.add_argument("kind", choices=list(KINDS), metavar="KIND",
                    help="bars: stock against SBS per method; heatmap: difference to uniform over (q, s); "
                         "curves: accuracy along a stream, of runs with --eval_steps; "
                         "samplers: Table 1, beside the paper's numbers; forgetting, matrices, memory, gallery: from "
                         "recorded runs; following, robustness: heat maps of other following tasks and settings; "
                         "regret: how far ways to choose (q, s) stay behind the best pair of heat maps; "
                         "hosts: two folders, one of a sweep with MAMMOTH_ROOT")
    add_selection(it)
    it.add_argument("--base_path", type=text, default="./data/", metavar="DIR", help="gallery: where the data sets are")
    it.add_argument("-o", "--out", type=path, required=True, metavar="DIR", help="where the files go")
    return it


def main(argv: list[str]) -> None:
    """Draw one kind of figure."""
    args = parser().parse_args(argv)
    more = {"base_path": args.base_path} if args.kind == "gallery" else {}
    for file in KINDS[args.kind].write(selected(args), args.out, args.common_seeds, args.metric, **more):
        print(file)
