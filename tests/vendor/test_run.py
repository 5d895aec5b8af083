"""What a run of the embedded host prints and leaves: lines, result file, a command that repeats it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import REPO, mammoth_main
from tests.vendor.conftest import FAST, parse


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


def test_a_commit_is_never_a_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package in an environment inside somebody's repository; and run from a hook of somebody's repository."""
    import mammoth_sbs
    from mammoth_sbs.files import git
    from mammoth_sbs.result import commit

    def in_git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True)

    package = tmp_path / "site" / "mammoth_sbs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    in_git("init", "-q")
    in_git("add", ".")
    in_git("commit", "-qm", "theirs")
    ours = commit()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert commit() == ours
    monkeypatch.setattr(mammoth_sbs, "__file__", str(package / "__init__.py"))
    assert commit() is None
    assert git(tmp_path / "site", "rev-parse", "HEAD") is None and git(tmp_path, "rev-parse", "HEAD")
    in_git("mv", "site/mammoth_sbs", "mammoth_sbs")
    in_git("commit", "-qm", "a checkout of their own")
    monkeypatch.setattr(mammoth_sbs, "__file__", str(tmp_path / "mammoth_sbs" / "__init__.py"))
    assert commit() == git(tmp_path, "rev-parse", "HEAD")
    in_git("rm", "-q", "--cached", "-r", "mammoth_sbs")
    assert commit() is None  # it lies at the top of their repository, and is not part of it


@pytest.mark.parametrize("model, flags", [
    ("er", f"{FAST} --seed 4 --permute_classes 1 --backbone mnistmlp --mlp_hidden_size 30"),
    ("derpp", "--train_per_class 20 --n_epochs 2 --lr_scheduler multisteplr --lr_milestones 1 --optim_mom 0.5"),
    ("xder_sbs", f"{FAST} --dataset_config 2tasks --sbs-q 0.3 --simclr_num_aug 2"),
])
def test_the_recorded_command_gives_the_same_numbers(model: str, flags: str, run: Callable, tmp_path: Path) -> None:
    first = run(model, flags)
    program, command, *words = shlex.split(first["command"])
    assert (program, command) == ("mammoth-sbs", "run")
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


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_a_step_asks_the_system_for_no_memory(tmp_path: Path) -> None:
    """What is freed is kept: glibc by itself would ask for a thousand pages in each of these steps."""
    steps = f"""
import resource
import torch
from mammoth_sbs.models import load_host
host = load_host()
words = "--model er --dataset seq-digits --buffer_size 9 --lr .1 --base_path {tmp_path}"
net = host.initialize(host.parse_args(f"{{words}} --backbone tiny-resnet18 --num_filters 64".split()))[0].net
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    net(torch.zeros(64, 1, 8, 8)).sum().backward()
print("pages", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", steps], cwd=REPO, capture_output=True, text=True)
    assert int(re.search(r"pages (\d+)", done.stdout)[1]) < 20 * 100, done.stderr
