from copy import copy
from typing import Any

from torch import Tensor

from datasets.utils.continual_dataset import ContinualDataset
from models.sgd import Sgd
from utils.training import train_task


class Joint(Sgd):
    """Waits for the last task, then trains on all tasks at once: the upper bound."""

    NAME = "joint"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = True

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        if not self.waiting:
            return super().observe(inputs, labels, not_aug_inputs)
        self.opt.step()  # no gradients, so it does nothing; a schedule wants to have seen it
        return 0.0

    def end_task(self, dataset: ContinualDataset) -> None:
        """Nothing of earlier tasks is kept: at the end the whole data set is cut anew, as one task."""
        if self.current_task < self.n_tasks - 1:
            return
        whole = copy(dataset)
        whole.c_task, whole.test_loaders, whole.N_CLASSES_PER_TASK, whole.domains = -1, [], dataset.N_CLASSES, None
        whole.get_data_loaders()
        whole.test_loaders = dataset.test_loaders  # the same images, which need not be there twice
        self.opt, self.waiting = self.get_optimizer(), False
        train_task(self, whole, self.args, title="Joint")
        self.waiting = True
