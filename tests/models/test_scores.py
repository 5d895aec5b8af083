"""Other scores for the band."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import Start
from tests.models.conftest import SMALL, follow

from utils.training import train


def test_the_band_can_rank_by_final_loss(start: Start) -> None:
    it = start("er_sbs", f"{SMALL} --stop_after 1 --sbs-score loss --buffer_size 10")
    (note,) = follow(it)
    data = note.data
    with torch.no_grad():
        logits = it.model.net(data.batch(torch.arange(40))[0])[:, :2]  # digits are not augmented
    loss = torch.nn.functional.cross_entropy(logits, data.targets, reduction="none")
    assert torch.allclose(note.task.speed, -loss, atol=1e-5)
    ranked = loss.argsort()
    assert set(note.stored.tolist()) <= set(ranked[8:32].tolist())  # without the 8 lowest and the 8 highest losses


def test_consistency_counts_augmented_views(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from mammoth_sbs.models import scores

    it = start("er_sbs", f"{SMALL} --stop_after 1 --sbs-score uncertainty --buffer_size 10")
    with pytest.raises(UserError, match="not augmented"):
        train(it.model, it.dataset, it.args)
    it = start("er_sbs", "--train_per_class 60 --n_epochs 8 --stop_after 1 --sbs-score uncertainty --n_tasks 2")
    monkeypatch.setattr(type(it.dataset), "PADDING", 3)
    (note,) = follow(it)
    assert ((note.task.speed * scores.VIEWS) % 1 == 0).all() and note.task.speed.min() >= 0.2  # of five
    assert note.task.speed.std() > 0
    # far from the decision boundary, views agree: certain examples are those of low loss
    loss = -scores.final_loss(it.model, note.data)
    assert np.corrcoef(note.task.speed, loss)[0, 1] < 0


def test_the_c_score_asks_networks_that_did_not_see_the_example(start: Start) -> None:
    it = start("er_sbs", "--train_per_class 60 --n_epochs 15 --sbs-score c-score --n_tasks 2")
    it.dataset.get_data_loaders()
    data = it.dataset.train_loader.dataset
    wrong = torch.arange(0, len(data), 10)
    data.targets[wrong] = (data.targets[wrong] + 1) % 5  # labels that cannot be guessed without having seen them
    it.dataset.c_task, it.dataset.test_loaders = -1, []
    it.model.meta_begin_task(it.dataset)
    from mammoth_sbs.models.scores import held_out_accuracy

    score = held_out_accuracy(it.model, data)
    it.model.hook.remove()
    clean = torch.ones(len(data), dtype=torch.bool)
    clean[wrong] = False
    assert score[clean].mean() > 0.7 and score[wrong].mean() < 0.3
