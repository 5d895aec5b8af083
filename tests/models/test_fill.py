"""What SBS stores at the end of a task: the band, its shares and quotas, in every method."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.core.samplers import sampler_names
from tests.conftest import STOCK, Start
from tests.models.conftest import EACH_STEP, SMALL, follow

from utils.training import train

NO_QUOTA = ("er", "der", "derpp", "agem", "fdr")


@pytest.mark.parametrize("name", STOCK)
def test_only_the_band_is_stored_and_stored_right(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", "--n_epochs 3 --train_per_class 40 --buffer_size 40 --stop_after 3")
    for t, note in enumerate(follow(it)):
        speed, n = note.task.speed, len(note.task)
        assert torch.equal(speed, note.counts / 3)
        low, high = it.model.sampler.band.limits(speed)
        if name in NO_QUOTA:
            inside = (speed[note.stored] >= low) & (speed[note.stored] <= high)
            assert inside.all()
            # strictly outside the limits is never stored; of the ties on them, only as many as the band kept
            edge = int((speed[note.stored] == high).sum())
            assert edge <= int((speed == high).sum()) - max(0, n // 5 - int((speed > high).sum()))
        # the buffer's last rows are the stored examples: same pixels, same labels, this task's number
        k = len(note.stored)
        images = note.data.data[note.stored].float() / 255
        rows = slice(note.n - k, note.n)
        mine = {tuple(x.flatten().tolist()) for x in images}
        theirs = note.buffer["examples"][: note.n]
        found = torch.tensor([tuple(x.flatten().tolist()) in mine for x in theirs])
        assert int(found.sum()) == k
        if name in NO_QUOTA:
            assert torch.equal(theirs[rows], images)
            if "labels" in note.buffer:
                assert torch.equal(note.buffer["labels"][rows], note.data.targets[note.stored])
            if "task_labels" in note.buffer:
                assert (note.buffer["task_labels"][rows] == t).all()
        assert {key for key, value in note.buffer.items() if isinstance(value, torch.Tensor)} == {
            "er": {"examples", "labels"}, "der": {"examples", "logits"}, "derpp": {"examples", "labels", "logits"},
            "xder": {"examples", "labels", "logits", "task_labels"}, "gem": {"examples", "labels", "task_labels"},
            "agem": {"examples", "labels"}, "rpc": {"examples", "labels"},
            "fdr": {"examples", "logits", "task_labels"}}[name]


@pytest.mark.parametrize("name", ["der", "derpp", "fdr"])
def test_logits_are_those_of_the_network_at_the_end_of_the_task(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", f"{SMALL} --stop_after 1 --buffer_size 20")
    (note,) = follow(it)
    inputs = note.data.batch(note.stored)[0]  # the digits are not augmented, the network has no batch statistics
    with torch.no_grad():
        assert torch.allclose(note.buffer["logits"][: note.n], it.model.net(inputs), atol=1e-6)


def tasks_in_buffer(note: SimpleNamespace, cpt: int = 2) -> list[int]:
    tasks = note.buffer["labels"][: note.n] // cpt if "labels" in note.buffer else note.buffer["task_labels"][: note.n]
    return torch.bincount(tasks).tolist()


@pytest.mark.parametrize("name", ["er", "derpp", "agem", "fdr"])
def test_shares_are_exact_over_five_unequal_tasks(start: Start, name: str) -> None:
    it = start(f"{name}_sbs", "--n_epochs 1 --buffer_size 100")
    notes = follow(it)
    assert len({len(note.task) for note in notes}) > 1  # the tasks differ in size
    assert [len(note.stored) for note in notes] == [100, 50, 33, 25, 20]
    assert [note.n for note in notes] == [100] * 5
    assert [tasks_in_buffer(note)[-1] for note in notes] == [100, 50, 33, 25, 20]
    assert sum(tasks_in_buffer(notes[-1])[:-1]) == 80


def test_a_buffer_larger_than_a_task_takes_the_whole_band(start: Start) -> None:
    it = start("er_sbs", "--n_epochs 2 --buffer_size 400")
    notes = follow(it)
    bands = [len(note.task) - 2 * (len(note.task) // 5) for note in notes]
    assert len(notes[0].stored) == bands[0] < 400
    assert len(notes[1].stored) == bands[1]  # 174 each: both fit
    assert tasks_in_buffer(notes[1]) == bands[:2]
    assert len(notes[2].stored) == 133 and notes[2].n == 400  # 400 // 3; from here on old ones make room
    assert [note.n for note in notes[2:]] == [400] * 3
    assert tasks_in_buffer(notes[4])[-1] == 80


def test_old_examples_leave_at_random(start: Start) -> None:
    """Over many seeds, each slot of the old task stays equally often."""
    from scipy.stats import chisquare

    it = start("er_sbs", "--train_per_class 20 --n_epochs 1 --buffer_size 20 --stop_after 1")
    (first,) = follow(it)
    model, stays = it.model, np.zeros(20)
    it.dataset.get_data_loaders()
    for seed in range(300):
        model.buffer.load(first.buffer)
        model.generator.manual_seed(seed)
        model.meta_begin_task(it.dataset)
        task = SimpleNamespace(speed=torch.rand(40), labels=it.dataset.train_loader.dataset.targets)
        from mammoth_sbs.core.samplers import Task

        model.fill(it.dataset, Task(task.labels, speed=task.speed))
        model.hook.remove()
        it.dataset.train_loader.dataset.extra_return_fields = ()
        left = {tuple(x.flatten().tolist()) for x in model.buffer.examples}
        stays += [tuple(x.flatten().tolist()) in left for x in first.buffer["examples"]]
    assert stays.sum() == 300 * 10
    assert chisquare(stays).pvalue > 1e-4


@pytest.mark.parametrize("name", ["gem", "xder", "rpc"])
def test_quotas_per_class_are_those_of_the_stock_method(start: Start, name: str) -> None:
    counts = {}
    for model_name in (name, f"{name}_sbs"):
        it = start(model_name, "--n_epochs 1 --buffer_size 50")
        counts[model_name], end_task = [], it.model.end_task

        def note(dataset, it=it, end_task=end_task, model_name=model_name) -> None:  # noqa: ANN001
            end_task(dataset)
            labels = it.model.buffer.labels[: len(it.model.buffer)]
            counts[model_name].append(sorted(torch.bincount(labels).tolist()))

        it.model.end_task = note
        train(it.model, it.dataset, it.args)
    assert counts[name] == counts[f"{name}_sbs"]


def test_stock_during_replaces_just_the_tasks_own_examples(start: Start) -> None:
    for name in EACH_STEP:
        it = start(f"{name}_sbs", "--n_epochs 2 --buffer_size 60 --sbs-during stock --stop_after 2")
        before: dict[str, torch.Tensor] = {}
        fill = it.model.fill

        def note(dataset, task, it=it, fill=fill, before=before) -> torch.Tensor:  # noqa: ANN001
            before["seen"] = it.model.buffer.num_seen_examples
            before["old"] = it.model.old_content()["examples"].clone()
            before["all"] = it.model.buffer.examples[: len(it.model.buffer)].clone()
            return fill(dataset, task)

        it.model.fill = note
        notes = follow(it)
        first = {tuple(x.flatten().tolist()) for x in notes[0].data.data.float() / 255}
        is_old = [tuple(x.flatten().tolist()) in first for x in before["all"]]
        assert 0 < sum(is_old) < 60  # the reservoir had mixed both tasks
        assert torch.equal(before["all"][torch.tensor(is_old)], before["old"])  # told apart without labels, too
        assert it.model.buffer.num_seen_examples == before["seen"] == 2 * (len(notes[0].task) + len(notes[1].task))
        assert notes[1].n == 60 and len(notes[1].stored) == max(30, 60 - sum(is_old))


def test_closed_inserts_nothing_before_the_task_ends(start: Start) -> None:
    for name in EACH_STEP:
        it = start(f"{name}_sbs", f"{SMALL} --stop_after 2")
        fill, lengths = it.model.fill, []

        def note(dataset, task, it=it, fill=fill, lengths=lengths) -> torch.Tensor:  # noqa: ANN001
            lengths.append(len(it.model.buffer))
            return fill(dataset, task)

        it.model.fill = note
        notes = follow(it)
        assert lengths == [0, notes[0].n]


@pytest.mark.parametrize("sampler", sampler_names())
def test_samplers_fill_every_methods_buffer(start: Start, sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STOCK:
        flags = f"--train_per_class 20 --n_epochs 1 --buffer_size 20 --stop_after 2 --sampler {sampler}"
        it = start(f"{name}_sbs", flags)
        monkeypatch.setattr(type(it.dataset), "PADDING", 1)  # `rainbow` looks at augmented views
        notes = follow(it)
        assert [note.n for note in notes] == [20, 20], name
        assert len(set(notes[1].stored.tolist())) == len(notes[1].stored) == (0 if name == "rpc" else 10), name
