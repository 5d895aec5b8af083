from torch import Tensor

from models.utils.replay_model import ReplayModel


class Er(ReplayModel):
    """Experience Replay: every batch is joined by one from the buffer."""

    NAME = "er"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        self.opt.zero_grad()
        all_inputs, all_labels = self.with_replay(inputs, labels)
        loss = self.loss(self.net(all_inputs), all_labels)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return self.number(loss)
