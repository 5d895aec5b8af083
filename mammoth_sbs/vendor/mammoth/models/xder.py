from argparse import ArgumentParser
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.errors import UserError
from mammoth_sbs.values import at_least, number

from datasets.utils.continual_dataset import ContinualDataset
from models.utils.class_quota import new_class_quotas, reduce_classes, take_by_quota
from models.utils.replay_model import ReplayModel
from utils.args import binary
from utils.augmentations import Normalize, StrongAugment
from utils.batch_norm import bn_track_stats


def supervised_contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """SupCon loss of several heads at once: `features` is (heads, images, views, dim); the mean over heads and images.

    Every view is drawn to all other views of its class, within each head.
    """
    heads, n, views, dim = features.shape
    z = F.normalize(features, dim=3).transpose(1, 2).reshape(heads, views * n, dim)
    similarity = z @ z.transpose(1, 2) / temperature
    similarity = similarity - similarity.max(2, keepdim=True).values.detach()
    others = ~torch.eye(views * n, dtype=torch.bool, device=z.device)
    positives = (labels[:, None] == labels[None, :]).repeat(views, views) & others
    log_prob = similarity - (similarity.exp() * others).sum(2, keepdim=True).log()
    return -((log_prob * positives).sum(2) / positives.sum(1)).mean()


def similarity_preserving(student: Tensor, teacher: Tensor) -> Tensor:
    """Distance between the Gram matrices of two sets of features, their rows scaled to L1 norm 1 (as Mammoth does)."""
    grams = [F.normalize(z @ z.T, p=1, dim=1) for z in (student, teacher)]
    return (grams[0] - grams[1]).norm() ** 2 / len(student) ** 2


def hinge(bad: Tensor, good: Tensor, margin: float) -> Tensor:
    """Mean of `bad + margin - good` over the examples that violate it."""
    violation = bad + margin - good
    violated = violation > 0
    return violation[violated].mean() if violated.any() else violation.new_zeros(())


