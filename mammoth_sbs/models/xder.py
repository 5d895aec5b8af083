"""X-DER with its buffer filled by learning speed."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mammoth_sbs.models.quota import Chosen, ClassQuota

from models import register_model
from models.xder import XDer


class Announced(Chosen):
    """Says the length of each batch in `args.batch_size`: Mammoth's X-DER builds task labels of that length."""

    args: Any

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        size = self.args.batch_size
        try:
            for batch in super().__iter__():
                self.args.batch_size = len(batch[1])
                yield batch
        finally:
            self.args.batch_size = size


@register_model("xder_sbs")
class XDerSbs(ClassQuota, XDer):
    """Logits are taken, and later updated, by X-DER itself."""

    NAME = "xder_sbs"
    stock = "xder"

    def loader(self, data: Any, chosen: Tensor) -> Chosen:
        loader = Announced(data, chosen, self.args.batch_size)
        loader.args = self.args
        return loader
