"""The recorder by itself: images whose pixels are logits, so that every row can be told by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mammoth_sbs.errors import UserError
from mammoth_sbs.models import record
from mammoth_sbs.models.record import INDEX, Recorder

from datasets.utils.continual_dataset import MammothDatasetWrapper
from utils.augmentations import to_float
from utils.buffer import Buffer

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A recorder, with these flags."""

    def make(**flags: Any) -> Recorder:
        usual = {"sbs_record": str(tmp_path / "r.npz"), "sbs_record_every": None, "sbs_record_tasks": None,
                 "sbs_record_scores": None, "model": "sgd", "seed": 3}
        return Recorder(SimpleNamespace(**{**usual, **flags}))

    return make


class Net(nn.Module):
    """Pixels are logits; notes how it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((len(x), self.training, torch.is_grad_enabled()))
        return x.flatten(1)


class Loader(list):
    """Batches of test data; workers that read them would draw a seed."""

    def __init__(self, data: Any) -> None:
        self.dataset = data
        super().__init__((to_float(data.data[i : i + 2]), data.targets[i : i + 2], "more")
                         for i in range(0, len(data), 2))

    def __iter__(self) -> Iterator[tuple]:
        torch.rand(1)
        return super().__iter__()


def pictures(rows: list[list[int]], labels: list[int], places: int) -> MammothDatasetWrapper:
    data = torch.tensor(rows, dtype=torch.uint8).view(len(rows), 1, 1, 4)
    return MammothDatasetWrapper(data, torch.tensor(labels), places + np.arange(len(rows)), lambda x, _: to_float(x))


FIRST = ([[9, 1, 0, 0], [1, 9, 0, 0], [9, 2, 0, 0], [5, 1, 9, 0], [1, 6, 0, 9]], [0, 1, 1, 0, 1], 50)
SECOND = ([[0, 0, 9, 1], [0, 7, 1, 5], [8, 0, 1, 2]], [2, 3, 2], 80)
TEST_FIRST = ([[3, 1, 0, 9], [1, 4, 2, 0], [1, 2, 0, 0]], [0, 1, 0], 20)
TEST_SECOND = ([[0, 0, 2, 1], [9, 0, 2, 3]], [2, 3], 30)


class Tasks:
    """Two tasks of two classes."""

    N_TASKS = 2

    def __init__(self) -> None:
        self.c_task, self.test_loaders, self.made = -1, [], []
        self.train_loader: Any = None

    def get_offsets(self, task: int) -> tuple[int, int]:
        return 2 * task, 2 * task + 2

    def get_data_loaders(self) -> None:
        torch.rand(1)
        self.c_task += 1
        self.made.append(self.c_task)
        self.train_loader = SimpleNamespace(dataset=pictures(*(FIRST, SECOND)[self.c_task]))
        self.test_loaders.append(Loader(pictures(*(TEST_FIRST, TEST_SECOND)[self.c_task])))

    def get_class_names(self) -> list[str]:
        return ["a", "b", "c", "d"]


def a_model(dataset: Tasks, task: int = 0) -> SimpleNamespace:
    return SimpleNamespace(net=Net(), dataset=dataset, current_task=task, n_seen_classes=2 * task + 2, n_tasks=2,
                           device="cpu", classify=lambda outputs: outputs, normalization_transform=None,
                           buffer=Buffer(4), args=SimpleNamespace(stop_after=None, n_epochs=2, sbs_record_every=None,
                                                                  sbs_record_tasks=None))


def begin(recorder: Recorder, model: SimpleNamespace, dataset: Tasks) -> Any:
    dataset.get_data_loaders()
    model.n_seen_classes = 2 * model.current_task + 2
    recorder.begin_task(model, dataset)
    return dataset.train_loader.dataset


def learn(recorder: Recorder, model: SimpleNamespace, dataset: Tasks, epoch: int, rows: list[int],
          guess: list[list[int]]) -> None:
    """A step of an epoch on these examples, which the network sees as `guess`; and the epoch's end."""
    data = dataset.train_loader.dataset
    inputs = torch.tensor(guess, dtype=torch.float32).view(len(guess), 1, 1, 4)
    recorder.expect(inputs, data.targets[rows], torch.tensor(rows), epoch)
    model.net(inputs)
    recorder.end_epoch(model, dataset, epoch)


