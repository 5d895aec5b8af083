"""Which Mammoth to run on: the embedded host, or the user's own checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

from mammoth_sbs.errors import UserError

EMBEDDED = Path(__file__).resolve().parent / "vendor" / "mammoth"
MODELS = ("er", "der", "derpp", "xder", "gem", "agem", "rpc", "fdr")


def root() -> Path:
    """The folder with Mammoth's layout that is in use."""
    given = os.environ.get("MAMMOTH_ROOT")
    return Path(given).resolve() if given else EMBEDDED


def import_torchvision() -> ModuleType:
    """torchvision, even beside a CPU build of torch, where its compiled operators do not load.

    Only its Python parts are needed; it asks for the schemas of two operators while importing, so they are declared.
    """
    if "torchvision" not in sys.modules:
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                       "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"):
            if not hasattr(torch.ops.torchvision, schema.split("(")[0]):
                library.define(schema)
        _keep.append(library)
    import torchvision

    return torchvision


_keep: list = []  # an operator library lives as long as its object


def activate() -> Path:
    """Put the host on `sys.path`, so that `models`, `datasets`, `backbone` and `utils` are its own."""
    folder = root()
    if not (folder / "models").is_dir() or not (folder / "utils").is_dir():
        raise UserError(f"MAMMOTH_ROOT {folder}: not a Mammoth checkout (no models/ or utils/ in it)")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder
