"""RPC with its buffer filled by learning speed."""

from torch import Tensor

from mammoth_sbs.models.quota import ClassQuota

from models import register_model
from models.rpc import RPC


@register_model("rpc_sbs")
class RPCSbs(ClassQuota, RPC):
    """Predictions, and so learning speed, are those of the fixed polytope head, as in RPC's own `forward`."""

    NAME = "rpc_sbs"
    stock = "rpc"

    def classify(self, outputs: Tensor) -> Tensor:
        return outputs[:, :-1] @ self.rpchead

    def old_quota(self) -> int:
        """Stock RPC divides the buffer by the tasks before this one."""
        tasks = self.current_task + bool(getattr(self.args, "as_paper", False))
        return self.args.buffer_size // (max(tasks, 1) * self.cpt)
