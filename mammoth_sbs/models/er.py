"""Experience Replay with its buffer filled by learning speed."""

from mammoth_sbs.models.stream import StreamSampled

from models import register_model
from models.er import Er


@register_model("er_sbs")
class ErSbs(StreamSampled, Er):
    """Stores with an image: labels."""

    NAME = "er_sbs"
    stock = "er"
    stores = ("labels",)