class XDer(ReplayModel):
    """eXtended DER: stored logits are kept up to date with later tasks, and the heads of future tasks are prepared."""

    NAME = "xder"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        ReplayModel.get_parser(parser)
        for name, default, values, text in (
            ("alpha", None, number(0), "weight of the loss on replayed logits"),
            ("beta", None, number(0), "weight of the loss on replayed labels"),
            ("gamma", 0.85, number(0, 1), "cap of updated logits, relative to the true class's"),
            ("lambd", 0.05, number(0), "weight of the consistency loss on future heads"),
            ("simclr_temp", 5.0, number(above=0), "temperature of the consistency loss"),
            ("simclr_batch_size", 64, at_least(1), "replayed images in the consistency loss"),
            ("simclr_num_aug", 4, at_least(2), "views per image in the consistency loss"),
            ("constr_eta", 0.1, number(0), "weight of the constraints on past and future logits"),
            ("constr_margin", 0.3, number(0), "margin of those constraints"),
            ("dp_weight", 0.0, number(0), "weight of the distance-preserving loss"),
        ):
            parser.add_argument(f"--{name}", type=values, default=default, required=default is None, help=text)
        parser.add_argument("--past_constraint", type=binary, default=False, help="constrain past logits of the stream")
        parser.add_argument("--future_constraint", type=binary, default=True, help="constrain future logits")
        parser.add_argument("--align_bn", type=binary, default=True, help="align batch normalisation with replay")
        return parser

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.update_counter: Tensor
        self.register_buffer("update_counter", torch.zeros(self.args.buffer_size))  # in checkpoints within a task
        denormalize = self.dataset.get_denormalization_transform()
        self.gpu_augmentation = StrongAugment(Normalize(denormalize.mean, denormalize.std))
        if self.dataset.frozen and (self.args.lambd or self.args.dp_weight):
            raise UserError("--frozen 1: X-DER's consistency loss compares augmented images, and there are features "
                            "only; give --lambd 0 --dp_weight 0, X-DER without that loss")

    def transplant(self, old: Tensor, new: Tensor, labels: Tensor, first_task: int, n_tasks: int) -> Tensor:
        """`old` logits with the columns of some tasks taken from `new`, scaled so that the true class stays on top."""
        columns = slice(first_task * self.cpt, (first_task + n_tasks) * self.cpt)
        fresh, truth = new[:, columns], old.gather(1, labels[:, None])
        top = fresh.max(1, keepdim=True).values
        old = old.clone()
        old[:, columns] = torch.where(top > truth, fresh * (self.args.gamma * truth / top), fresh)
        return old

    def update_stored(self, slots: Tensor, stored: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Write what the network now says about the present and future tasks into the buffer's logits."""
        t = self.current_task
        fresh = self.transplant(stored, outputs.detach(), labels, t, self.n_tasks - t)
        slots = slots.to(self.buffer.logits.device)
        self.buffer.logits[slots] = fresh.to(self.buffer.logits)
        self.buffer.task_labels[slots] = t

    def end_task(self, dataset: ContinualDataset) -> None:
        was_training = self.training
        self.train()
        t, size = self.current_task, self.args.batch_size
        if t > 0:
            reduce_classes(self.buffer, self.args.buffer_size // ((t + 1) * self.cpt))
        quota = new_class_quotas(self.buffer, self.cpt)
        with torch.no_grad(), bn_track_stats(self, False):
            for data in dataset.train_loader:
                if not quota.any():
                    break
                inputs, labels = data[0].to(self.device), data[1].to(self.device)
                outputs = self.net(inputs)
                if t > 0:
                    outputs = self.transplant(outputs, outputs, labels, 0, t)
                take = take_by_quota(data[1] % self.cpt, quota)
                self.buffer.add_data(examples=data[2][take], labels=data[1][take], logits=outputs.cpu()[take],
                                     task_labels=torch.full_like(data[1], t)[take])
            slots, inputs, labels, stored, _ = self.buffer.get_data(self.args.buffer_size, self.transform,
                                                                    return_index=True, device=self.device)
            outputs = torch.cat([self.net(part) for part in inputs.split(size)])
            old = labels // self.cpt < t
            if old.any():
                self.update_stored(slots[old], stored[old], outputs[old], labels[old])
        self.update_counter.zero_()
        self.train(was_training)

    def replay_loss(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Losses on stored logits and labels; also updates stored logits. Returns the loss, and replay's outputs."""
        if self.buffer.is_empty():
            return inputs.new_zeros(()), None
        args, t = self.args, self.current_task
        draw = [self.replay(return_index=True)]
        x, logits = draw[0][1], draw[0][3]
        outputs = self.net(torch.cat([x, inputs[: args.minibatch_size // t]]) if args.align_bn else x)[: len(x)]
        loss = args.alpha * F.mse_loss(outputs, logits)
        draw.append(self.replay(return_index=True))
        with bn_track_stats(self, not args.align_bn):
            outputs2 = self.net(draw[1][1])
        loss = loss + args.beta * self.loss(outputs2[:, : self.n_past_classes], draw[1][2])

        slots, _, labels, stored, _ = (torch.cat(pair) for pair in zip(*draw, strict=True))
        outputs = torch.cat([outputs, outputs2])
        once = ~torch.tril(slots[:, None] == slots[None, :], -1).any(1)  # a slot drawn twice is taken at its first
        slots, labels, stored, outputs = slots[once], labels[once], stored[once], outputs[once]
        old = labels // self.cpt < t
        at = slots.to(self.update_counter.device)
        self.update_counter[at[old]] += 1
        rare = old.clone()  # the n-th time a slot is drawn in a task, its logits are updated with probability 1/n
        rare[old] = (torch.rand(int(old.sum())) * self.update_counter[at[old]] < 1).to(old.device)
        if rare.any():
            self.update_stored(slots[rare], stored[rare], outputs[rare], labels[rare])
        return loss, (outputs, labels)

    def future(self, outputs: Tensor, labels: Tensor, not_aug: Tensor,
               replayed: tuple[Tensor, Tensor] | None) -> Tensor:
        """Prepare the heads of tasks to come: consistent under augmentation, and below the present ones."""
        args, cpt, t = self.args, self.cpt, self.current_task
        first = (t + 1) * cpt
        loss = outputs.new_zeros(()) if self.dataset.frozen else self.consistency(labels, not_aug)
        if args.future_constraint:
            bad, good = outputs[:, first:], outputs[:, t * cpt : first]
            if replayed is not None:
                old_outputs, old_labels = replayed
                own = old_outputs.view(len(old_outputs), -1, cpt)[torch.arange(len(old_labels)), old_labels // cpt]
                bad, good = torch.cat([bad, old_outputs[:, first:]]), torch.cat([good, own])
            loss = loss + args.constr_eta * hinge(bad.max(1).values, good.max(1).values, args.constr_margin)
        return loss

    def consistency(self, labels: Tensor, not_aug: Tensor) -> Tensor:
        """Of the heads of tasks to come, under augmentation of the stream's and of stored images."""
        args, cpt = self.args, self.cpt
        first, n_stored = (self.current_task + 1) * cpt, 0
        if not self.buffer.is_empty():
            _, x, y, stored, _ = self.buffer.get_data(args.simclr_batch_size, return_index=True, device=self.device)
            not_aug, labels, n_stored = torch.cat([x, not_aug]), torch.cat([y, labels]), len(x)
        with torch.no_grad():
            views = self.gpu_augmentation(not_aug.repeat_interleave(args.simclr_num_aug, 0)).to(self.device)
        with bn_track_stats(self, not args.align_bn):
            seen = self.net(views).view(-1, args.simclr_num_aug, self.num_classes)
        heads = torch.stack(seen[:, :, first:].split(cpt, 2))  # (heads, images, views, classes)
        loss = args.lambd * supervised_contrast(heads, labels, args.simclr_temp)
        if args.dp_weight > 0 and n_stored:
            kept = stored[:, first:].split(cpt, 1)
            loss = loss + args.dp_weight * torch.stack([
                similarity_preserving(head[:n_stored, view], kept[h])
                for h, head in enumerate(heads) for view in range(args.simclr_num_aug)]).mean()
        return loss

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor,
                epoch: int | None = None) -> float | Tensor:
        args, t, past, seen = self.args, self.current_task, self.n_past_classes, self.n_seen_classes
        self.opt.zero_grad()
        with bn_track_stats(self, not args.align_bn or t == 0):
            outputs = self.net(inputs)
        loss = self.loss(outputs[:, past:seen], labels - past)
        replay_loss, replayed = self.replay_loss(inputs)
        loss = loss + replay_loss
        if t < self.n_tasks - 1:
            loss = loss + self.future(outputs, labels, not_aug_inputs, replayed)
        if args.past_constraint and t > 0:
            p = outputs[:, :seen].softmax(1)
            bad, good = p[:, :past].max(1).values.detach(), p[:, past:].max(1).values
            loss = loss + args.constr_eta * hinge(bad, good, args.constr_margin)
        loss.backward()
        self.opt.step()
        return self.number(loss)
