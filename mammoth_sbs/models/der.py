"""DER with its buffer filled by learning speed."""

from mammoth_sbs.models.stream import StreamSampled

from models import register_model
from models.der import Der


@register_model("der_sbs")
class DerSbs(StreamSampled, Der):
    """Stores with an image: logits."""

    NAME = "der_sbs"
    stock = "der"
    stores = ("logits",)
