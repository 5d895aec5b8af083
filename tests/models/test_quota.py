"""Quotas of classes, from numbers alone, and what a method is handed in place of its task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.chosen import Chosen, View
from mammoth_sbs.models.gem import GemSbs
from mammoth_sbs.models.quota import ClassQuota, rank_in_class
from mammoth_sbs.models.rpc import RPCSbs
from mammoth_sbs.models.xder import Announced, XDerSbs
from tests.conftest import Start

from datasets.seq_digits import SequentialDigits
from models.utils.continual_model import ContinualModel
from utils.buffer import Buffer


def a_model(size: int, task: int = 0, domains: bool = False, **more: Any) -> Any:
    """Tasks of three classes, or of the same three in another domain."""
    past = 0 if domains else 3 * task
    return SimpleNamespace(args=SimpleNamespace(buffer_size=size, batch_size=4), current_task=task, by_domain=domains,
                           n_past_classes=past, n_seen_classes=past + 3, n_classes_current_task=3, cpt=3,
                           generator=torch.Generator(), buffer=Buffer(size), **more)


# ---- how many

@pytest.mark.parametrize(("size", "task", "domains", "quota"), [
    (10, 0, False, 3), (10, 1, False, 1), (20, 1, False, 3), (40, 2, False, 4), (20, 0, True, 6), (20, 1, True, 3),
    (40, 2, True, 4)])
def test_every_class_seen_keeps_the_same_and_every_class_of_a_domain(size: int, task: int, domains: bool,
                                                                     quota: int) -> None:
    model = a_model(size, task, domains)
    assert ClassQuota.old_quota(model) == quota
    model.old_quota = lambda: 11
    assert GemSbs.new_quota(model) == 11  # a new class of GEM gets what an old one keeps


@pytest.mark.parametrize(("task", "held", "old", "quota"), [
    (0, [], 2, 8), (1, [], 2, 8), (1, [0, 0, 0, 1, 2, 2], 2, 6), (1, [0, 0, 0, 1, 2, 2], 9, 6), (1, [0] * 8, 3, 7),
    (0, [0] * 8, 3, 8)])
def test_a_new_class_gets_its_part_of_the_room_that_is_left_rounded_up(task: int, held: list[int], old: int,
                                                                       quota: int) -> None:
    """Of 22: a third of what old classes leave, each of which keeps at most its quota."""
    model = a_model(22, task, old_quota=lambda: old)
    if held:
        model.buffer.add_data(torch.zeros(len(held), 1), labels=torch.tensor(held))
    assert ClassQuota.new_quota(model) == quota


@pytest.mark.parametrize(("size", "task", "as_paper", "quota"), [
    (30, 0, None, 10), (30, 1, None, 10), (30, 2, None, 5), (30, 0, False, 10), (30, 2, False, 5), (30, 0, True, 10),
    (30, 1, True, 5), (36, 2, True, 4)])
def test_rpc_divides_by_the_tasks_before_this_one_or_as_its_paper_by_all(size: int, task: int, as_paper: bool | None,
                                                                         quota: int) -> None:
    model = a_model(size, task)
    if as_paper is not None:  # Mammoth's own has no such flag
        model.args.as_paper = as_paper
    assert RPCSbs.old_quota(model) == quota


def test_rpc_predicts_by_its_fixed_head() -> None:
    outputs, head = torch.arange(12.0).view(3, 4), torch.arange(6.0).view(3, 2)
    found = RPCSbs.classify(SimpleNamespace(rpchead=head), outputs)  # type: ignore[arg-type]
    assert torch.equal(found, outputs[:, :3] @ head)


def test_where_tasks_are_domains_each_class_of_each_needs_room(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    model = start("gem_sbs", "--buffer_size 10").model
    assert model.by_domain is False
    with pytest.raises(UserError, match="--buffer_size 9: gem gives each of the 10 classes a quota; give at least 10$"):
        start("gem_sbs", "--buffer_size 9")
    monkeypatch.setattr(SequentialDigits, "SETTING", "domain-il")
    assert start("gem_sbs", "--buffer_size 50").model.by_domain is True
    with pytest.raises(UserError, match="each of the 10 classes a quota in each domain; give at least 50$"):
        start("gem_sbs", "--buffer_size 49")


# ---- filling

class Stock(ContinualModel):
    """A method that stores the first ones of each class that it is handed, up to `takes`."""

    takes = 1

    def end_task(self, dataset: Any) -> None:
        self.handed = dataset
        for _, labels, images in dataset.train_loader:
            for label, image in zip(labels, images, strict=True):
                held = self.buffer.labels[: len(self.buffer)].tolist() if len(self.buffer) else []
                if held.count(int(label)) < self.takes:
                    self.buffer.add_data(image[None], labels=label[None])


class Quotas(ClassQuota, Stock):
    """The second of some tasks of two classes."""

    by_domain = False  # type: ignore[assignment]
    n_past_classes, n_seen_classes, current_task = 2, 4, 1  # type: ignore[assignment]

    def __init__(self, **given: Any) -> None:
        torch.nn.Module.__init__(self)
        vars(self).update(given)

    def new_quota(self) -> int:
        return 3


class Data:
    """Images are their own places; labels 2 and 3 in turn."""

    targets = torch.tensor([2, 3] * 5)

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        return index[:, None] + 0.5, self.targets[index], index[:, None].float()


class Wanted:
    """Chooses the last ones of each class."""

    def choose_per_class(self, task: Task, quotas: dict[int, int], generator: torch.Generator) -> Tensor:
        self.quotas = quotas
        return torch.cat([(task.labels == c).nonzero().flatten().flip(0)[:k] for c, k in quotas.items()])


def quotas() -> SimpleNamespace:
    sampler = Wanted()
    model = Quotas(args=SimpleNamespace(batch_size=4), sampler=sampler, generator=torch.Generator(), buffer=Buffer(9))
    loader = SimpleNamespace(dataset=Data())
    return SimpleNamespace(model=model, sampler=sampler, dataset=SimpleNamespace(train_loader=loader, N_TASKS=7),
                           task=Task(Data.targets, first_class=2))


@pytest.mark.parametrize("takes", [0, 1, 2, 3])
def test_the_stock_method_is_handed_the_chosen_and_what_it_took_is_known(takes: int) -> None:
    it = quotas()
    it.model.takes = takes
    it.model.buffer.add_data(torch.zeros(2, 1), labels=torch.tensor([0, 1]))  # of a task before
    stored = it.model.fill(it.dataset, it.task)
    assert it.sampler.quotas == {2: 3, 3: 3}
    handed = it.model.handed
    assert isinstance(handed, View) and handed.N_TASKS == 7 and type(handed.train_loader) is Chosen
    assert handed.train_loader.index.tolist() == [8, 9, 6, 7, 4, 5]  # a class after the other
    assert [len(batch[1]) for batch in handed.train_loader] == [3, 3]
    assert stored.tolist() == [8, 9, 6, 7, 4, 5][: 2 * takes]
    held = it.model.buffer.examples[2 : len(it.model.buffer), 0].tolist()
    assert sorted(held) == sorted(stored.tolist())


def test_of_the_first_class_only_what_was_stored_counts_as_taken() -> None:
    """Slots that are not in use hold zeros, which are no labels."""
    it = quotas()
    it.dataset.train_loader.dataset.targets = it.task.labels = Data.targets - 2
    vars(it.model).update(takes=1, n_past_classes=0, n_seen_classes=2, current_task=0)
    assert it.model.fill(it.dataset, it.task).tolist() == [8, 9]


def test_of_a_domain_only_its_own_examples_count_as_taken() -> None:
    it = quotas()
    it.model.takes, it.model.by_domain = 0, True
    it.model.buffer.add_data(torch.zeros(4, 1), labels=torch.tensor([2, 2, 3, 2]),
                             task_labels=torch.tensor([0, 1, 0, 0]))
    assert it.model.fill(it.dataset, it.task).tolist() == [8]


def test_ranks_count_within_each_class() -> None:
    assert rank_in_class(torch.tensor([3, 3, 0, 3, 0, 1])).tolist() == [0, 1, 0, 2, 1, 0]


# ---- what is handed over

def test_the_chosen_are_a_data_set_and_its_loader() -> None:
    index = torch.tensor([5, 0, 8])
    chosen = Chosen(Data(), index, 2)
    assert chosen.data is index and chosen.targets.tolist() == [3, 2, 2] and (len(chosen), chosen.batch_size) == (3, 2)
    assert [batch[2].flatten().tolist() for batch in chosen] == [[5, 0], [8]]


def test_the_length_of_each_batch_is_announced_while_it_is_worked_on() -> None:
    loader = Announced(Data(), torch.arange(7), 3)
    loader.args = SimpleNamespace(batch_size=32)
    assert [(loader.args.batch_size, len(batch[1])) for batch in loader] == [(3, 3), (2, 2), (2, 2)]
    assert loader.args.batch_size == 32
    batches = iter(loader)
    next(batches)
    assert loader.args.batch_size == 3
    batches.close()  # a method that has enough
    assert loader.args.batch_size == 32


def test_xder_is_handed_a_loader_that_announces() -> None:
    model: Any = SimpleNamespace(args=SimpleNamespace(batch_size=3))
    data, chosen = Data(), torch.arange(4)
    loader = XDerSbs.loader(model, data, chosen)
    assert type(loader) is Announced and loader.args is model.args
    assert (loader.source, loader.batch_size) == (data, 3) and loader.index is chosen
    plain = ClassQuota.loader(model, data, chosen)
    assert type(plain) is Chosen and (plain.source, plain.batch_size) == (data, 3) and plain.index is chosen
