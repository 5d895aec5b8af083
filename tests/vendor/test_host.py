"""The embedded host's contract: flags and their defaults, splits, the loader, what a run prints and leaves behind."""

from __future__ import annotations

import gc
import json
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import optim

from mammoth_sbs.host import import_torchvision
from tests.conftest import REPO, mammoth_main

FAST = "--train_per_class 20 --n_epochs 1"


def parse(line: str) -> Namespace:
    return mammoth_main.parse_args(line.split())


# ---- which default wins


def test_precedence_from_the_command_line_down_to_the_data_set(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable) -> None:
    """Command line > checkpoint > --model_config best > method > --dataset_config > data set."""
    import datasets
    from datasets.seq_digits import SequentialDigits
    from models.er import Er
    from utils.checkpoints import save_checkpoint

    configs = tmp_path / "configs" / "seq-digits"
    configs.mkdir(parents=True)
    (configs / "mine.yaml").write_text("N_TASKS: 2\nn_epochs: 2\nbatch_size: 2\nlr: 2\nbuffer_size: 2\noptim_wd: 2")
    monkeypatch.setattr(datasets, "CONFIGS", configs.parent)
    every = {"n_epochs": 1, "batch_size": 1, "lr": 1.0, "buffer_size": 1, "optim_wd": 1.0, "optim_mom": 1.0}
    monkeypatch.setattr(SequentialDigits, "DEFAULTS", {"backbone": "mnistmlp", **every})

    def with_defaults(parser):  # noqa: ANN001, ANN202
        plain(parser)
        parser.set_defaults(batch_size=3, lr=3.0, buffer_size=3, optim_wd=3.0)
        return parser

    plain = Er.get_parser
    monkeypatch.setattr(Er, "get_parser", staticmethod(with_defaults))
    monkeypatch.setattr(mammoth_main, "best_config", lambda *_: {"lr": 4.0, "buffer_size": 4, "optim_wd": 4.0})
    names = ("optim_mom", "n_epochs", "batch_size", "lr", "buffer_size", "optim_wd")
    line = "--model er --dataset seq-digits --dataset_config mine --model_config best"
    args = parse(line)
    assert [getattr(args, name) for name in names] == [1, 2, 3, 4, 4, 4]
    assert args.n_tasks == 2
    args = parse(f"{line} --n_epochs 9 --optim_mom 0.9 --n_tasks 5")
    assert (args.n_epochs, args.optim_mom, args.n_tasks, args.lr) == (9, 0.9, 5, 4)

    args = parse(f"{line} --base_path {tmp_path}")
    args.buffer_size, args.optim_wd = 5, 5.0
    save_checkpoint(tmp_path / "c.pt", SimpleNamespace(state_dict=dict, buffer=SimpleNamespace(serialize=dict)),
                    args, 1, [])
    args = parse(f"--loadcheck {tmp_path / 'c.pt'} --optim_wd 6")
    assert [getattr(args, name) for name in names] == [1, 2, 3, 4, 5, 6]
    assert (args.model, args.dataset, args.dataset_config, args.n_tasks) == ("er", "seq-digits", "mine", 2)


def test_best_is_the_published_table() -> None:
    args = parse("--model derpp --dataset seq-cifar100 --model_config best --buffer_size 500")
    assert (args.lr, args.alpha, args.beta, args.minibatch_size) == (0.03, 0.1, 0.5, 32)
    assert (args.lr_scheduler, args.lr_milestones, args.n_epochs) == ("multisteplr", [35, 45], 50)
    args = parse("--model xder --dataset seq-cifar100 --model_config best --buffer_size 2000")
    assert (args.alpha, args.beta, args.gamma, args.lambd, args.simclr_temp) == (0.3, 0.8, 0.85, 0.05, 5)
    assert (args.simclr_batch_size, args.simclr_num_aug) == (64, 2)
    assert parse("--model er --dataset seq-tinyimg --model_config best --buffer_size 500 --lr 7").lr == 7


