"""`mammoth-sbs patch > mammoth.patch`: the patch for a Mammoth checkout."""

from __future__ import annotations

from mammoth_sbs.commands import Parser
from mammoth_sbs.files import shipped


def parser() -> Parser:
    return Parser(prog="mammoth-sbs patch",
                  description="Print a patch that only adds files: after `mammoth-sbs patch | git apply` in a Mammoth "
                              "checkout its own main.py\nknows the _sbs models. Undone by "
                              "`mammoth-sbs patch | git apply -R`.")


def main(argv: list[str]) -> None:
    parser().parse_args(argv)
    print(shipped("patches/mammoth.patch").read_text(encoding="utf-8"), end="")
