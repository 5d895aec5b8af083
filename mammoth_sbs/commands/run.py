"""`mammoth-sbs run`, `python main.py`: choose the host, load the plugin, hand over."""

from __future__ import annotations

import sys

from mammoth_sbs import host
from mammoth_sbs.models import load_host


def main(argv: list[str] | None = None) -> None:
    """Train as the command line says."""
    argv = sys.argv[1:] if argv is None else argv
    if host.root() != host.EMBEDDED:
        argv = host.as_seen_from_here(argv)
    sys.argv[1:] = argv  # the real Mammoth reads it from there
    load_host().main()
