"""What the tests of the SBS models share."""

from __future__ import annotations

from types import SimpleNamespace

from utils.training import train

EACH_STEP = ("er", "der", "derpp")  # insert into the buffer at every step in stock
SMALL = "--train_per_class 20 --n_epochs 2"


def follow(it: SimpleNamespace) -> list[SimpleNamespace]:
    """Note, at the end of every task: counts of the hook, the task as the sampler saw it, and what was stored."""
    notes: list[SimpleNamespace] = []
    report = it.model.report

    def note(task, stored, data) -> None:  # noqa: ANN001
        notes.append(SimpleNamespace(task=task, stored=stored, data=data, counts=it.model.speed.count.clone(),
                                     buffer=it.model.buffer.serialize(), n=len(it.model.buffer)))
        report(task, stored, data)

    it.model.report = note
    train(it.model, it.dataset, it.args)
    return notes
