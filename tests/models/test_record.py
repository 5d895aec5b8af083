"""The run's result file, and `--sbs-record`: M of every task for any model, and nothing of it felt by the run."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mammoth_sbs.core.record import Record, load_matrix
from mammoth_sbs.errors import UserError
from mammoth_sbs.models.record import images_passed
from tests.conftest import STOCK, Start
from tests.models.conftest import SMALL

from datasets.seq_digits import SequentialDigits
from utils.buffer import Buffer
from utils.training import train

CONV = f"{SMALL} --backbone tiny-resnet18 --num_filters 4 --stop_after 2"
Run = Callable[..., dict]


@pytest.fixture
def augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits that are moved about in training, so that training and evaluation see other images."""
    monkeypatch.setattr(SequentialDigits, "PADDING", 1)


def test_run_file_and_record(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "record.npz"
    out = run("er_sbs", f"{SMALL} --buffer_size 30 --stop_after 2 --sbs-q .1 --sbs-s .3 --sbs-record {file}")
    assert {key: out["sbs"][key] for key in ("sampler", "q", "s", "scope")} == {
        "sampler": "speed", "q": 0.1, "s": 0.3, "scope": "task"}
    record = np.load(file)
    for t in (1, 2):
        m = load_matrix(record, t)
        speed, note = record[f"task{t}_speed"], out["sbs"]["tasks"][t - 1]
        assert m.shape == (2 * (3 - t), 40)  # its own epochs, and those of later tasks
        assert np.allclose(m[:2].mean(0), speed)
        assert np.isclose(speed.mean(), note["speed_mean"])
        assert len(record[f"task{t}_stored"]) == note["stored"]
        assert len(record[f"task{t}_indices"]) == len(record[f"task{t}_labels"]) == 40


@pytest.mark.parametrize("model", ["sgd", *STOCK, "derpp_sbs", "rpc_sbs"])
def test_any_model_is_recorded_and_does_not_feel_it(model: str, run: Run, tmp_path: Path, augmented: None) -> None:
    out = run(model, f"{CONV} --sbs-record {tmp_path / 'r.npz'}")
    record = Record(tmp_path / "r.npz")
    assert record.tasks == 2 and record.epochs.tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    for task in (1, 2):
        for after in range(task, 3):  # at the end of a task, M on test data is what evaluation measures
            for setting in ("task_il", "class_il"):
                accuracy = out["results"][setting]["matrix"][after - 1][task - 1]
                right = 100 * record.known(task, after, True, setting).mean()
                assert np.isclose(right, accuracy) or model == "fdr"  # filling its buffer moves batch normalisation
        assert not (record.matrix(task, setting="class_il") & ~record.matrix(task)).any()
    assert 0 < record.matrix(1)[-1].mean() < 1 or model != "sgd"
    assert out["model"].net.training
    alone = run(model, CONV)
    assert alone["results"] == out["results"]
    weights = alone["model"].net.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in out["model"].net.state_dict().items())


def test_the_first_task_of_sgd_and_of_er_sbs_is_the_same(run: Run, tmp_path: Path, augmented: None) -> None:
    """Learning speeds of a stock method are those that SBS counts."""
    for model in ("sgd", "er_sbs"):
        run(model, f"{CONV} --sbs-record {tmp_path / model}.npz")
    sgd, sbs = (Record(tmp_path / f"{model}.npz") for model in ("sgd", "er_sbs"))
    for name in ("task1_speed", "task1_speed_class_il", "task1_labels", "task1_indices_test"):
        assert np.array_equal(sgd[name], sbs[name])
    assert np.array_equal(sgd.matrix(1)[:2], sbs.matrix(1)[:2])
    assert not np.array_equal(sgd.matrix(1)[2:], sbs.matrix(1)[2:])


