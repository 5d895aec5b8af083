from argparse import ArgumentParser

import torch
from torch import Tensor

from mammoth_sbs.values import number

from datasets.utils.continual_dataset import ContinualDataset
from models.utils.replay_model import ReplayModel
from utils.args import add_as_paper_arg


class Fdr(ReplayModel):
    """Function Distance Regularization: after each step, a second one back to the stored outputs of old tasks.

    As in Mammoth, `--alpha` has no effect on that second step and the buffer is divided by the tasks before this one.
    """

    NAME = "fdr"

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        ReplayModel.get_parser(parser)
        add_as_paper_arg(parser, "weigh the penalty by alpha, and share the buffer among all tasks seen")
        parser.add_argument("--alpha", type=number(0), required=True, help="weight of the penalty (with --as_paper 1)")
        return parser

    def end_task(self, dataset: ContinualDataset) -> None:
        share = self.args.buffer_size // max(self.current_task + bool(self.args.as_paper), 1)
        if self.current_task > 0:
            x, logits, tasks = self.buffer.get_all_data()
            self.buffer.empty()
            for t in tasks.unique():
                rows = torch.where(tasks == t)[0][:share]
                self.buffer.add_data(examples=x[rows], logits=logits[rows], task_labels=tasks[rows])
        room = share
        with torch.no_grad():
            for data in dataset.train_loader:
                outputs = self.net(data[0].to(self.device))  # in training mode, as Mammoth does
                if room < 0:
                    break
                self.buffer.add_data(examples=data[2][:room], logits=outputs[:room],
                                     task_labels=torch.full_like(data[1], self.current_task)[:room])
                room -= self.args.batch_size

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        if not self.buffer.is_empty():
            self.opt.zero_grad()
            x, logits, _ = self.replay()
            loss = (self.net(x).softmax(1) - logits.softmax(1)).norm(2, 1).mean()
            if self.args.as_paper:
                loss = self.args.alpha * loss
            loss.backward()
            self.opt.step()
        return self.number(loss)
