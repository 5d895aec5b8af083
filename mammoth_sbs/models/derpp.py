"""DER++ with its buffer filled by learning speed."""

from mammoth_sbs.models.stream import StreamSampled

from models import register_model
from models.derpp import Derpp


@register_model("derpp_sbs")
class DerppSbs(StreamSampled, Derpp):
    """Stores with an image: labels and logits."""

    NAME = "derpp_sbs"
    stock = "derpp"
    stores = ("labels", "logits")
