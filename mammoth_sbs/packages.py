"""Packages that need a hand to be imported."""

from __future__ import annotations

from types import ModuleType


def import_torchvision() -> ModuleType:
    """torchvision, even beside a CPU build of torch, where its compiled operators do not load.

    Only its Python parts are needed; it asks for the schemas of two operators while importing. They are declared if
    they are missing, and only then: where the operators do load, a second declaration would be an error.
    """
    try:
        import torchvision
    except RuntimeError:
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _keep.append(library)
        import torchvision
    return torchvision


_keep: list = []  # an operator library lives as long as its object
