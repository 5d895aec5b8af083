"""The ten methods learn five tasks of real digits, and replay protects what was learned."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
import torch

from tests.conftest import STOCK, Start

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def finals() -> dict[str, float]:
    """Final Class-IL accuracy of the methods run so far, mean over seeds."""
    return {}


def test_joint_shows_no_loss_while_it_waits_and_then_its_own(start: Start) -> None:
    it = start("joint")
    images, labels = torch.rand(8, 1, 8, 8), torch.arange(8)
    before = [value.clone() for value in it.model.net.state_dict().values()]
    assert it.model.observe(images, labels, images) == 0.0
    assert all(map(torch.equal, before, it.model.net.state_dict().values()))
    it.model.waiting = False
    assert it.model.observe(images, labels, images) > 0.1


@pytest.mark.parametrize("model", ["sgd", "joint", *STOCK])
def test_learning(model: str, run: Callable[..., dict], finals: dict[str, float],
                  capsys: pytest.CaptureFixture) -> None:
    buffer = "--buffer_size 100" if model in STOCK else ""
    results = [run(model, f"{buffer} --n_epochs 3 --lr 0.05 --seed {seed}")["results"]["class_il"] for seed in SEEDS]
    assert capsys.readouterr().out.count("Accuracy for 5 task(s): \t [Class-IL]: ") == len(SEEDS)
    finals[model] = fmean(result["final"] for result in results)
    if model == "sgd":
        assert 15 < finals["sgd"] < 30  # it learned the last task, and little else is left
        assert all(result["forgetting"] > 50 for result in results)
    elif model == "joint":
        assert finals["joint"] > 90
    else:
        if "sgd" not in finals or "joint" not in finals:
            pytest.skip("compares with sgd and joint: run the whole file")
        assert finals["sgd"] <= finals[model] < finals["joint"]
        if model in ("er", "derpp", "xder"):
            assert finals[model] >= finals["sgd"] + 20
