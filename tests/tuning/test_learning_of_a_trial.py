"""A trial of the rotation task on stand-ins: how it is learned, and where its points are kept."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.tuning import rotation
from tests.tuning.test_stand_in import trials

# ---- how it is learned


def batches(count: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    return [(torch.full((2,), i), torch.full((2,), i + 0.25), torch.full((2,), i + 0.5), torch.tensor([i, i]))
            for i in range(count)]


class Learner:
    """Notes every call; its losses are given."""

    def __init__(self, losses: Any) -> None:
        self.losses, self.told = iter(losses), []
        self.args = Namespace(debug_mode=False, lr_scheduler=None)
        self.net, self.device = nn.Linear(1, 1), torch.device("cpu")
        self.meta_begin_task = lambda data: self.told.append(("task", data.name))
        self.meta_begin_epoch = lambda epoch, data: self.told.append(("begin", epoch, data.name))
        self.meta_end_epoch = lambda epoch, data: self.told.append(("end", epoch, data.name))

    def meta_observe(self, inputs: Tensor, labels: Tensor, not_aug: Tensor, epoch: int, sbs_index: Tensor) -> Any:
        self.told.append((float(inputs[0]), float(labels[0]), float(not_aug[0]), epoch, int(sbs_index[0])))
        return next(self.losses)


def steps(losses: Any, count: int, epochs: int = 1) -> list[Any]:
    learner = Learner(losses)
    trials(sbs_tune_epochs=epochs).learn(learner, SimpleNamespace(train_loader=batches(count), name="d"))  # type: ignore
    return learner.told


def test_a_trial_is_told_of_task_epochs_and_batches_as_the_host_tells() -> None:
    epochs = [[("begin", e, "d"), (0.0, 0.25, 0.5, e, 0), (1.0, 1.25, 1.5, e, 1), ("end", e, "d")] for e in (0, 1)]
    assert steps([0.5] * 4, 2, epochs=2) == [("task", "d"), *epochs[0], *epochs[1]]


def test_a_loss_that_is_no_number_ends_the_trial_when_it_is_looked_at() -> None:
    """A CPU's is known at once, a GPU's is looked at in the first of fifty steps."""
    good, bad = torch.tensor(0.5), torch.tensor(float("nan"))
    for losses, seen in (([0.5, float("inf"), 0.5], 2), ([float("nan"), 0.5], 1), ([bad], 1),
                         ([good, bad, *[good] * 58], 60), ([*[good] * 50, bad], 51)):
        told = steps(losses, 60)
        assert sum(len(note) == 5 for note in told) == seen
        assert (("end", 0, "d") in told) is (seen == 60)


# ---- where points are kept


def test_finished_points_are_kept_beside_the_shared_task_or_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    found = SimpleNamespace(epochs=2, held_out=torch.arange(4), known=torch.tensor([True]), key="k")

    def search(trials: Any, pairs: Any, journal: Any, processes: int, silent: bool) -> list[rotation.Point]:
        made.append((trials is found, journal.path, journal.key, processes, silent))
        return [rotation.Point(q, s, q, s, 0, 0, 0) for q, s in pairs]

    it: Any = SimpleNamespace(args=Namespace(sbs_q="auto", sbs_s=0.1, sbs_grid=[0.0, 0.4], non_verbose="quiet"),
                              device="here")
    monkeypatch.setattr(rotation, "Rotation", lambda *given: {(id(it), 1, 2): found}[(id(given[0]), *given[1:])])
    monkeypatch.setattr(rotation, "search", search)
    monkeypatch.setattr(rotation, "processes_for", lambda device: {"here": 7}[device])
    for shared, run, file, key in (
            (None, None, None, ""), ("first.pt", None, "first.pt.points.jsonl", "k"),
            (None, "epoch.jsonl", "epoch.jsonl", "k"), ("first.pt", "epoch.jsonl", "first.pt.points.jsonl", "k")):
        it.args.shared_first_task = shared
        if run:
            it.run = SimpleNamespace(points=run)
        chosen = rotation.choose(it, 1, 2)  # type: ignore[arg-type]
        assert (chosen["q"], chosen["s"], chosen["held_out"], chosen["before"]) == (0.4, 0.1, 4, 100.0)
        assert made.pop() == (True, Path(file) if file else None, key, 7, "quiet") and not made
