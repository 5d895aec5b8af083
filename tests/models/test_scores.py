"""Other scores for the band."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("name", ["er", "gem"])
def test_margins_are_those_of_the_training_steps_own_passes(start: Start, name: str) -> None:
    """Against a second pass at the same moment; of the task's classes, once per epoch."""
    it = start(f"{name}_sbs", f"{SMALL} --stop_after 2 --sbs-score margin --buffer_size 40")
    model, observe, found = it.model, it.model.observe, {}

    def observe_twice(inputs, labels, not_aug_inputs, epoch=None, sbs_index=None) -> float:  # noqa: ANN001
        first, end = model.get_offsets(model.current_task)
        with torch.no_grad():
            logits = model.net(inputs)[:, first:end]
        of_label = logits[torch.arange(len(labels)), labels - first]
        margin = of_label - logits.scatter(1, (labels - first).unsqueeze(1), -torch.inf).amax(1)
        for i, value in zip(sbs_index.tolist(), margin.tolist(), strict=True):
            found.setdefault((model.current_task, i), []).append(value)
        return observe(inputs, labels, not_aug_inputs, epoch=epoch, sbs_index=sbs_index)

    model.observe = observe_twice
    for t, note in enumerate(follow(it)):
        expected = [np.mean(found[t, i]) for i in range(len(note.task.speed))]
        assert note.task.speed.tolist() == pytest.approx(expected, abs=1e-4)
        assert all(len(found[t, i]) == 2 for i in range(len(expected)))


def test_a_first_task_that_was_learned_without_the_score_cannot_be_shared(start: Start, tmp_path: Path) -> None:
    shared = f"{SMALL} --stop_after 1 --shared_first_task {tmp_path / 'first.pt'}"
    for flags in ("--sbs-score speed", "--sbs-score loss"):
        it = start("er_sbs", f"{shared} {flags}")
        train(it.model, it.dataset, it.args)
    it = start("er_sbs", f"{shared} --sbs-score margin")
    with pytest.raises(UserError, match="--sbs-score margin: is measured while a task is learned"):
        train(it.model, it.dataset, it.args)


def test_rainbow_and_ccs_fill_the_buffer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for sampler in ("rainbow", "ccs --sbs-score el2n --sbs-s .4"):
        it = start("er_sbs", f"{SMALL} --stop_after 2 --buffer_size 20 --sampler {sampler}")
        monkeypatch.setattr(type(it.dataset), "PADDING", 3)
        notes = follow(it)
        assert notes[-1].n == 20
    slow = notes[0].task.speed.argsort()[:16]  # two fifths of 40
    assert not set(slow.tolist()) & set(notes[0].stored.tolist())
