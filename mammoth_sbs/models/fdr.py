"""FDR with its buffer filled by learning speed."""

from mammoth_sbs.models.base import SpeedSampled

from models import register_model
from models.fdr import Fdr


@register_model("fdr_sbs")
class FdrSbs(SpeedSampled, Fdr):
    """Stores with an image: logits and task_labels."""

    NAME = "fdr_sbs"
    stock = "fdr"
    stores = ("logits", "task_labels")
