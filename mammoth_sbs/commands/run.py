"""`mammoth-sbs run`, `python main.py`: choose the host, load the plugin, hand over."""

from __future__ import annotations

import sys

from mammoth_sbs import host
from mammoth_sbs.commands import Parser, never_fail_to_print
from mammoth_sbs.errors import command, one_line
from mammoth_sbs.experiments.duration import announce
from mammoth_sbs.models import load_host


def parser() -> Parser:
    """All flags of all models, for a shell to complete; a run itself has those of its own model."""
    module = load_host()
    names = {"model": sorted(name.replace("-", "_") for name in module.get_model_names()),
             "dataset": list(module.datasets.get_dataset_names()), "backbone": sorted(module.REGISTERED_BACKBONES)}
    it = Parser(prog="mammoth-sbs run", conflict_handler="resolve")
    for model, dataset in [("er", "seq-folder"), *((model, "seq-digits") for model in names["model"])]:
        for action in module.build_parser(["--model", model, "--dataset", dataset])._actions:
            action.choices = names.get(action.dest, action.choices)
            it._add_action(action)
    return it


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    never_fail_to_print()
    if argv is None:
        argv, sys.excepthook = sys.argv[1:], one_line
    with command():
        if host.root() == host.EMBEDDED:
            announce(argv)
            load_host().main(load_host().parse_args(argv))
        else:
            load_host().main(argv)
