from torch import Tensor

from models.utils.continual_model import ContinualModel


class Sgd(ContinualModel):
    """Finetuning: no countermeasure against forgetting, the lower bound."""

    NAME = "sgd"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        return self.number(loss)