def test_mammoths_defaults_and_what_is_required() -> None:
    args = parse("--model er --dataset seq-digits --buffer_size 100 --lr 0.1")
    assert (args.optimizer, args.optim_wd, args.optim_mom, args.lr_scheduler) == ("sgd", 0, 0, None)
    assert (args.base_path, args.savecheck, args.joint, args.validation) == ("./data/", None, 0, None)
    assert args.seed is not None  # drawn, and recorded
    args = parse("--model gem --dataset seq-digits --buffer_size 100 --lr 0.1")
    assert args.gamma == 0.5
    args = parse("--model xder --dataset seq-digits --buffer_size 100 --lr 0.1 --alpha 1 --beta 1")
    assert (args.simclr_num_aug, args.align_bn, args.past_constraint, args.future_constraint) == (4, True, False, True)


def test_dash_and_underscore_are_the_same_in_names() -> None:
    args = parse("--model derpp-sbs --dataset seq_cifar100 --backbone tiny_resnet18")
    assert (args.model, args.dataset, args.backbone) == ("derpp-sbs", "seq-cifar100", "tiny-resnet18")
    assert vars(parse("--model derpp_sbs --dataset seq-cifar100 --seed 1")) == \
        vars(parse("--model derpp-sbs --dataset seq_cifar100 --seed 1"))


# ---- how the data are cut into tasks


def tasks_of(it: SimpleNamespace) -> list[tuple[list[int], list[int]]]:
    """The training and test classes of every task."""
    out = []
    for _ in range(it.dataset.N_TASKS):
        train, test = it.dataset.get_data_loaders()
        out.append((train.dataset.targets.unique().tolist(), test.dataset.targets.unique().tolist()))
    return out


@pytest.mark.parametrize("flags, expected", [
    ("", [2] * 5), ("--dataset_config 2tasks", [5] * 2), ("--n_tasks 10", [1] * 10), ("--n_tasks 1", [10]),
    ("--dataset_config 2tasks --n_tasks 5", [2] * 5), ("--joint 1", [10]), ("--max_classes 6 --n_tasks 3", [2] * 3),
    ("--max_classes 5", [1] * 5),
])
def test_splits(start: Callable, flags: str, expected: list[int]) -> None:
    it = start("sgd", f"{FAST} {flags}")
    first = 0
    assert len(expected) == it.dataset.N_TASKS and sum(expected) == it.dataset.N_CLASSES
    assert it.args.num_classes == it.model.net.classifier.out_features == sum(expected)
    for t, (train, test) in enumerate(tasks_of(it)):
        assert train == test == list(range(first, first + expected[t]))
        assert it.dataset.get_offsets(t) == (first, first + expected[t])
        first += expected[t]


@pytest.mark.parametrize("dataset, config, tasks", [
    ("seq-cifar10", "2tasks", 2), ("seq-cifar10", "5tasks", 5), ("seq-cifar100", "2tasks", 2),
    ("seq-cifar100", "5tasks", 5), ("seq-cifar100", "20tasks", 20), ("seq-tinyimg", "2tasks", 2),
    ("seq-tinyimg", "10tasks", 10)])
def test_the_papers_splits_have_names(dataset: str, config: str, tasks: int) -> None:
    assert parse(f"--model sgd --lr 1 --dataset {dataset} --dataset_config {config}").n_tasks == tasks


def few(it: SimpleNamespace) -> dict[int, list[int]]:
    """Places in the whole training set, by the digit that is on the images."""
    rows = sorted(row for _ in range(it.dataset.N_TASKS)
                  for row in it.dataset.get_data_loaders()[0].dataset.indexes.tolist())
    return {digit: [row for row in rows if it.dataset.source.train.labels[row] == digit] for digit in range(10)}


def test_train_per_class_takes_the_same_images_for_every_seed_and_split(start: Callable) -> None:
    a = few(start("sgd", "--train_per_class 7 --seed 1"))
    assert all(len(set(rows)) == 7 for rows in a.values())
    for flags in ("--seed 2", "--seed 1 --n_tasks 2", "--seed 1 --joint 1", "--seed 3 --permute_classes 1"):
        assert few(start("sgd", f"--train_per_class 7 {flags}")) == a


