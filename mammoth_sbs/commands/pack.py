"""`mammoth-sbs pack RESULTS...`: make one file of the runs of a sweep, which is read like the folder."""

from __future__ import annotations

from mammoth_sbs.commands import Parser
from mammoth_sbs.experiments.store import Store
from mammoth_sbs.values import path


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs pack",
                description="RESULTS becomes RESULTS.jsonl, a run per line. Sweeps, figures and reports that are "
                            "given RESULTS read it like the folder; after more runs there, pack it again.")
    it.add_argument("results", type=path, nargs="+", metavar="RESULTS",
                    help="folders that `mammoth-sbs sweep` has written")
    return it


def main(argv: list[str]) -> None:
    for folder in parser().parse_args(argv).results:
        store = Store(folder)
        with store.locked():
            file = store.pack()
        store.remove_if_empty()
        print(file)
