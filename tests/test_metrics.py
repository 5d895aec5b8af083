"""Metrics: their definitions by hand, and that measuring more changes nothing of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import torch

from mammoth_sbs import metrics
from mammoth_sbs.errors import UserError
from tests.conftest import STOCK

ALL = ["sgd", "joint", *STOCK, *(f"{name}_sbs" for name in STOCK)]
SMALL = ("--max_classes 6 --n_tasks 3 --train_per_class 12 --n_epochs 3 --batch_size 12 --backbone tiny-resnet18 "
         "--num_filters 2")


def flags(model: str) -> str:
    of_xder = "--simclr_batch_size 8 --simclr_num_aug 2" if model.startswith("xder") else ""
    return f"{SMALL} {'' if model in ('sgd', 'joint') else '--buffer_size 22'} {of_xder}"


# ---- definitions

@pytest.mark.parametrize(("matrix", "lost", "transfer", "average"), [
    ([[90.0]], 0, 0, 90),
    ([[90.0], [60.0, 80.0]], 30, -30, (90 + 70) / 2),
    ([[90.0], [95.0, 80.0], [50.0, 90.0, 70.0]], (45 + 0) / 2, (-40 + 10) / 2, (90 + 87.5 + 70) / 3),
    ([[50.0, 80.0], [40.0, 70.0, 90.0]], (10 + 10) / 2, -10, (65 + 200 / 3) / 2),  # --start_from 1
])
def test_what_follows_from_the_matrix(matrix: list[list[float]], lost: float, transfer: float, average: float) -> None:
    assert metrics.forgetting(matrix) == pytest.approx(lost)
    assert metrics.backward_transfer(matrix) == pytest.approx(transfer)
    assert metrics.average_incremental(matrix) == pytest.approx(average)
    assert metrics.final(matrix) == pytest.approx(sum(matrix[-1]) / len(matrix[-1]))


def test_forward_transfer_is_the_gain_over_an_untrained_network_on_all_tasks_but_the_first() -> None:
    assert metrics.forward_transfer([90.0, 60.0, 40.0], [10.0, 50.0, 45.0]) == pytest.approx((10 - 5) / 2)
    assert metrics.forward_transfer([90.0], [10.0]) == 0


# ---- a run

def test_a_run_prints_and_saves_what_follows_from_its_matrices(run: Callable, capfd: pytest.CaptureFixture) -> None:
    found = run("er", flags("er"))
    printed = capfd.readouterr().out
    for setting in ("class_il", "task_il"):
        results = found["results"][setting]
        for name, metric in metrics.METRICS.items():
            assert (name in results) == (metric.of is not None)
            assert metric.of is None or results[name] == metric.of(results["matrix"])
    for name in ("final", "average_incremental", "forgetting", "backward_transfer"):
        values = [found["results"][setting][name] for setting in ("class_il", "task_il")]
        line = rf"^{metrics.METRICS[name].title}, \S+ +{values[0]:.2f} +{values[1]:.2f}$"
        assert re.search(line, printed, re.MULTILINE)
    assert "forward transfer" not in printed and "epoch" not in printed  # what costs evaluations is on request


@pytest.mark.parametrize("model", ALL)
def test_measuring_more_changes_nothing_that_is_learned(model: str, run: Callable) -> None:
    plain = run(model, flags(model))
    more = run(model, f"{flags(model)} --enable_other_metrics 1 --eval_epochs 2")
    for setting, results in plain["results"].items():
        assert {key: more["results"][setting][key] for key in results} == results
    for key, value in plain["model"].net.state_dict().items():
        assert torch.equal(value, more["model"].net.state_dict()[key])


def test_forward_transfer_is_measured_before_each_task_and_from_the_network_as_it_was_made(
        run: Callable, start: Callable) -> None:
    from utils.evaluate import evaluate

    words = f"{flags('er')} --enable_other_metrics 1"
    it = start("er", words)
    untrained = []
    for _ in range(3):
        it.dataset.get_data_loaders()
        untrained.append(evaluate(it.model, it.dataset)[1][-1])
    found = run("er", words)["results"]["task_il"]
    assert found["untrained"] == untrained

    two = run("er", f"{flags('er')} --stop_after 1")  # the network that meets the second task
    two["model"].dataset.get_data_loaders()
    assert found["before_learning"][:2] == [untrained[0], evaluate(two["model"], two["model"].dataset)[1][1]]
    assert found["forward_transfer"] == metrics.forward_transfer(found["before_learning"], untrained)
    assert found["forward_transfer"] == pytest.approx(
        sum(b - u for b, u in list(zip(found["before_learning"], untrained, strict=True))[1:]) / 2)


@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2]), (2, [2]), (3, [])])
def test_accuracy_during_training_is_of_all_tasks_so_far_after_every_so_many_epochs(
        run: Callable, capfd: pytest.CaptureFixture, every: int, epochs: list[int]) -> None:
    """The last epoch's is what the end of the task says, as on Mammoth."""
    found = run("er", f"{flags('er')} --eval_epochs {every}").get("eval_epochs", [])
    assert [(entry["task"], entry["epoch"]) for entry in found] == [(t, e) for t in (1, 2, 3) for e in epochs]
    printed = capfd.readouterr().out
    for entry in found:
        assert len(entry["class_il"]) == len(entry["task_il"]) == entry["task"]
        mean = round(sum(entry["task_il"]) / entry["task"], 2)
        line = rf"^Accuracy \(epoch {entry['epoch']}\) for {entry['task']} task\(s\): .*\[Task-IL\]: {mean} %$"
        assert re.search(line, printed, re.MULTILINE)
    assert printed.count("Accuracy for") == 3


