"""Optimisers and schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import optim

from tests.vendor.conftest import FAST


@pytest.mark.parametrize("name, kind", [("sgd", optim.SGD), ("adam", optim.Adam), ("adamw", optim.AdamW),
                                        ("adagrad", optim.Adagrad)])
def test_the_optimiser_that_was_asked_for_makes_the_steps(name: str, kind: type, start: Callable) -> None:
    import copy

    flags = f"{FAST} --optimizer {name} --lr 0.01 --optim_wd 0.1"
    it = start("sgd", f"{flags} --optim_mom 0.9 --optim_nesterov 1" if name == "sgd" else flags)
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    net = copy.deepcopy(it.model.net)
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    opt = kind(net.parameters(), lr=0.01, weight_decay=0.1, **extra)
    for x, y, raw in it.dataset.train_loader:
        it.model.meta_observe(x, y, raw)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    torch.testing.assert_close(it.model.net.get_params(), torch.nn.utils.parameters_to_vector(net.parameters()))
    assert type(it.model.opt) is kind


@pytest.mark.parametrize("flags, expected", [
    ("", [0.1] * 4),
    ("--lr_scheduler multisteplr --lr_milestones 1 3", [0.1, 0.01, 0.01, 0.001]),
    ("--lr_scheduler multisteplr --lr_milestones 2 --sched_multistep_lr_gamma 0.5", [0.1, 0.1, 0.05, 0.05]),
    ("--lr_scheduler cosine", [0.05 * (1 + np.cos(np.pi * e / 4)) for e in range(4)]),
])
def test_the_learning_rate_follows_the_schedule_and_starts_anew_with_each_task(
        flags: str, expected: list[float], start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from utils.training import train

    it = start("sgd", f"--train_per_class 5 --n_epochs 4 --lr 0.1 --stop_after 2 {flags}")
    rates: list[float] = []
    monkeypatch.setattr(it.model, "end_epoch", lambda *_: rates.append(it.model.opt.param_groups[0]["lr"]))
    train(it.model, it.dataset, it.args)
    assert rates == pytest.approx(expected * 2)


@pytest.mark.parametrize(("flags", "expected"), [
    ("", [0.1] * 4), ("--lr_later 0.01", [0.1, 0.01, 0.01, 0.01]), ("--lr_later 0.2 0.3", [0.1, 0.2, 0.3, 0.3])])
def test_a_learning_rate_per_task(flags: str, expected: list[float], start: Callable) -> None:
    it = start("er", f"{FAST} --lr 0.1 {flags}")
    for rate in expected:
        it.dataset.get_data_loaders()
        it.model.meta_begin_task(it.dataset)
        assert [group["lr"] for group in it.model.opt.param_groups] == [rate]
        it.model.meta_end_task(it.dataset)


def test_a_model_has_its_optimiser_before_the_first_task(start: Callable) -> None:
    """Mammoth's do, and methods written for it may take hold of it when they are made."""
    model = start("sgd", "--lr 0.25").model
    (group,) = model.opt.param_groups
    assert group["lr"] == 0.25 and [*map(id, group["params"])] == [*map(id, model.net.parameters())]