def digits_by_label(it: SimpleNamespace) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Which digits hide behind every label, in training and in test."""
    out: tuple[dict, dict] = ({}, {})
    for _ in range(it.dataset.N_TASKS):
        loaders = it.dataset.get_data_loaders()
        for which, (loader, source) in enumerate(zip(loaders, it.dataset.source[:2], strict=True)):
            for label, row in zip(loader.dataset.targets.tolist(), loader.dataset.indexes, strict=True):
                out[which].setdefault(label, set()).add(int(source.labels[row]))
    return out


def test_permuted_classes_are_the_same_in_training_and_test_and_follow_the_seed(start: Callable) -> None:
    orders = {}
    for seed in (1, 1, 2):
        train, test = digits_by_label(start("sgd", f"{FAST} --permute_classes 1 --seed {seed}"))
        assert train == test and all(len(digits) == 1 for digits in train.values())
        order = [train[label].pop() for label in range(10)]
        assert sorted(order) == list(range(10)) != order
        assert orders.setdefault(seed, order) == order
    assert orders[1] != orders[2]
    it = start("sgd", f"{FAST} --permute_classes 1 --seed 1")
    assert it.dataset.get_class_names() == [str(c) for c in orders[1]]
    train, _ = digits_by_label(start("sgd", FAST))
    assert train == {c: {c} for c in range(10)}


@pytest.mark.parametrize("validation, share", [("20", 0.2), ("0.25", 0.25)])
def test_validation_images_are_held_out_of_training(start: Callable, validation: str, share: float) -> None:
    it = start("sgd", f"--validation {validation} --n_epochs 1")
    labels = it.dataset.source.train.labels
    for t in range(5):
        train, held = it.dataset.get_data_loaders()
        assert not set(train.dataset.indexes) & set(held.dataset.indexes)
        for c in (2 * t, 2 * t + 1):
            whole = int((labels == c).sum())
            n_held = int((held.dataset.targets == c).sum())
            assert n_held == int(np.ceil(share * whole)) and int((train.dataset.targets == c).sum()) == whole - n_held
        for row, label in zip(held.dataset.indexes, held.dataset.targets, strict=True):
            assert labels[row] == label  # they come from the training data, not from the test set


def test_validation_ends_with_the_real_test_set(run: Callable, start: Callable, capsys: pytest.CaptureFixture) -> None:
    result = run("er", f"{FAST} --validation 20 --stop_after 2")
    out = capsys.readouterr().out
    pattern = r"^FINAL Accuracy for 2 task\(s\): \t \[Class-IL\]: ([\d.]+) % \t \[Task-IL\]: ([\d.]+) %$"
    (printed,) = re.findall(pattern, out, re.M)
    plain = start("er", FAST)
    for _ in range(2):
        plain.dataset.get_data_loaders()
    from utils.evaluate import evaluate

    class_il, task_il = evaluate(result["model"], plain.dataset)
    assert result["test"] == {"class_il": class_il, "task_il": task_il}
    assert [float(v) for v in printed] == [round(sum(v) / 2, 2) for v in (class_il, task_il)]


# ---- what a run prints and leaves


def test_the_line_that_peoples_scripts_read(run: Callable, capsys: pytest.CaptureFixture) -> None:
    result = run("er", FAST)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Accuracy")]
    matrices = [result["results"][key]["matrix"] for key in ("class_il", "task_il")]
    assert lines == [f"Accuracy for {t} task(s): \t [Class-IL]: {round(sum(a) / t, 2)} % "
                     f"\t [Task-IL]: {round(sum(b) / t, 2)} %"
                     for t, a, b in zip(range(1, 6), *matrices, strict=True)]
    assert re.fullmatch(r"Accuracy for 5 task\(s\): \t \[Class-IL\]: \d+\.\d+ % \t \[Task-IL\]: \d+\.\d+ %", lines[-1])


def test_joint_flag_learns_all_classes_at_once(run: Callable, capsys: pytest.CaptureFixture) -> None:
    result = run("sgd", "--joint 1 --train_per_class 20 --n_epochs 3")
    assert re.search(r"^Joint Accuracy: \t \[Class-IL\]: [\d.]+ % \t \[Task-IL\]: [\d.]+ %$",
                     capsys.readouterr().out, re.M)
    ((class_il,),), ((task_il,),) = (result["results"][key]["matrix"] for key in ("class_il", "task_il"))
    assert class_il == task_il > 50


def test_task_il_is_never_below_class_il(run: Callable) -> None:
    for model in ("er", "rpc", "joint"):
        results = run(model, FAST)["results"]
        for a, b in zip(results["class_il"]["matrix"], results["task_il"]["matrix"], strict=True):
            assert all(0 <= x <= y <= 100 for x, y in zip(a, b, strict=True))
        assert results["class_il"]["final"] < results["task_il"]["final"]


def test_accuracies_are_those_of_the_network(run: Callable) -> None:
    """Class-IL among the classes seen so far, Task-IL among the task's, counted one image at a time."""
    from utils.evaluate import evaluate

    result = run("er", f"{FAST} --stop_after 3")
    model = result["model"].eval()
    it = model.dataset
    with torch.no_grad():
        model.net.classifier.bias[6:] += 100  # classes of tasks to come take no part, however loud
    class_il, task_il = evaluate(model, it)
    assert class_il == result["results"]["class_il"]["matrix"][2]
    assert task_il == result["results"]["task_il"]["matrix"][2]
    for k, loader in enumerate(it.test_loaders):
        hits = [0, 0]
        for x, y, *_ in loader:
            for logits, label in zip(model(x).detach(), y, strict=True):
                seen = [(float(v), c) for c, v in enumerate(logits[:6])]
                hits[0] += max(seen)[1] == label
                hits[1] += max(seen[2 * k : 2 * k + 2])[1] == label
        n = len(loader.dataset)
        assert [class_il[k], task_il[k]] == pytest.approx([100 * int(hit) / n for hit in hits])
        assert n == (it.source.test.labels // 2 == k).sum()  # all test images of the task


def test_the_result_file_says_what_was_run(run: Callable) -> None:
    result = run("derpp", f"{FAST} --seed 3")
    assert result["seed"] == 3
    assert result["args"] == {**vars(result["model"].args), "device": "cpu"}
    expected = {"model": "derpp", "dataset": "seq-digits", "backbone": "mnistmlp", "n_tasks": 5, "batch_size": 32,
                "minibatch_size": 32, "buffer_size": 100, "alpha": 0.2, "n_epochs": 1, "train_per_class": 20}
    assert expected.items() <= result["args"].items()
    assert result["versions"]["torch"] == torch.__version__ and result["versions"]["numpy"] == np.__version__
    assert result["versions"]["python"] == sys.version.split()[0]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True)
    assert (result["commit"] or "").rstrip("+") == head.stdout.strip()
    assert 0 < result["wall_time"] < 60
    for key in ("class_il", "task_il"):
        found = result["results"][key]
        assert [len(row) for row in found["matrix"]] == [1, 2, 3, 4, 5]
        assert found["final"] == pytest.approx(sum(found["matrix"][-1]) / 5)
    json.loads(result["path"].read_text())
    assert [p.name for p in result["path"].parent.iterdir()] == [result["path"].name]  # one file, nothing beside it