def end(recorder: Recorder, model: SimpleNamespace, dataset: Tasks) -> None:
    recorder.close_task(model, dataset)
    model.current_task += 1
    recorder.end_task(model, dataset)


def bits(packed: np.ndarray, n: int) -> list[list[int]] | list[int]:
    return np.unpackbits(packed, axis=-1, count=n).tolist()


# ---- flags

def test_a_recorder_as_its_flags_say(make: Make, tmp_path: Path) -> None:
    plain = make()
    assert (plain.path, plain.every, plain.tasks, plain.scores) == (tmp_path / "r.npz", 1, None, [])
    state = plain.state_dict()
    assert (state["ended"], state["epoch"], state["epochs"], state["rows"], state["waiting"]) == (0, 0, [], {}, None)
    some = make(sbs_record_every=3, sbs_record_tasks=2, sbs_record_scores=["loss"])
    assert (some.every, some.tasks, some.scores) == (3, 2, ["loss"])
    assert [some.follows(task) for task in range(4)] == [True, True, False, False] and plain.follows(9) is True


def test_every_seed_has_its_own_draws(make: Make) -> None:
    seeds = [make(seed=seed).generator.initial_seed() for seed in (0, 1, 2, 4, 8, 64, 1024)]
    assert len(set(seeds)) == 7 and make(seed=None).generator.initial_seed() == seeds[0]


