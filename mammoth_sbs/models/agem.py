"""A-GEM with its buffer filled by learning speed."""

from mammoth_sbs import host
from mammoth_sbs.models.base import SpeedSampled
from mammoth_sbs.models.forward import ForwardIsCall

from models import register_model
from models.agem import AGem

Seen = SpeedSampled if host.is_embedded() else type("Seen", (ForwardIsCall, SpeedSampled), {})


@register_model("agem_sbs")
class AGemSbs(Seen, AGem):  # type: ignore[misc, valid-type]
    """Stores with an image: labels."""

    NAME = "agem_sbs"
    stock = "agem"
    stores = ("labels",)
