"""`mammoth-sbs run`, `python main.py`: choose the host, load the plugin, hand over."""

from __future__ import annotations

import sys

from mammoth_sbs import host
from mammoth_sbs.errors import one_line
from mammoth_sbs.models import load_host


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    if argv is None:
        argv, sys.excepthook = sys.argv[1:], one_line
    if host.root() != host.EMBEDDED:
        argv = host.as_seen_from_here(argv)
    sys.argv[1:] = argv  # the real Mammoth reads it from there
    load_host().main()
