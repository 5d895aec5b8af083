"""What the tests of the embedded host share."""

from __future__ import annotations

from argparse import Namespace

from tests.conftest import mammoth_main

FAST = "--train_per_class 20 --n_epochs 1"


def parse(line: str) -> Namespace:
    return mammoth_main.parse_args(line.split())
