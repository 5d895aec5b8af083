"""The networks, found by looking into this folder."""

from __future__ import annotations

import importlib
import inspect
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from mammoth_sbs.values import Range, at_least

REGISTERED_BACKBONES: dict[str, Callable[..., MammothBackbone]] = {}
WIDTHS = {"num_filters": at_least(1, 1024), "mlp_hidden_size": at_least(1, 16384)}  # beyond, no memory holds them


class MammothBackbone(nn.Module):
    """A network that ends in `classifier`, and gives logits, features or both on request."""

    classifier: nn.Linear

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

    def set_grads(self, grads: Tensor) -> None:
        """Undo of `get_grads`."""
        for p, g in zip(self.parameters(), grads.split([p.numel() for p in self.parameters()]), strict=True):
            p.grad = g.view_as(p).clone()


def register_backbone(name: str) -> Callable[[Callable[..., MammothBackbone]], Callable[..., MammothBackbone]]:
    """Decorator: make a function that builds a network known as `name`. Its keyword arguments become flags."""

    def register(build: Callable[..., MammothBackbone]) -> Callable[..., MammothBackbone]:
        REGISTERED_BACKBONES[name] = build
        return build

    return register


def backbone_flags(name: str) -> dict[str, tuple[int, Range]]:
    """Flags of a network, each with its default and range: what its function takes beside the data set's sizes."""
    parameters = inspect.signature(REGISTERED_BACKBONES[name]).parameters
    return {p.name: (p.default, WIDTHS.get(p.name, at_least(1)))
            for p in parameters.values() if p.name not in ("num_classes", "input_shape")}


def get_backbone_class(name: str) -> Callable[..., MammothBackbone]:
    """The function that builds the network `name`."""
    return REGISTERED_BACKBONES[name.replace("_", "-").lower()]


def get_backbone(args: Namespace, input_shape: tuple[int, int, int] = (3, 32, 32)) -> MammothBackbone:
    """The network that `args` asks for."""
    flags = {name: getattr(args, name) for name in backbone_flags(args.backbone)}
    return get_backbone_class(args.backbone)(num_classes=args.num_classes, input_shape=input_shape, **flags)


for _file in Path(__file__).parent.glob("*.py"):
    if _file.stem != "__init__":
        importlib.import_module(f"backbone.{_file.stem}")
