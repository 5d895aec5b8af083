"""GEM with its buffer filled by learning speed."""

from mammoth_sbs.models.quota import ClassQuota

from models import register_model
from models.gem import Gem


@register_model("gem_sbs")
class GemSbs(ClassQuota, Gem):
    """Every class seen has the same quota, so a new class gets what an old one keeps."""

    NAME = "gem_sbs"
    stock = "gem"

    def new_quota(self) -> int:
        return self.old_quota()