def test_rows_of_earlier_tasks_are_evaluations_of_their_training_images(start: Start, tmp_path: Path,
                                                                        augmented: None) -> None:
    it = start("sgd", f"{CONV} --sbs-record {tmp_path / 'r.npz'}")
    train(it.model, it.dataset, it.args)
    record = Record(tmp_path / "r.npz")
    it.model.net.eval()
    for task in (0, 1):
        data, images = it.model.recorder.data[task], it.model.recorder.data[task].data.float() / 255
        with torch.no_grad():
            outputs = it.model.net((images - SequentialDigits.MEAN[0]) / SequentialDigits.STD[0])
        alone, among_all = outputs[:, 2 * task : 2 * task + 2].argmax(1) + 2 * task, outputs[:, :4].argmax(1)
        for setting, found in (("task_il", alone), ("class_il", among_all)):
            assert np.array_equal(record.known(task + 1, 2, setting=setting), (found == data.targets).numpy())
    assert np.array_equal(record.matrix(1)[-1], record.known(1, 2))
    assert not np.array_equal(record.matrix(2)[-1], record.known(2, 2))  # that of the training steps


def test_every_second_epoch_and_the_last(run: Run, tmp_path: Path, augmented: None) -> None:
    flags = f"{CONV} --n_epochs 5".replace("--n_epochs 2", "")
    run("er", f"{flags} --sbs-record {tmp_path / 'all.npz'}")
    run("er", f"{flags} --sbs-record {tmp_path / 'some.npz'} --sbs-record-every 2")
    full, some = Record(tmp_path / "all.npz"), Record(tmp_path / "some.npz")
    assert some.epochs.tolist() == [[1, 2], [1, 4], [1, 5], [2, 2], [2, 4], [2, 5]]
    kept = [full.epochs.tolist().index(pair) for pair in some.epochs.tolist()]
    for test in (False, True):
        assert np.array_equal(full.matrix(1, test)[kept], some.matrix(1, test))
    assert np.array_equal(full.speed(), some.speed())  # of all epochs


def test_the_first_tasks_only(run: Run, tmp_path: Path, augmented: None) -> None:
    """Task 2 is learned and not followed; the first is followed through it as ever."""
    run("er", f"{CONV} --sbs-record {tmp_path / 'all.npz'}")
    run("er", f"{CONV} --sbs-record {tmp_path / 'one.npz'} --sbs-record-tasks 1")
    both, one = Record(tmp_path / "all.npz"), Record(tmp_path / "one.npz")
    assert (both.followed, one.followed, one.tasks) == ([1, 2], [1], 2)
    assert not [name for name in one.arrays if name.startswith("task2")]
    for name in one.arrays:
        assert np.array_equal(one[name], both[name]), name


def test_what_the_buffer_holds_is_found_again(start: Start, tmp_path: Path, augmented: None) -> None:
    it = start("er", f"{CONV} --buffer_size 30 --sbs-record {tmp_path / 'r.npz'}")
    train(it.model, it.dataset, it.args)
    record, buffer = Record(tmp_path / "r.npz"), it.model.buffer
    held = [record.in_buffer(task, 2) for task in (1, 2)]
    pictures = torch.cat([it.model.recorder.data[task].data[held[task]] for task in (0, 1)]).float() / 255
    assert len(pictures) == len({tuple(x.flatten().tolist()) for x in buffer.examples}) > 20
    assert {tuple(x.flatten().tolist()) for x in pictures} == {tuple(x.flatten().tolist()) for x in buffer.examples}
    assert record["task1_stored"].tolist() == np.flatnonzero(record.in_buffer(1, 1)).tolist()
    assert record.in_buffer(1, 1).sum() > held[0].sum() > 0  # the reservoir has made room


def test_a_picture_that_is_there_twice_and_stored_twice_is_found_twice(start: Start, tmp_path: Path) -> None:
    recorder = start("er_sbs", f"--sbs-record {tmp_path / 'record.npz'}").model.recorder
    images = torch.tensor([7, 7, 9], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 2, 2)
    recorder.data = [SimpleNamespace(targets=torch.zeros(3), not_augmented=lambda index: images[index])]
    for stored, found in (([0], [True, False, False]), ([1, 0], [True, True, False]), ([2, 0, 1], [True] * 3)):
        buffer = Buffer(4)
        buffer.add_data(images[stored].float() / 255)
        assert recorder.look_into(buffer)[0].tolist() == found