def test_accuracy_during_training_is_that_of_a_run_that_ends_there(run: Callable) -> None:
    """The rate is constant, so two epochs of three are a run of two epochs."""
    whole = run("sgd", f"{flags('sgd')} --eval_epochs 2 --stop_after 1")
    part = run("sgd", f"{flags('sgd').replace('--n_epochs 3', '--n_epochs 2')} --stop_after 1")
    assert whole["eval_epochs"][0]["task_il"] == part["results"]["task_il"]["matrix"][0]


def test_a_stopped_run_knows_what_was_measured_before(run: Callable, tmp_path: Path) -> None:
    words = f"{flags('er')} --enable_other_metrics 1 --eval_epochs 1"
    whole = run("er", words)
    run("er", f"{words} --savecheck last --stop_after 2 --ckpt_name a")
    again = run("er", f"{words} --loadcheck {tmp_path / 'a_last.pt'}")
    assert again["results"] == whole["results"] and again["eval_epochs"] == whole["eval_epochs"]


def test_forward_transfer_is_not_guessed(run: Callable, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """A checkpoint of a run that did not measure it lacks what came before."""
    run("er", f"{flags('er')} --savecheck last --stop_after 2 --ckpt_name a")
    found = run("er", f"{flags('er')} --enable_other_metrics 1 --loadcheck {tmp_path / 'a_last.pt'}")
    assert "forward_transfer" not in found["results"]["task_il"]
    assert "forward transfer is not known" in capfd.readouterr().out


def test_a_shared_first_task_brings_its_curve(run: Callable, tmp_path: Path) -> None:
    words = f"{flags('er_sbs')} --eval_epochs 1 --shared_first_task {tmp_path / 'first.pt'}"
    assert run("er_sbs", words)["eval_epochs"] == run("er_sbs", words)["eval_epochs"]


def test_no_epoch_is_the_zeroth(run: Callable) -> None:
    with pytest.raises(UserError, match=r"--eval_epochs: a whole number of at least 1 is needed, not 0"):
        run("er", f"{flags('er')} --eval_epochs 0")


def test_anytime_accuracy_is_the_mean_over_the_stream_and_changes_nothing(run: Callable[..., dict]) -> None:
    plain, found = (run("er", f"{flags('er')} {more}") for more in ("", "--eval_steps 2"))
    entries = found["eval_steps"]
    assert [entry["step"] for entry in entries if entry["task"] == 2] == list(range(2, entries[-1]["step"] + 1, 2))
    assert all(len(entry["class_il"]) == entry["task"] for entry in entries)
    for setting in ("class_il", "task_il"):
        expected = fmean(fmean(entry[setting]) for entry in entries)
        assert found["results"][setting].pop("anytime") == pytest.approx(expected)
    assert found["results"] == plain["results"] and "eval_steps" not in plain
