"""What the buffer holds of earlier tasks, told apart from what was written in this one."""

from __future__ import annotations

import torch

from mammoth_sbs.models.base import content
from tests.conftest import Start
from tests.models.conftest import SMALL

from utils.training import train_task


def test_in_the_first_task_nothing_is_old_and_when_the_next_begins_everything_is(start: Start) -> None:
    it = start("er_sbs", f"{SMALL} --sbs-during stock --buffer_size 30")
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    assert it.model.old_content() == {}
    train_task(it.model, it.dataset, it.args)
    assert len(it.model.buffer) == 30
    assert {name: len(value) for name, value in it.model.old_content().items()} == {"examples": 0, "labels": 0}
    it.model.meta_end_task(it.dataset)
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    old, held = it.model.old_content(), content(it.model.buffer)
    assert old.keys() == held.keys() and all(torch.equal(old[name], held[name]) for name in held)
    it.model.buffer.labels[3] = 2  # another example has taken the slot
    left = it.model.old_content()
    assert torch.equal(left["examples"], torch.cat([held["examples"][:3], held["examples"][4:]]))