def test_where_a_record_cannot_be_written_is_said_at_once(make: Make, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--sbs-record x.txt: give a file that ends in .npz"):
        make(sbs_record="x.txt")
    with pytest.raises(UserError, match="no/x.npz: there is no folder .*no; make it first"):
        make(sbs_record=str(tmp_path / "no" / "x.npz"))
    with pytest.raises(UserError, match="--sbs-record: joint learns all tasks at once"):
        make(model="joint")
    tried: list[tuple] = []
    monkeypatch.setattr(record, "try_to_write", lambda *given: tried.append(given))
    make()
    assert tried[0][:3] == (tmp_path / "r.npz", "record", "--sbs-record")


@pytest.mark.parametrize(("flags", "stop", "epochs", "said"), [
    ({}, None, 2, "every epoch a forward pass over earlier tasks and test data, about 38 images in all beside 20 in"),
    ({}, 1, 2, "every epoch a forward pass over earlier tasks and test data, about 11 images in all beside 10 in"),
    ({}, 7, None, "every epoch a forward pass over earlier tasks and test data, about 24 images in all beside 10 in"),
    ({"sbs_record_every": 2}, None, 4, "every 2 epochs a forward pass over earlier tasks and test data, about 38 "),
    ({"sbs_record_every": 3}, None, 4, "every 3 epochs a forward pass over earlier tasks and test data, about 38 ")])
def test_what_is_said_of_the_cost(make: Make, flags: dict, stop: int | None, epochs: int | None, said: str,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks are taken to be of the size of the first: 5 images, and 3 to test."""
    recorder, dataset = make(**flags), Tasks()
    model = a_model(dataset)
    vars(model.args).update(stop_after=stop, n_epochs=epochs, **flags)
    dataset.test_loaders.append(Loader(pictures(*TEST_SECOND)))  # of another size, and not the last
    begin(recorder, model, dataset)
    assert f"recording to {recorder.path}: after {said}" in capsys.readouterr().out
    recorder.epochs = [(1, 1)]
    begin(recorder, model, dataset)
    assert capsys.readouterr().out == ""


# ---- a whole run

def test_two_tasks_by_hand(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[tuple] = []
    monkeypatch.setitem(record.SCORES, "loss", lambda *given: scored.append(given) or torch.rand(5))
    recorder, dataset = make(sbs_record_scores=["loss"]), Tasks()
    model = a_model(dataset)
    outside = torch.get_rng_state()
    torch.manual_seed(1)
    data = begin(recorder, model, dataset)
    assert data.extra_return_fields == (INDEX,) and data.batch(torch.tensor([3, 1]))[3].tolist() == [3, 1]
    data.add_extra_return_field("other", range(5))
    state = torch.get_rng_state()
    learn(recorder, model, dataset, 0, [0, 1, 2, 3, 4], [[1, 0, 9, 9], [1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0],
                                                         [0, 1, 0, 0]])
    recorder.end_epoch(model, dataset, 0)  # some versions of Mammoth end an epoch twice
    learn(recorder, model, dataset, 1, [4, 0, 1], [[0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]])
    model.buffer.add_data(to_float(data.data[[4, 1]]))
    assert recorder.epoch == 2 and recorder.ended == 0
    end(recorder, model, dataset)
    assert torch.equal(torch.get_rng_state(), state) and scored == [(model, data)]
    assert not model.net._forward_hooks and not recorder.hooks and data.extra_return_fields == ("other",)
    assert model.net.calls[-1] == (5, False, False) and model.net.training

    second = begin(recorder, model, dataset)
    assert recorder.epoch == 0 and recorder.data == [data, second] and recorder.ended == 1
    assert len(model.net._forward_hooks) == 2
    learn(recorder, model, dataset, 0, [0, 1, 2], [[0, 0, 5, 1], [9, 0, 1, 2], [9, 0, 1, 2]])
    model.buffer.add_data(to_float(second.data[[2]]))
    end(recorder, model, dataset)
    torch.set_rng_state(outside)
    assert len(scored) == 1 and recorder.ended == 2  # the last task's scores nobody would use
    with np.load(recorder.path) as file:
        found = {name: file[name] for name in file.files}

    assert found["epochs"].tolist() == [[1, 1], [1, 2], [2, 1]] and found["classes"].tolist() == ["a", "b", "c", "d"]
    steps = [[1, 0, 1, 0, 1], [0, 1, 0, 0, 1]]
    assert bits(found["task1_M"], 5) == [*steps, [1, 1, 0, 1, 1]]  # later, as the images are
    assert bits(found["task1_M_class_il"], 5) == [*steps, [1, 1, 0, 0, 0]]
    assert bits(found["task2_M"], 3) == [[1, 1, 0]] and bits(found["task2_M_class_il"], 3) == [[1, 0, 0]]
    assert bits(found["task1_M_test"], 3) == [[1, 1, 0]] * 3
    assert bits(found["task1_M_test_class_il"], 3) == [[1, 1, 0], [1, 1, 0], [0, 1, 0]]
    assert bits(found["task2_M_test"], 2) == [[1, 1]] and bits(found["task2_M_test_class_il"], 2) == [[1, 0]]
    assert bits(found["task1_known"], 5) == bits(found["task1_known_class_il"], 5) == [1, 1, 0, 1, 1]
    assert bits(found["task2_known"], 3) == [1, 1, 0] and bits(found["task2_known_class_il"], 3) == [1, 0, 0]
    assert found["task1_speed"].tolist() == found["task1_speed_class_il"].tolist() == [0.5, 0.5, 0.5, 0, 1]
    assert found["task2_speed"].tolist() == [1, 1, 0] and found["task2_speed_class_il"].tolist() == [1, 0, 0]
    for name, labels, places in (("task1{}", FIRST, 50), ("task2{}", SECOND, 80), ("task1{}_test", TEST_FIRST, 20),
                                 ("task2{}_test", TEST_SECOND, 30)):
        assert found[name.format("_labels")].tolist() == labels[1]
        assert found[name.format("_indices")].tolist() == [places + i for i in range(len(labels[1]))]
    assert found["task1_stored"].tolist() == [1, 4] and found["task2_stored"].tolist() == [2]
    assert bits(found["task1_buffer"], 5) == [[0, 1, 0, 0, 1]] * 2 and bits(found["task2_buffer"], 3) == [[0, 0, 1]]
    assert found["task1_loss"].shape == (5,) and "task2_loss" not in found


def test_a_task_that_is_not_followed_leaves_rows_of_the_others_only(make: Make) -> None:
    recorder, dataset = make(sbs_record_tasks=1, sbs_record_every=2), Tasks()
    model = a_model(dataset)
    data = begin(recorder, model, dataset)
    for epoch in range(3):
        learn(recorder, model, dataset, epoch, [0], [[1, 0, 0, 0]])
        assert len(recorder.epochs) == (epoch + 1) // 2
        assert (recorder.waiting is None) is (epoch == 1)
    end(recorder, model, dataset)
    assert recorder.epochs == [(1, 2), (1, 3)]  # every second, and the last
    begin(recorder, model, dataset)
    assert not recorder.speed and not model.net._forward_hooks and recorder.data[0] is data
    learn(recorder, model, dataset, 0, [0], [[1, 0, 0, 0]])
    recorder.end_epoch(model, dataset, 1)
    end(recorder, model, dataset)
    assert recorder.epochs[2:] == [(2, 2)] and len(recorder.rows["task1_M"]) == len(recorder.rows["task1_M_test"]) == 3
    assert len(recorder.rows["task1_buffer"]) == 2 and {"task1_known", "task1_stored"} <= recorder.arrays.keys()
    assert not [name for name in (*recorder.rows, *recorder.arrays) if name.startswith("task2")]


def test_rows_are_of_every_third_epoch_and_of_tasks_that_have_begun(make: Make) -> None:
    recorder, dataset = make(sbs_record_every=3), Tasks()
    model = a_model(dataset)
    begin(recorder, model, dataset)
    dataset.test_loaders.append(Loader(pictures(*TEST_SECOND)))  # of a task to come
    for epoch in range(7):
        learn(recorder, model, dataset, epoch, [0], [[1, 0, 0, 0]])
    assert recorder.epochs == [(1, 3), (1, 6)] and {name[:5] for name in recorder.rows} == {"task1"}


def test_what_the_last_epoch_leaves_is_written_down_once(make: Make) -> None:
    recorder, dataset = make(), Tasks()
    model = a_model(dataset)
    begin(recorder, model, dataset)
    learn(recorder, model, dataset, 0, [0], [[1, 0, 0, 0]])
    recorder.close_task(model, dataset)
    assert recorder.epochs == [(1, 1)] and len(recorder.rows["task1_M"]) == 1


def test_tasks_that_are_passed_through_leave_nothing(make: Make) -> None:
    recorder, dataset = make(), Tasks()
    model = a_model(dataset)
    begin(recorder, model, dataset)
    end(recorder, model, dataset)
    assert not recorder.arrays and not recorder.rows and recorder.ended == 0 and not recorder.path.exists()
    assert not model.net.calls


# ---- going on

def test_the_data_of_tasks_before_a_checkpoint_is_made_again_and_nothing_of_it_is_felt(make: Make) -> None:
    recorder, dataset = make(), Tasks()
    recorder.ended, model = 1, a_model(dataset, task=1)
    dataset.get_data_loaders(), dataset.get_data_loaders()
    own, tests, dataset.made = dataset.train_loader, list(dataset.test_loaders), []
    state = torch.get_rng_state()
    recorder.begin_task(model, dataset)
    assert torch.equal(torch.get_rng_state(), state) and dataset.made == [0]
    assert dataset.c_task == 1 and dataset.test_loaders == tests and dataset.train_loader is own
    assert len(recorder.data) == 2 and recorder.data[0].targets.tolist() == FIRST[1]
    assert recorder.data[1] is own.dataset
    recorder.begin_task(model, dataset)  # begun again: its index is there already
    assert dataset.made == [0] and own.dataset.extra_return_fields == (INDEX,)
    recorder.ended = 2
    with pytest.raises(UserError, match="the checkpoint's record goes on to task 2, and --start_from back to task 2"):
        recorder.begin_task(model, dataset)


def test_a_recorder_loads_what_another_saved(make: Make, tmp_path: Path) -> None:
    one, dataset = make(sbs_record_every=2), Tasks()
    model = a_model(dataset)
    begin(one, model, dataset)
    for epoch in range(2):
        learn(one, model, dataset, epoch, [0, 1], [[1, 0, 0, 0], [0, 1, 0, 0]])
    end(one, model, dataset)
    begin(one, model, dataset)
    learn(one, model, dataset, 0, [0, 1], [[0, 0, 1, 0], [0, 0, 1, 0]])
    state = one.state_dict()
    other = make(sbs_record_every=2, sbs_record=str(tmp_path / "other.npz"), seed=9)
    again = Tasks()
    again.get_data_loaders()
    begin(other, a_model(again, task=1), again)
    other.load_state_dict(state)
    assert (other.ended, other.epoch, other.epochs) == (1, 1, [(1, 2)])
    assert torch.equal(other.generator.get_state(), one.generator.get_state())
    assert other.rows.keys() == one.rows.keys() and other.arrays.keys() == one.arrays.keys()
    assert all(np.array_equal(other.rows[name], one.rows[name]) for name in one.rows) and other.rows["new"] == []
    assert all(np.array_equal(other.arrays[name], one.arrays[name]) for name in one.arrays)
    assert bits(other.waiting["task_il"], 3) == bits(one.waiting["task_il"], 3) == [1, 0, 0]
    assert other.speed["class_il"].count.tolist() == other.before["class_il"].tolist() == [1, 0, 0]
    other.speed = {"of another kind": other.speed["task_il"]}
    one.waiting = None
    other.load_state_dict(one.state_dict())  # what was not followed then is not there
    assert other.waiting is None
    with pytest.raises(UserError, match="the checkpoint has no record of what was before"):
        other.load_state_dict(None)


@pytest.mark.parametrize(("epochs", "ended", "there", "writes"), [
    ([[1, 1], [1, 2]], 1, False, True), ([[1, 2], [2, 1]], 1, False, False), ([], 0, False, False),
    ([[1, 1], [1, 2]], 1, True, False), ([[1, 3], [2, 1]], 2, False, True)])
def test_a_record_of_a_run_that_has_ended_is_written_where_it_is_missing(
        make: Make, epochs: list, ended: int, there: bool, writes: bool) -> None:
    state, recorder = make().state_dict(), make()
    if there:
        recorder.path.touch()
    written: list[int] = []
    recorder.write = lambda: written.append(1)  # type: ignore[method-assign]
    recorder.load_state_dict({**state, "epochs": epochs, "ended": ended})
    assert len(written) == writes


def test_a_record_that_had_to_be_written_elsewhere_is_spoken_of(make: Make, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    for said in ("it is elsewhere", ""):
        recorder, given = make(), []
        monkeypatch.setattr(record, "write_somewhere", lambda *args, said=said, given=given: (given.append(args), said))
        recorder.write()
        assert given[0][0] == recorder.path and given[0][2] == "record"
        assert capsys.readouterr().out == ("warning: it is elsewhere\n" if said else "")


# ---- how it finds out

def test_predictions_are_among_a_tasks_classes_or_all_so_far() -> None:
    model = SimpleNamespace(dataset=Tasks(), n_seen_classes=4, classify=lambda outputs: -outputs)
    logits = torch.tensor([[8.0, 2, 1, 5, 9, 7], [1, 3, 6, 2, 7, 8]])
    assert Recorder.predict(model, "task_il", 1, -logits).tolist() == [3, 2]
    assert Recorder.predict(model, "task_il", 0, -logits).tolist() == [0, 1]
    assert Recorder.predict(model, "class_il", 0, -logits).tolist() == [0, 2]


@pytest.mark.parametrize("training", [True, False])
def test_evaluations_leave_the_network_in_its_mode_and_see_normalised_images(make: Make, training: bool) -> None:
    recorder, dataset = make(), Tasks()
    model = a_model(dataset)
    begin(recorder, model, dataset)
    model.net.train(training)
    model.normalization_transform = lambda x: -x
    ((images, labels),) = recorder.batches(model, 0)
    assert torch.equal(images, -to_float(recorder.data[0].data)) and labels.tolist() == FIRST[1]
    found = recorder.correct(model, [(images, labels)], 0)
    assert bits(found["task_il"], 5) == [0, 0, 1, 0, 0] and model.net.training is training
    assert model.net.calls == [(5, False, False)]


def test_a_picture_is_looked_for_in_all_tasks_and_only_what_is_in_use(make: Make) -> None:
    recorder = make()
    recorder.data = [pictures(*FIRST), pictures(FIRST[0][1:3] * 2, [2, 3, 2, 3], 0)]
    recorder.arrays["task2_labels"] = np.zeros(4)
    assert [part.sum() for part in recorder.look_into(None)] == [0, 0]
    buffer = Buffer(9)
    assert [part.sum() for part in recorder.look_into(buffer)] == [0, 0]
    twice = to_float(recorder.data[0].data[[1, 2, 1, 1, 1]])  # once there, and twice in the second task
    buffer.add_data(twice)
    held = recorder.look_into(buffer)
    assert [part.int().tolist() for part in held] == [[0, 1, 1, 0, 0], [1, 0, 1, 0]]
    assert len(recorder.places) == 2
    assert recorder.rows.keys() == {"task2_buffer"} and bits(np.stack(recorder.rows["task2_buffer"]), 4) == [
        [0] * 4, [0] * 4, [1, 0, 1, 0]]
    buffer.examples[5:] = to_float(recorder.data[0].data[[0, 0, 0, 0]])  # not in use
    assert recorder.look_into(buffer)[0].int().tolist() == [0, 1, 1, 0, 0]
