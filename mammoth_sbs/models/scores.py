"""Scores that can take learning speed's place in the band (`--sbs-score`; paper, App. "Relationship Between Other
Scoring Methods"). All are scaled so that high means easy, as quick does, and all cost more than learning speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.chosen import fetch

from utils.schedulers import get_scheduler

if TYPE_CHECKING:
    from mammoth_sbs.models.record import Recorded

VIEWS = 12  # augmented views per image, for `uncertainty`
ROUNDS = 3  # for `c-score`: in each, two networks learn a half of the task and are asked about the other


@torch.no_grad()
def final_loss(model: Recorded, data: Any) -> Tensor:
    """Minus the cross-entropy at the end of the task, among the task's classes, without augmentation."""
    past, labels = model.n_past_classes, torch.as_tensor(data.targets)
    losses = torch.zeros(len(labels))
    was_training = model.net.training
    model.net.eval()
    for index in torch.arange(len(labels)).split(256):
        outputs = model.net(model.normalized(data, index).to(model.device))
        logits = model.classify(outputs)[:, past : model.n_seen_classes].float().cpu()
        losses[index] = F.cross_entropy(logits, labels[index] - past, reduction="none")
    model.net.train(was_training)
    return -losses


@torch.no_grad()
def consistency(model: Recorded, data: Any) -> Tensor:
    """One minus the uncertainty of Bang et al. (2021): the share of augmented views that get the commonest class."""
    n, classes = len(data.targets), model.n_seen_classes - model.n_past_classes
    votes = torch.zeros(n, classes)
    was_training = model.net.training
    model.net.eval()
    alike = True
    for index in torch.arange(n).split(256):
        views = [fetch(data, index)[0] for _ in range(VIEWS)]
        alike &= torch.equal(views[0], views[1])
        for inputs in views:
            logits = model.classify(model.net(inputs.to(model.device)))[:, model.n_past_classes : model.n_seen_classes]
            votes[index] += F.one_hot(logits.argmax(1).cpu(), classes)
    model.net.train(was_training)
    if alike:
        raise UserError(f"uncertainty: {model.args.dataset} is not augmented, so all views of an image are the same; "
                        "use another --sbs-score, and another --sampler than rainbow")
    return votes.max(1).values / VIEWS


def held_out_accuracy(model: Recorded, data: Any) -> Tensor:
    """The C-score of Jiang et al. (2020), estimated: how often an example is right when it was not trained on.

    Fresh networks of the same kind learn halves of the task with the run's learning rate, schedule, batches and epochs
    (SGD).
    """
    args, n, past = model.args, len(data.targets), model.n_past_classes
    right = torch.zeros(n)
    for _ in range(ROUNDS):
        shuffled = torch.randperm(n)
        for learned, asked in ((shuffled[: n // 2], shuffled[n // 2 :]), (shuffled[n // 2 :], shuffled[: n // 2])):
            net = fresh(model.net)
            optimizer = torch.optim.SGD(net.parameters(), args.lr, args.optim_mom, weight_decay=args.optim_wd)
            learner: Any = SimpleNamespace(opt=optimizer, get_optimizer=lambda made=optimizer: made)
            schedule = get_scheduler(learner, args)
            for _ in range(args.n_epochs):
                for part in learned[torch.randperm(len(learned))].split(args.batch_size):
                    if len(part) > 1:  # batch normalisation cannot learn from one image
                        inputs, labels = fetch(data, part)[:2]
                        logits = net(inputs.to(model.device))[:, past : model.n_seen_classes]
                        optimizer.zero_grad()
                        F.cross_entropy(logits, labels.to(model.device) - past).backward()
                        optimizer.step()
                if schedule is not None:
                    schedule.step()
            net.eval()
            with torch.no_grad():
                for part in asked.split(256):
                    logits = net(model.normalized(data, part).to(model.device))[:, past : model.n_seen_classes]
                    right[part] += (logits.argmax(1).cpu() + past == torch.as_tensor(data.targets)[part]).float()
    return right / ROUNDS


def fresh(net: torch.nn.Module) -> torch.nn.Module:
    """A network of the same kind with new random weights, and none of the hooks."""
    copied = copy.deepcopy(net)
    for module in copied.modules():
        module._forward_hooks.clear()
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return copied.train()


SCORES: dict[str, Callable[[Recorded, Any], Tensor]] = {
    "loss": final_loss,
    "uncertainty": consistency,
    "c-score": held_out_accuracy,
}
