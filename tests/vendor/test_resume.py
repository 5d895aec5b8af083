"""A run that is stopped after a task and loaded again, or that takes over a shared first task, changes no bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import STOCK, mammoth_main

METHODS = ["sgd", "joint", *STOCK, *(f"{name}_sbs" for name in STOCK)]
# a network with batch normalisation, momentum and a schedule: more state that could be lost
SMALL = ("--max_classes 6 --n_tasks 3 --train_per_class 12 --n_epochs 2 --batch_size 12 --backbone tiny-resnet18 "
         "--num_filters 2 --optim_mom 0.5 --lr_scheduler multisteplr --lr_milestones 1")
BUFFER = {"xder": "--simclr_batch_size 8 --simclr_num_aug 2"}


def flags(model: str) -> str:
    buffer = "" if model in ("sgd", "joint") else "--buffer_size 22"  # no multiple of the classes seen
    return f"{SMALL} {buffer} {BUFFER.get(model.removesuffix('_sbs'), '')}"


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Both accuracy matrices, what else the JSON says of learning, weights, batch statistics and buffer."""
    assert a["results"] == b["results"]
    assert a.get("sbs") == b.get("sbs")
    states = [{**run["model"].net.state_dict(),
               **(run["model"].buffer.serialize() if hasattr(run["model"], "buffer") else {})} for run in (a, b)]
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][key])), key


@pytest.mark.parametrize("model", METHODS)
def test_a_run_stopped_after_any_task_ends_with_the_numbers_of_one_that_was_not(
        model: str, run: Callable[..., dict], tmp_path: Path) -> None:
    whole = run(model, flags(model))
    for k in (1, 2):
        part = run(model, f"{flags(model)} --savecheck task --ckpt_name part{k} --stop_after {k}")
        assert len(part["results"]["class_il"]["matrix"]) == k
        resumed = run(model, f"{flags(model)} --loadcheck {tmp_path / f'part{k}_{k - 1}.pt'}")
        assert_same(whole, resumed)


def test_the_checkpoint_alone_is_enough_to_go_on(run: Callable[..., dict], tmp_path: Path) -> None:
    """Its arguments are the defaults: model, data set, buffer and the rest need not be typed again."""
    from utils.training import train

    whole = run("derpp", flags("derpp"))
    run("derpp", f"{flags('derpp')} --savecheck last --stop_after 2 --ckpt_name a")
    model, dataset, args = mammoth_main.initialize(mammoth_main.parse_args(["--loadcheck", str(tmp_path / "a_last.pt"),
                                                                            "--disable_log", "1"]))
    train(model, dataset, args)
    for key, value in whole["model"].net.state_dict().items():
        assert torch.equal(value, model.net.state_dict()[key]), key


def test_several_stops_in_one_run(run: Callable[..., dict], tmp_path: Path) -> None:
    whole = run("xder_sbs", flags("xder_sbs"))
    common = f"{flags('xder_sbs')} --savecheck last --ckpt_name a"
    run("xder_sbs", f"{common} --stop_after 1")
    run("xder_sbs", f"{common} --stop_after 2 --loadcheck {tmp_path / 'a_last.pt'}")
    assert_same(whole, run("xder_sbs", f"{flags('xder_sbs')} --loadcheck {tmp_path / 'a_last.pt'}"))


@pytest.mark.parametrize("model", METHODS)
def test_a_shared_first_task_gives_the_numbers_of_a_run_from_scratch(
        model: str, run: Callable[..., dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from utils import training

    shared = tmp_path / "first.pt"
    common = f"{flags(model)} {'' if model == 'joint' else '--stop_after 2'}"
    scratch = run(model, common)
    assert_same(scratch, run(model, f"{common} --shared_first_task {shared}"))
    tasks = []
    train_task = training.train_task
    monkeypatch.setattr(training, "train_task", lambda model, *rest, **named: (
        tasks.append(model.current_task), train_task(model, *rest, **named)))
    assert_same(scratch, run(model, f"{common} --shared_first_task {shared}"))
    assert 0 not in tasks and 1 in tasks


@pytest.mark.parametrize("model", [f"{name}_sbs" for name in STOCK])
def test_runs_with_another_choice_from_the_first_task_share_it(
        model: str, run: Callable[..., dict], tmp_path: Path) -> None:
    """All points of a heat map and all samplers: what they choose differs only after the first task is learned."""
    common = f"{flags(model)} --stop_after 2"
    shared = f"--shared_first_task {tmp_path / 'first.pt'}"
    run(model, f"{common} {shared} --sbs-q .2 --sbs-s .2")
    for choice in ("--sbs-q .5 --sbs-s 0", "--sampler herding"):
        assert_same(run(model, f"{common} {choice}"), run(model, f"{common} {choice} {shared}"))


def test_a_shared_first_task_of_another_run_is_refused(run: Callable[..., dict], tmp_path: Path) -> None:
    shared = f"--shared_first_task {tmp_path / 'first.pt'}"
    run("er_sbs", f"{flags('er_sbs')} --stop_after 1 {shared}")
    for model, other in (("er_sbs", "--seed 5"), ("er_sbs", "--lr 0.01"), ("er_sbs", "--sbs-scope seen"), ("er", "")):
        with pytest.raises(UserError, match="^--shared_first_task .*first.pt: (of another run|saved by)"):
            run(model, f"{flags(model)} --stop_after 2 {shared} {other}")


def test_where_a_loaded_run_writes_may_differ(run: Callable[..., dict], tmp_path: Path) -> None:
    run("er", f"{flags('er')} --savecheck last --stop_after 1 --ckpt_name a")
    elsewhere = tmp_path / "elsewhere.pt"
    shutil.move(tmp_path / "a_last.pt", elsewhere)
    loaded = run("er", f"{flags('er')} --loadcheck {elsewhere} --results_path other --num_workers 2")
    assert loaded["path"].is_relative_to(tmp_path / "other")


def test_start_from_goes_back_to_an_earlier_task(run: Callable[..., dict], tmp_path: Path) -> None:
    """Mammoth's flag: the first task that is trained. Later rows of the loaded results are dropped."""
    run("er", f"{flags('er')} --savecheck last --stop_after 2 --ckpt_name a")
    again = run("er", f"{flags('er')} --loadcheck {tmp_path / 'a_last.pt'} --start_from 1")
    assert [len(row) for row in again["results"]["class_il"]["matrix"]] == [1, 2, 3]
