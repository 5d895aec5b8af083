"""A step of each stock method in double precision, from given weights, batch, buffer and draws.

In single precision equal algorithms differ by what a CPU's kernels round, on some by a thousandth of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.host.contract.small_runs import BATCH, BUFFER, MODELS, Host, output

MEAN, STD = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1)
             for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)))
STOCK_FLAGS = {"der": "--alpha .3", "derpp": "--alpha .2 --beta .5", "fdr": "--alpha 1",
               "xder": "--alpha .3 --beta .8 --simclr_num_aug 2 --simclr_batch_size 12"}
STORES = {"er": "labels", "der": "logits", "derpp": "labels logits", "xder": "labels logits task_labels",
          "gem": "labels task_labels", "agem": "labels", "rpc": "labels", "fdr": "logits task_labels"}


class Normalise(torch.nn.Module):
    """In place of the hosts' random augmentation of replayed images."""

    def forward(self, images: Tensor) -> Tensor:
        return (images - MEAN) / STD


def steps(host_: Host, initial: Path) -> dict[str, dict[str, Any]]:
    """Loss and update of one step in the second task, from given weights, batch, buffer and draws."""
    draw = torch.Generator().manual_seed(5)
    x, y = torch.rand(BATCH * 2, 3, 32, 32, generator=draw).double(), torch.randint(2, 4, (BATCH * 2,), generator=draw)
    stored = {"examples": torch.rand(BUFFER, 3, 32, 32, generator=draw), "labels": torch.arange(BUFFER) % 2,
              "logits": torch.randn(BUFFER, 10, generator=draw), "task_labels": torch.zeros(BUFFER)}
    results = {}
    for name in MODELS:
        it = host_.start(name, f"--backbone reduced-resnet18 --lr .03 --batch_size {BATCH * 2} --drop_last 1 "
                               f"{STOCK_FLAGS.get(name, '')}")
        model = it.model
        if not initial.exists():
            torch.save(list(model.net.state_dict().values()), initial)
        weights = [value.clone() for value in torch.load(initial, weights_only=True)]
        with output():
            it.dataset.get_data_loaders()
            model.meta_begin_task(it.dataset)
            model.meta_end_task(it.dataset)  # fills a buffer, which is exchanged for the given one
            it.dataset.get_data_loaders()
            model.meta_begin_task(it.dataset)
        model.net.load_state_dict(dict(zip(model.net.state_dict(), weights, strict=True)))
        model.net.double().train()
        model.opt = model.get_optimizer()
        for key, value in vars(model).items():  # where GEM and A-GEM keep gradients
            if key.startswith("grad_") and isinstance(value, Tensor):
                setattr(model, key, value.double())
            elif key.startswith("grads_"):
                setattr(model, key, value.double() if isinstance(value, Tensor) else [part.double() for part in value])
        model.transform = Normalise()
        model.gpu_augmentation = lambda images: (images.flip(3) * 0.7 + 0.1 - MEAN) / STD
        model.buffer.empty()
        model.buffer.add_data(**{key: stored[key] for key in ("examples", *STORES[name].split())})
        for key in {"examples", "logits"} & {"examples", *STORES[name].split()}:
            setattr(model.buffer, key, getattr(model.buffer, key).double())
        before = torch.cat([p.detach().clone().view(-1) for p in model.net.parameters()])
        inputs = (x - MEAN) / STD
        gradient = torch.autograd.grad(model.loss(model.net(inputs), y), list(model.net.parameters()))
        plain = before - it.args.lr * torch.cat([g.reshape(-1) for g in gradient])  # without any replay
        np.random.seed(7)
        torch.manual_seed(7)
        loss = model.observe(inputs, y, x, epoch=0)
        after = torch.cat([p.detach().view(-1) for p in model.net.parameters()])
        results[name] = {"loss": loss, "before": before, "after": after, "plain": plain,
                         "logits": model.buffer.logits.clone() if name == "xder" else None}
    return results
