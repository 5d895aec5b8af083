"""Learning-rate schedules within a task."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

if TYPE_CHECKING:
    from models.utils.continual_model import ContinualModel


def get_scheduler(model: ContinualModel, args: Namespace) -> LRScheduler | None:
    """The schedule that `args` asks for, from the start: every task begins with the full learning rate."""
    if args.lr_scheduler == "multisteplr":
        return MultiStepLR(model.opt, args.lr_milestones, args.sched_multistep_lr_gamma)
    if args.lr_scheduler == "cosine":
        return CosineAnnealingLR(model.opt, args.n_epochs)
    return None
