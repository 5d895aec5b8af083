"""What the plugin relies on from its host, checked on the host in use: `python -m tests.host.contract DIR [steps]`.

`test_contract.py` runs this in a process per host, because two hosts' `models` cannot live in one.
Writes DIR/<host>.json with what failed, and for `steps` DIR/<host>.pt with a step of each stock method.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mammoth_sbs import host
from tests.host.contract.promises import CHECKS
from tests.host.contract.small_runs import Host, output, write_cifar
from tests.host.contract.steps import steps


def main(folder: Path, with_steps: bool) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    write_cifar(folder)
    with output():
        here = Host(folder)
    torch.set_num_threads(1)
    failed: dict[str, str | None] = {}
    for name, check in CHECKS.items():
        try:
            with output():
                check(here)
            failed[name] = None
        except BaseException:  # a SystemExit of the host is a failure too
            failed[name] = traceback.format_exc()
    name = "embedded" if host.is_embedded() else "mammoth"
    (folder / f"{name}.json").write_text(json.dumps(failed))
    if with_steps:
        with output():
            torch.save(steps(here, folder / "weights.pt"), folder / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] == ["steps"])
