"""A-GEM with its buffer filled by learning speed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from mammoth_sbs import host
from mammoth_sbs.models.base import SpeedSampled

from models import register_model
from models.agem import AGem


@contextmanager
def forward_is_call(net: nn.Module) -> Iterator[None]:
    """While it lasts, `net.forward(x)` is `net(x)`: Mammoth's A-GEM calls the former, which no hook would see."""
    forward = net.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        vars(net)["forward"] = forward
        try:
            return net(*args, **kwargs)
        finally:
            vars(net)["forward"] = call

    vars(net)["forward"] = call
    try:
        yield
    finally:
        del vars(net)["forward"]


@register_model("agem_sbs")
class AGemSbs(SpeedSampled, AGem):
    """Stores with an image: labels."""

    NAME = "agem_sbs"
    stock = "agem"
    stores = ("labels",)

    def meta_observe(self, *args: Any, **kwargs: Any) -> float:
        if host.is_embedded():
            return super().meta_observe(*args, **kwargs)
        with forward_is_call(self.net):
            return super().meta_observe(*args, **kwargs)
