"""A-GEM with its buffer filled by learning speed."""

from mammoth_sbs.models.base import SpeedSampled

from models import register_model
from models.agem import AGem


@register_model("agem_sbs")
class AGemSbs(SpeedSampled, AGem):
    """Stores with an image: labels."""

    NAME = "agem_sbs"
    stock = "agem"
    stores = ("labels",)
