"""`mammoth-sbs completion bash`: what makes a shell complete commands, flags and names."""

from __future__ import annotations

import argparse
import importlib

from mammoth_sbs.commands import COMMANDS, Parser
from mammoth_sbs.errors import UserError
from mammoth_sbs.values import path


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs completion",
                description="Print a script that completes commands, flags and the names of models, data sets and "
                            "networks. For bash: mammoth-sbs completion bash > "
                            "~/.local/share/bash-completion/completions/mammoth-sbs")
    it.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="which shell")
    return it


def main(argv: list[str]) -> None:
    shell = parser().parse_args(argv).shell
    try:
        import shtab
    except ImportError:
        raise UserError("completion needs shtab, which is missing; pip install 'mammoth-sbs[completion]'") from None
    whole = Parser(prog="mammoth-sbs")
    whole.add_argument("--version", action="store_true")
    commands = whole.add_subparsers(parser_class=argparse.ArgumentParser)
    parts = {name: importlib.import_module(f"mammoth_sbs.commands.{name}").parser() for name in COMMANDS}
    for name, part in parts.items():
        for action in part._actions:
            if action.type is path or "DIR" in str(action.metavar) or "FILE" in str(action.metavar):
                action.complete = shtab.FILE
        parents = [part, parts["run"]] if name == "tune" else [part]  # tune takes all flags of run
        commands.add_parser(name, help=COMMANDS[name], parents=parents, add_help=False, conflict_handler="resolve")
    print(shtab.complete(whole, shell))
