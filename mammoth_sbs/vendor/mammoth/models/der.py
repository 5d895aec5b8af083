from argparse import ArgumentParser

import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.values import number

from models.utils.replay_model import ReplayModel


class Der(ReplayModel):
    """Dark Experience Replay: the network keeps to the logits it once gave to the buffer's examples."""

    NAME = "der"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        ReplayModel.get_parser(parser)
        parser.add_argument("--alpha", type=number(0), required=True, help="weight of the loss on replayed logits")
        return parser

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs, labels)
        if not self.buffer.is_empty():
            replayed, logits = self.replay()
            loss = loss + self.args.alpha * F.mse_loss(self.net(replayed), logits)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, logits=outputs)
        return self.number(loss)