@pytest.mark.parametrize("model, flags", [
    ("er", f"{FAST} --seed 4 --permute_classes 1 --backbone mnistmlp --mlp_hidden_size 30"),
    ("derpp", "--train_per_class 20 --n_epochs 2 --lr_scheduler multisteplr --lr_milestones 1 --optim_mom 0.5"),
    ("xder_sbs", f"{FAST} --dataset_config 2tasks --sbs-q 0.3 --simclr_num_aug 2"),
])
def test_the_recorded_command_gives_the_same_numbers(model: str, flags: str, run: Callable, tmp_path: Path) -> None:
    first = run(model, flags)
    python, main, *words = shlex.split(first["command"])
    assert (python, main) == ("python", "main.py")
    from utils.training import train

    it = mammoth_main.initialize(mammoth_main.parse_args(words))
    before = set(tmp_path.rglob("*.json"))
    train(*it)
    (again,) = set(tmp_path.rglob("*.json")) - before
    again = json.loads(again.read_text())
    assert again["results"] == first["results"]
    assert again["command"] == first["command"]
    different = {key for key in first["args"] if first["args"][key] != again["args"][key]}
    assert not different


def test_the_command_names_all_that_was_decided(tmp_path: Path) -> None:
    """Also a default that was switched off, a network that is not the data set's, and a path with a blank."""
    words = ["--model", "er", "--dataset", "seq-cifar100", "--buffer_size", "9", "--lr", "0.1", "--lr_scheduler",
             "None", "--backbone", "tiny-resnet18", "--base_path", "my data", "--seed", "1"]
    args = mammoth_main.parse_args(words)
    again = mammoth_main.parse_args(shlex.split(args.command)[2:])
    assert vars(again) == vars(args)
    assert (again.lr_scheduler, again.backbone, again.base_path) == (None, "tiny-resnet18", "my data")


