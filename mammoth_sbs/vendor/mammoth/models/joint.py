from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets.utils.continual_dataset import ContinualDataset, MammothDatasetWrapper, TaskLoader
from models.utils.continual_model import ContinualModel
from utils.progress import Progress
from utils.schedulers import get_scheduler


class Joint(ContinualModel):
    """Waits for the last task, then trains on all tasks at once: the upper bound."""

    NAME = "joint"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tasks: list[MammothDatasetWrapper] = []

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        return 0.0

    def end_task(self, dataset: ContinualDataset) -> None:
        self.tasks.append(dataset.train_loader.dataset)
        if len(self.tasks) < self.n_tasks:
            return
        everything = MammothDatasetWrapper(torch.cat([t.data for t in self.tasks]),
                                           torch.cat([t.targets for t in self.tasks]),
                                           np.concatenate([t.indexes for t in self.tasks]), self.tasks[0].transform)
        self.tasks.clear()
        loader = TaskLoader(everything, self.args.batch_size, shuffle=True, seed=self.args.seed)
        self.opt = self.get_optimizer()
        scheduler = get_scheduler(self, self.args)
        progress = Progress("Joint", self.args.n_epochs * len(loader), self.args.non_verbose)
        for _ in range(self.args.n_epochs):
            for inputs, labels, _ in loader:
                self.opt.zero_grad()
                loss = self.loss(self.net(inputs.to(self.device)), labels.to(self.device))
                loss.backward()
                self.opt.step()
                progress.step(loss.item())
            if scheduler is not None:
                scheduler.step()
        progress.close()
