from argparse import ArgumentParser

import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.values import number

from models.der import Der
from models.utils.replay_model import ReplayModel


class Derpp(ReplayModel):
    """DER++: DER, and cross-entropy on the labels of a second batch from the buffer."""

    NAME = "derpp"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        Der.get_parser(parser)
        parser.add_argument("--beta", type=number(0), required=True, help="weight of the loss on replayed labels")
        return parser

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs, labels)
        if not self.buffer.is_empty():
            replayed, _, logits = self.replay()
            loss = loss + self.args.alpha * F.mse_loss(self.net(replayed), logits)
            replayed, old_labels, _ = self.replay()
            loss = loss + self.args.beta * self.loss(self.net(replayed), old_labels)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=outputs)
        return self.number(loss)