def test_the_command_of_a_resumed_run_needs_no_checkpoint(run: Callable, tmp_path: Path) -> None:
    run("er", f"{FAST} --savecheck last --ckpt_name a --stop_after 1")
    args = parse(f"--loadcheck {tmp_path / 'a_last.pt'}")
    words = shlex.split(args.command)[2:]
    at = words.index("--loadcheck")
    again = mammoth_main.parse_args(words[:at] + words[at + 2 :])
    for key in ("model", "dataset", "lr", "buffer_size", "n_epochs", "train_per_class", "seed"):
        assert getattr(again, key) == getattr(args, key)


def test_a_seed_decides_everything(run: Callable) -> None:
    a, b, c = (run("derpp", f"{FAST} --seed {seed}")["model"].net.get_params() for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.parametrize("matrix, lost, transfer", [
    ([[90.0]], 0, 0),
    ([[90.0], [60.0, 80.0]], 30, -30),
    ([[90.0], [95.0, 80.0], [50.0, 90.0, 70.0]], (45 + 0) / 2, (-40 + 10) / 2),
    ([[50.0, 80.0], [40.0, 70.0, 90.0]], (10 + 10) / 2, -10),  # --start_from 1
])
def test_forgetting_and_backward_transfer(matrix: list[list[float]], lost: float, transfer: float) -> None:
    from utils.metrics import backward_transfer, forgetting

    assert forgetting(matrix) == pytest.approx(lost)
    assert backward_transfer(matrix) == pytest.approx(transfer)


def test_progress_in_a_file_is_plain_lines(run: Callable, capfd: pytest.CaptureFixture) -> None:
    run("er", f"{FAST} --stop_after 2")
    assert capfd.readouterr().err == ""  # it has --non_verbose 1
    it = mammoth_main.initialize(parse("--model er --dataset seq-digits --buffer_size 9 --lr .05 --n_epochs 3 "
                                       "--disable_log 1 --stop_after 2"))
    from utils.training import train

    train(*it)
    err = capfd.readouterr().err
    assert "\r" not in err and "\x1b" not in err
    lines = err.splitlines()
    assert 2 <= len(lines) <= 12  # a few per task, not one per step
    assert re.fullmatch(r"Task 1/5: \d+/27 steps, \d+ s, loss \d+\.\d+", lines[0])
    assert re.fullmatch(r"Task 2/5: 27/27 steps, \d+ s, loss \d+\.\d+, acc \d+\.\d", lines[-1])


# ---- the loader


def stream(it: SimpleNamespace, epochs: int = 2) -> list[tuple[torch.Tensor, ...]]:
    it.dataset.get_data_loaders()
    return [batch for _ in range(epochs) for batch in it.dataset.train_loader]


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small CIFAR-10 in torchvision's format: pictures of noise, 20 of each class for training."""
    import pickle

    monkeypatch.setenv("MAMMOTH_SBS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "CIFAR10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        entry = {"data": rng.integers(0, 256, (40, 3072), np.uint8), "labels": list(range(10)) * 4}
        (folder / name).write_bytes(pickle.dumps(entry, 2))


def test_order_and_augmentation_follow_the_seed_and_nothing_else(start: Callable, cifar: None) -> None:
    streams = []
    for flags in ("--seed 1", "--seed 1 --num_workers 3", "--seed 2"):
        it = start("sgd", f"--backbone tiny-resnet18 --batch_size 8 --n_epochs 1 {flags}", "seq-cifar10")
        torch.rand(len(streams))  # whatever else draws random numbers
        streams.append(stream(it))
    for a, b in zip(*streams[:2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(streams[0], streams[2], strict=True))
    first, second = streams[0][:5], streams[0][5:]
    assert any(not torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))  # epochs differ


@pytest.mark.parametrize("drop_last", [0, 1])
def test_every_example_comes_once_per_epoch_with_its_own_fields(start: Callable, drop_last: int) -> None:
    it = start("sgd", f"--train_per_class 19 --n_epochs 1 --batch_size 8 --drop_last {drop_last}")
    it.dataset.get_data_loaders()
    loader, data = it.dataset.train_loader, it.dataset.train_loader.dataset
    data.add_extra_return_field("place", range(len(data)))
    data.add_extra_return_field("weight", torch.arange(len(data)) * 0.5)
    data.add_extra_return_field("name", [1000 + i for i in range(len(data))])
    assert data.extra_return_fields == ("place", "weight", "name")
    batches = list(loader)
    assert len(batches) == len(loader) == (4 if drop_last else 5)
    assert [len(b[1]) for b in batches] == [8, 8, 8, 8] + ([] if drop_last else [6])
    inputs, labels, raw, place, weight, name = (torch.cat(column) for column in zip(*batches, strict=True))
    assert len(set(place.tolist())) == len(place) and place.tolist() != sorted(place.tolist())
    if not drop_last:
        assert sorted(place.tolist()) == list(range(38))
    assert torch.equal(labels, data.targets[place]) and torch.equal(raw, data.data[place].float() / 255)
    assert torch.equal(weight, place * 0.5) and torch.equal(name, place + 1000)
    torch.testing.assert_close(inputs, (raw - 0.3053) / 0.3761)
    one = data[3]
    assert one[1] == data.targets[3] and one[3] == 3 and one[2].shape == (1, 8, 8)


def test_observe_gets_the_extra_fields_it_asks_for(start: Callable) -> None:
    from utils.training import train_task

    it = start("sgd", f"{FAST} --batch_size 16")
    got = []
    it.model.observe = lambda inputs, labels, not_aug_inputs, epoch=None, place=None: got.append(place) or 0.0
    it.model._observe_fields = {"place", "epoch"}
    it.dataset.get_data_loaders()
    for name in ("unasked", "place"):
        it.dataset.train_loader.dataset.add_extra_return_field(name, range(40))
    it.model.meta_begin_task(it.dataset)
    train_task(it.model, it.dataset, it.args)
    assert sorted(torch.cat(got).tolist()) == list(range(40))


def test_crops_and_flips_are_uniform() -> None:
    """A picture whose pixels name their place shows how it was cut and mirrored."""
    from utils.augmentations import random_crop, random_flip

    g, n, pad = torch.Generator().manual_seed(0), 4000, 4
    ramp = (1 + torch.arange(32).repeat(32, 1)).expand(n, 1, 32, 32)
    columns = random_crop(ramp, pad, g)
    rows = random_crop(ramp.transpose(2, 3), pad, g)
    left = columns[:, 0, 16, 16] - 17 + pad
    top = rows[:, 0, 16, 16] - 17 + pad
    for drawn in (left, top):
        counts = torch.bincount(drawn, minlength=2 * pad + 1)
        assert len(counts) == 2 * pad + 1 and chisquare(counts).pvalue > 1e-3
    flipped = (random_flip(ramp, g)[:, 0, 0, 0] == 32).float().mean()
    assert abs(float(flipped) - 0.5) < 4 * 0.5 / n**0.5


def test_crop_rows_and_columns_are_drawn_apart_for_every_image() -> None:
    from utils.augmentations import random_crop

    x = torch.arange(1, 1025).view(1, 1, 32, 32).expand(2000, 1, 32, 32)
    centre = random_crop(x, 4, torch.Generator().manual_seed(0))[:, 0, 16, 16] - 1
    pairs = (centre // 32 - 12) * 9 + (centre % 32 - 12)
    assert chisquare(torch.bincount(pairs, minlength=81)).pvalue > 1e-3


def test_crop_flip_and_normalize_equal_torchvisions() -> None:
    from utils.augmentations import Augment, Normalize

    torchvision = import_torchvision()
    functional = torchvision.transforms.functional
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(7)
    top, left = torch.randint(9, (2, 16), generator=draws).tolist()
    flip = (torch.rand(16, generator=draws) < 0.5).tolist()
    ours = Augment(Normalize(mean, std), padding=4, flip=True)(images, torch.Generator().manual_seed(7))
    for i, image in enumerate(images):
        picture = functional.pad(torchvision.transforms.ToPILImage()(image), 4)
        picture = functional.crop(picture, top[i], left[i], 32, 32)
        picture = functional.hflip(picture) if flip[i] else picture
        theirs = functional.normalize(functional.to_tensor(picture), mean, std)
        torch.testing.assert_close(ours[i], theirs)
    assert len(set(flip)) == 2
    plain = Augment(Normalize(mean, std))(images)  # evaluation: nothing is drawn
    torch.testing.assert_close(plain, functional.normalize(images / 255, mean, std))


def test_denormalize_undoes_normalize(start: Callable) -> None:
    it = start("sgd", FAST)
    x = torch.rand(4, 1, 8, 8)
    normalized = it.dataset.get_normalization_transform()(x)
    torch.testing.assert_close(it.dataset.get_denormalization_transform()(normalized), x)


@pytest.mark.parametrize("model", ["sgd", "joint"])
def test_the_data_are_held_once_as_bytes(
        start: Callable, cifar: None, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, during and after training: no floats and no second copy of the images; the whole lies on disk."""
    import utils.training as training

    it = start(model, "--backbone tiny-resnet18 --num_filters 1 --batch_size 8 --n_epochs 1", "seq-cifar10")
    source = it.dataset.source
    assert isinstance(source.train.images, np.memmap) and isinstance(source.test.images, np.memmap)
    data_set = source.train.images.nbytes + source.test.images.nbytes
    held = []

    class Watch(training.Progress):
        def close(self) -> None:
            """Just after a task's last step, when all that training needs is there: all images but the batch's."""
            tensors = {t.untyped_storage().data_ptr(): t for t in gc.get_objects()
                       if type(t) is torch.Tensor and t.shape[1:] == (3, 32, 32) and len(t) > 8}
            assert {t.dtype for t in tensors.values()} == {torch.uint8}
            held.append(sum(t.nbytes for t in tensors.values()))
            super().close()

    monkeypatch.setattr(training, "Progress", Watch)
    training.train(it.model, it.dataset, it.args)
    assert len(held) == (6 if model == "joint" else 5)
    assert max(held[:5]) <= 0.4 * data_set  # a task's images, and test images of those so far
    assert held[-1] <= 1.2 * data_set  # all tasks, for `joint`


# ---- optimisers and schedules


@pytest.mark.parametrize("name, kind", [("sgd", optim.SGD), ("adam", optim.Adam), ("adamw", optim.AdamW),
                                        ("adagrad", optim.Adagrad)])
def test_the_optimiser_that_was_asked_for_makes_the_steps(name: str, kind: type, start: Callable) -> None:
    import copy

    flags = f"{FAST} --optimizer {name} --lr 0.01 --optim_wd 0.1"
    it = start("sgd", f"{flags} --optim_mom 0.9 --optim_nesterov 1" if name == "sgd" else flags)
    it.dataset.get_data_loaders()
    it.model.meta_begin_task(it.dataset)
    net = copy.deepcopy(it.model.net)
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    opt = kind(net.parameters(), lr=0.01, weight_decay=0.1, **extra)
    for x, y, raw in it.dataset.train_loader:
        it.model.meta_observe(x, y, raw)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    torch.testing.assert_close(it.model.net.get_params(), torch.nn.utils.parameters_to_vector(net.parameters()))
    assert type(it.model.opt) is kind


@pytest.mark.parametrize("flags, expected", [
    ("", [0.1] * 4),
    ("--lr_scheduler multisteplr --lr_milestones 1 3", [0.1, 0.01, 0.01, 0.001]),
    ("--lr_scheduler multisteplr --lr_milestones 2 --sched_multistep_lr_gamma 0.5", [0.1, 0.1, 0.05, 0.05]),
    ("--lr_scheduler cosine", [0.05 * (1 + np.cos(np.pi * e / 4)) for e in range(4)]),
])
def test_the_learning_rate_follows_the_schedule_and_starts_anew_with_each_task(
        flags: str, expected: list[float], start: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    from utils.training import train

    it = start("sgd", f"--train_per_class 5 --n_epochs 4 --lr 0.1 --stop_after 2 {flags}")
    rates: list[float] = []
    monkeypatch.setattr(it.model, "end_epoch", lambda *_: rates.append(it.model.opt.param_groups[0]["lr"]))
    train(it.model, it.dataset, it.args)
    assert rates == pytest.approx(expected * 2)


# ---- networks


@pytest.mark.parametrize("name, shape, parameters", [
    ("resnet18", (3, 32, 32), 11_173_962), ("reduced-resnet18", (3, 32, 32), 1_094_750),
    ("small-resnet18", (3, 32, 32), None), ("tiny-resnet18", (3, 64, 64), None), ("vgg16", (3, 32, 32), None),
    ("mnistmlp", (1, 28, 28), 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10)])
def test_networks_give_logits_features_or_both(name: str, shape: tuple, parameters: int | None) -> None:
    from backbone import get_backbone_class

    net = get_backbone_class(name)(num_classes=10, input_shape=shape).eval()
    if parameters is not None:
        assert sum(p.numel() for p in net.parameters()) == parameters
    x = torch.rand(2, *shape)
    with torch.no_grad():
        logits, features = net(x, returnt="both")
        assert logits.shape == (2, 10) and features.shape == (2, net.feature_dim)
        torch.testing.assert_close(net(x), logits)
        torch.testing.assert_close(net(x, returnt="features"), features)
        torch.testing.assert_close(net.classifier(features), logits)


@pytest.mark.parametrize("width, between", [(8, False), (16, False), (20, True), (64, False)])
def test_a_convolution_is_the_plain_one_whatever_layout_it_is_done_in(width: int, between: bool) -> None:
    import torch.nn.functional as F

    from backbone.ResNetBlock import Conv3x3

    layer = Conv3x3(width, 2 * width, 2)
    assert layer.between == between
    x = torch.randn(3, width, 8, 8, requires_grad=True)
    weight = torch.randn(3, 2 * width, 4, 4)
    outputs = layer(x), F.conv2d(x, layer.weight, stride=2, padding=1)
    ours, plain = ((out, *torch.autograd.grad((out * weight).sum(), [x, layer.weight])) for out in outputs)
    for one, other in zip(ours, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert outputs[0].is_contiguous()  # what follows sees torch's usual layout
    assert between or torch.equal(*outputs)


def test_the_papers_small_and_tiny_networks_are_resnet18_divided() -> None:
    """Width and depth by two and by four: filters of the stem, and number of convolutions in blocks."""
    from torch import nn

    from backbone import get_backbone_class

    for name, filters, convolutions in (("resnet18", 64, 16), ("small-resnet18", 32, 8), ("tiny-resnet18", 16, 4)):
        net = get_backbone_class(name)(num_classes=10)
        blocks = [m for n, m in net.named_modules()
                  if isinstance(m, nn.Conv2d) and n.startswith("layer") and m.kernel_size == (3, 3)]
        assert (net.conv1.out_channels, len(blocks)) == (filters, convolutions)
