"""The networks, found by looking into this folder."""

from __future__ import annotations

import importlib
import inspect
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mammoth_sbs.values import at_least

from utils import flags_of

REGISTERED_BACKBONES: dict[str, Callable[..., MammothBackbone]] = {}
WIDTHS = {"num_filters": at_least(1, 1024), "mlp_hidden_size": at_least(1, 16384),  # beyond, no memory holds them
          "head_hidden": at_least(0, 16384), "image_size": at_least(8, 1024)}
HELP = {  # of flags whose name does not say it
    "pretrained": "1: begin with the weights that it was trained to before",
    "weights": "begin with the weights in this file, a state_dict as .pth or .safetensors (default: none)",
    "image_size": "images are resized to this many pixels for it",
    "frozen": "1: it does not learn; its features are computed once per data set and kept, and a head on them learns",
    "head_hidden": "with --frozen 1: width of the head's hidden layer; 0: no hidden layer",
}


class MammothBackbone(nn.Module):
    """A network that ends in `classifier`, and gives logits, features or both on request."""

    classifier: nn.Linear
    device: torch.device | str = "cpu"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()

    def to(self, *args: Any, **kwargs: Any) -> MammothBackbone:
        """Says afterwards where it is."""
        super().to(*args, **kwargs)
        self.device = next((p.device for p in self.parameters()), "cpu")
        return self

    def embed(self, x: Tensor) -> Tensor:
        """What the classifier sees."""
        raise NotImplementedError(f"{type(self).__name__} gives no features")

    def forward(self, x: Tensor, returnt: str = "out") -> Tensor | tuple[Tensor, Tensor]:
        """`returnt`: 'out' for logits, 'features', or 'both' for (logits, features)."""
        features = self.embed(x)
        if returnt == "features":
            return features
        out = self.classifier(features)
        if returnt == "out":
            return out
        if returnt in ("both", "full"):
            return out, features
        raise ValueError(f"returnt is out, features or both, not {returnt}")

    def features(self, x: Tensor) -> Tensor:
        return self.embed(x)

    def get_params(self) -> Tensor:
        """All parameters in one vector."""
        return nn.utils.parameters_to_vector(self.parameters())

    def get_grads(self) -> Tensor:
        """All gradients in one vector; zero where there is none."""
        return torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.view(-1)
                          for p in self.parameters()])

    def set_params(self, new_params: Tensor) -> None:
        """Undo of `get_params`."""
        nn.utils.vector_to_parameters(new_params, self.parameters())

    def set_grads(self, grads: Tensor) -> None:
        """Undo of `get_grads`."""
        set_gradient(self, grads)


def set_gradient(net: nn.Module, gradient: Tensor) -> None:
    """Give a network's parameters their parts of a gradient that is one vector."""
    for p, g in zip(net.parameters(), gradient.split([p.numel() for p in net.parameters()]), strict=True):
        p.grad = g.view_as(p).clone()


def register_backbone(name: str) -> Callable[[Callable[..., MammothBackbone]], Callable[..., MammothBackbone]]:
    """Decorator: make a function that builds a network known as `name`. Its keyword arguments become flags."""

    def register(build: Callable[..., MammothBackbone]) -> Callable[..., MammothBackbone]:
        REGISTERED_BACKBONES[name.replace("_", "-").lower()] = build
        return build

    return register


def backbone_flags(name: str) -> dict[str, tuple[Any, Any]]:
    """Flags of a network, each with its default and range: what its function takes beside the data set's sizes."""
    return {flag: (default, WIDTHS.get(flag, kind))
            for flag, (default, kind) in flags_of(REGISTERED_BACKBONES[name], *_sizes).items()}


def get_backbone_class(name: str) -> Callable[..., MammothBackbone]:
    """The function that builds the network `name`."""
    return REGISTERED_BACKBONES[known_backbone(name)]


def known_backbone(name: str) -> str:
    """`name` as it is registered; a network of timm, whose names are timm's own, is registered when it is asked for."""
    if name.startswith("timm:"):
        importlib.import_module("backbone.pretrained").register_timm(name)
        return name
    return name.replace("_", "-").lower()


def get_backbone(args: Namespace, input_shape: tuple[int, int, int] | None = None) -> MammothBackbone:
    """The network that `args` asks for; without `input_shape`, for the images of the last one that was built."""
    build = get_backbone_class(args.backbone)
    _sizes.update({"num_classes": args.num_classes} | ({"input_shape": input_shape} if input_shape else {}))
    taken = inspect.signature(build).parameters
    flags = {name: getattr(args, name) for name in backbone_flags(args.backbone)}
    return build(**{name: value for name, value in _sizes.items() if name in taken}, **flags)


_sizes: dict[str, Any] = {"num_classes": 10, "input_shape": (3, 32, 32)}  # the data set's


for _file in Path(__file__).parent.glob("*.py"):
    if _file.stem != "__init__":
        importlib.import_module(f"backbone.{_file.stem}")