def test_a_recorder_goes_on_from_its_state(start: Start, tmp_path: Path, augmented: None) -> None:
    """At the end of a task, and at the end of any epoch in one."""
    flags = f"{CONV} --n_epochs 3 --sbs-record-every 2".replace("--n_epochs 2", "")
    it = start("sgd", f"{flags} --sbs-record {tmp_path / 'one.npz'}")
    other = start("sgd", f"{flags} --sbs-record {tmp_path / 'two.npz'}").model.recorder
    model, recorder = it.model, it.model.recorder
    end_epoch = recorder.end_epoch

    def and_stop(model_: object, dataset: object, epoch: int) -> None:
        end_epoch(model_, dataset, epoch)
        file = io.BytesIO()
        torch.save(model.recorder.state_dict(), file)
        file.seek(0)
        if (model.current_task, epoch) == (1, 0):  # an epoch that has not been written down
            for hook in recorder.hooks:
                hook.remove()
            model.recorder = other
            other.begin_task(model, dataset)
            other.load_state_dict(torch.load(file, weights_only=True))

    recorder.end_epoch = and_stop
    train(model, it.dataset, it.args)
    whole = start("sgd", f"{flags} --sbs-record {tmp_path / 'three.npz'}")
    train(whole.model, whole.dataset, whole.args)
    one, two = np.load(tmp_path / "two.npz"), np.load(tmp_path / "three.npz")
    assert set(one) == set(two)
    for name in one:
        assert np.array_equal(one[name], two[name]), name


@pytest.mark.parametrize("model", ["sgd", "er_sbs"])
def test_scores_are_kept_beside_learning_speed(model: str, run: Run, tmp_path: Path, augmented: None) -> None:
    out = run(model, f"{CONV} --sbs-record {tmp_path / 'r.npz'} --sbs-record-scores loss uncertainty c-score")
    record = Record(tmp_path / "r.npz")
    for score in ("loss", "uncertainty", "c-score"):
        assert len(record[f"task1_{score}"]) == 40 and len(set(record[f"task1_{score}"])) > 1
    assert (record["task1_loss"] <= 0).all()  # high is easy
    assert run(model, CONV)["results"] == out["results"]


def test_the_cost_is_said_before_the_run(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    it = start("sgd", f"{SMALL} --n_tasks 5 --sbs-record {tmp_path / 'r.npz'}")
    passed = 0
    correct = it.model.recorder.correct

    def counted(model: object, batches: object, task: int) -> dict:
        nonlocal passed
        batches = list(batches)  # type: ignore[call-overload]
        passed += sum(len(inputs) for inputs, _ in batches)
        return correct(model, batches, task)

    it.model.recorder.correct = counted
    train(it.model, it.dataset, it.args)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("recording")]
    said = int(line.split(" images in all")[0].split()[-1].replace(",", ""))
    assert abs(said - passed) < 0.05 * passed  # tasks are not of quite the same size
    flags = SimpleNamespace(n_epochs=4, sbs_record_every=3, sbs_record_tasks=None)
    assert images_passed(100, 10, 3, flags) == 300 + 2 * (0 + 10 + 100 + 20 + 200 + 30)
    flags.sbs_record_tasks = 1
    assert images_passed(100, 10, 3, flags) == 100 + 2 * (0 + 10 + 100 + 10 + 100 + 10)


@pytest.mark.parametrize(("flags", "says"), [
    ("--sbs-record nowhere/x.npz", "there is no folder nowhere"),
    ("--sbs-record x.txt", "ends in .npz"),
    ("--sbs-record x.npz --sbs-record-every 0", "at least 1"),
])
def test_bad_flags(start: Start, flags: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        start("sgd", flags)


def test_joint_has_nothing_to_forget(start: Start) -> None:
    with pytest.raises(UserError, match="joint learns all tasks at once"):
        start("joint", "--sbs-record x.npz")


@pytest.mark.parametrize("damage", ["nothing", "half", "other"])
def test_what_is_no_record_is_one_line(damage: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    run("sgd", f"{SMALL} --stop_after 2 --sbs-record {file}")
    if damage == "nothing":
        file.write_bytes(b"")
    elif damage == "half":
        file.write_bytes(file.read_bytes()[:1000])
    else:
        np.savez(file, epochs=np.array([[1, 1]]), task1_M=np.zeros(3))
    with pytest.raises(UserError, match="not a record"):
        Record(file)
    with pytest.raises(UserError, match="No such file"):
        Record(tmp_path / "other.npz")
