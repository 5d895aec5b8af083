"""Bad input ends in one line that says what to do, an exit code that is not 0, and nothing half-written."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import REPO, SHARED_DATA, mammoth_main

ER = "--model er --dataset seq-digits --buffer_size 20 --lr 0.05"
FAST = "--train_per_class 10 --n_epochs 1"


def refused(line: str, *words: str) -> str:
    """The one line with which a command line is refused, checked for the words it should contain."""
    with pytest.raises(UserError) as caught:
        mammoth_main.initialize(mammoth_main.parse_args(line.split()))
    return one_line(str(caught.value), *words)


def one_line(message: str, *words: str) -> str:
    assert "\n" not in message.rstrip("\n")
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    return message


# ---- as a user sees it: a process, its exit code, its output


def process(line: str, cwd: Path, program: str = "main.py") -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(REPO / program), *line.split()], cwd=cwd, env=env, timeout=120,
                          capture_output=True, text=True)


@pytest.mark.parametrize("program, line, words", [
    ("main.py", "--model derp --dataset seq-digits", ["--model derp", "did you mean der"]),
    ("main.py", f"{ER.replace('0.05', '1e30')} {FAST} --non_verbose 1", ["the loss became", "lower --lr"]),
    ("mammoth_sbs/__main__.py", "sweep nowhere.yaml", ["nowhere.yaml: cannot be read"]),
    ("mammoth_sbs/vendor/mammoth/main.py", "--model derp --dataset seq-digits", ["did you mean der"]),
])
def test_a_process_ends_with_one_line_and_not_with_zero(
        program: str, line: str, words: list[str], tmp_path: Path) -> None:
    done = process(line, tmp_path, program)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.startswith("error: ")
    one_line(done.stderr, *words)
    assert not list(tmp_path.rglob("*.json"))


def test_the_same_command_without_the_mistake_runs(tmp_path: Path) -> None:
    done = process(f"{ER} {FAST} --stop_after 1", tmp_path)
    assert done.returncode == 0 and "Accuracy for 1 task(s)" in done.stdout and "error" not in done.stderr
    assert len(list(tmp_path.rglob("*.json"))) == 1


# ---- names and flags


@pytest.mark.parametrize("line, words", [
    ("--model erp --dataset seq-digits --buffer_size 9 --lr 1", ["--model erp", "did you mean er"]),
    ("--model der_ppp --dataset seq-digits --lr 1", ["--model der_ppp", "did you mean derpp"]),
    ("--model er --dataset seq-cifar1000 --lr 1", ["--dataset seq-cifar1000", "did you mean seq-cifar100?"]),
    ("--model er --dataset digits --lr 1", ["--dataset digits", "did you mean seq-digits?"]),
    (f"{ER} --backbone resnet81", ["--backbone resnet81", "did you mean resnet18?"]),
    (f"{ER} --dataset_config 2task", ["--dataset_config 2task", "did you mean 2tasks?"]),
    (f"{ER} --optimzer adam", ["--optimzer", "did you mean --optimizer?"]),
    (f"{ER} --n_epoch 3", ["--n_epoch", "did you mean --n_epochs?"]),
    ("--model er --dataset seq-digits --bufer_size 20 --lr 1", ["--bufer_size", "did you mean --buffer_size?"]),
    ("--model der --dataset seq-digits --buffer_size 9 --lr 1 --alfa=1", ["--alfa", "did you mean --alpha?"]),
    (f"{ER} --optimizer sdg", ["--optimizer", "sgd"]),
    (f"{ER} extra", ["extra"]),
    (f"{ER} --alpha 1", ["--alpha"]),  # a flag of another method
    ("--dataset seq-digits", ["--model is missing", "derpp"]),
    ("--model er", ["--dataset is missing", "seq-digits"]),
    ("--model er --dataset seq-digits --lr 1", ["required", "--buffer_size"]),
    ("--model er --dataset seq-digits --buffer_size 9", ["required", "--lr"]),
    ("--model der --dataset seq-digits --buffer_size 9 --lr 1", ["required", "--alpha"]),
    ("--model fdr --dataset seq-digits --buffer_size 9 --lr 1", ["required", "--alpha"]),
    ("--model derpp --dataset seq-digits --buffer_size 9 --lr 1 --alpha 1", ["required", "--beta"]),
    ("--model sgd --dataset seq-digits --model_config best", ["--model_config best", "sgd"]),
    (f"{ER} --seed 1 --seed 2", ["--seed is given 2 times"]),
    (f"{ER} --lr=0.1", ["--lr is given 2 times"]),
])
def test_names_and_flags(line: str, words: list[str]) -> None:
    refused(line, *words)


@pytest.mark.parametrize("flag", [
    "--buffer_size 0", "--buffer_size -5", "--minibatch_size 0", "--n_epochs -1", "--n_epochs 0", "--n_epochs 1.5",
    "--batch_size 0", "--n_tasks 0", "--max_classes 1", "--train_per_class 0", "--seed -1", "--stop_after 0",
    "--lr 0", "--lr -1", "--lr fast", "--validation 100", "--validation -3", "--validation 0", "--joint 2",
    "--permute_classes maybe", "--num_workers -1", "--device gpu", "--lr_scheduler step",
    "--lr_scheduler multisteplr", "--optim_nesterov 1", "--savecheck always", "--max_classes 11",
])
def test_values(flag: str) -> None:
    name = flag.split()[0]
    line = f"{ER} {flag}"
    if name in ER:
        line = re.sub(rf"{name} \S+", flag, ER)
    refused(line, name)


def test_joint_has_one_task() -> None:
    refused(f"{ER} --joint 1 --stop_after 1", "--joint 1", "--stop_after")


@pytest.mark.parametrize("flag, words", [
    ("--n_tasks 7", ["--n_tasks 7", "10 classes", "1, 2, 5, 10"]), ("--n_tasks 11", ["--n_tasks 11"]),
    ("--max_classes 7", ["5", "7 classes", "1, 7"]),
])
def test_tasks_that_do_not_divide_the_classes(flag: str, words: list[str]) -> None:
    refused(f"{ER} {flag}", *words)


@pytest.mark.skipif(not (SHARED_DATA / "CIFAR100").is_dir(), reason=f"needs {SHARED_DATA}/CIFAR100")
def test_seven_tasks_of_a_hundred_classes() -> None:
    refused(f"--model sgd --lr 1 --dataset seq-cifar100 --n_tasks 7 --base_path {SHARED_DATA}", "--n_tasks 7",
            "100 classes", "1, 2, 4, 5, 10, 20, 25, 50, 100")


def test_nothing_to_do(run: Callable, tmp_path: Path) -> None:
    run("er", f"{FAST} --savecheck last --ckpt_name a --max_classes 4 --n_tasks 2")
    with pytest.raises(UserError) as caught:
        run("er", f"{FAST} --max_classes 4 --n_tasks 2 --loadcheck {tmp_path / 'a_last.pt'}")
    one_line(str(caught.value), "nothing to do", "--stop_after")


# ---- a network that diverges


@pytest.mark.parametrize("model", ["sgd", "joint", "er", "derpp", "xder", "gem", "agem", "rpc", "fdr", "der_sbs"])
def test_a_loss_that_is_no_number_ends_the_run(model: str, run: Callable, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        run(model, "--train_per_class 20 --n_epochs 2 --batch_size 8 --lr 1e30")
    one_line(str(caught.value), "the loss became", "lower --lr (now 1e+30)")
    assert not list(tmp_path.rglob("*.json"))


def test_divergence_leaves_the_checkpoints_of_earlier_tasks(
        run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.er import Er

    def observe(self: Er, *args: Any, **kwargs: Any) -> float:
        return float("inf") if self.current_task == 1 else original(self, *args, **kwargs)

    original = Er.observe
    with monkeypatch.context() as patch, pytest.raises(UserError, match="task 2, epoch 1"):
        patch.setattr(Er, "observe", observe)
        run("er", f"{FAST} --savecheck task --ckpt_name a")
    assert [p.name for p in tmp_path.glob("*.pt")] == ["a_0.pt"]
    assert len(run("er", f"{FAST} --loadcheck {tmp_path / 'a_0.pt'}")["results"]["class_il"]["matrix"]) == 5


# ---- checkpoints


@pytest.fixture
def checkpoint(run: Callable, tmp_path: Path) -> Path:
    """Of `er` after two tasks."""
    run("er", f"{FAST} --savecheck last --ckpt_name good --stop_after 2")
    return tmp_path / "good_last.pt"


def test_a_checkpoint_of_another_model_or_run(run: Callable, checkpoint: Path) -> None:
    for model, flags, words in (("derpp", FAST, ["--model er"]), ("er_sbs", FAST, ["--model er"]),
                                ("er", f"{FAST} --lr 0.01", ["--lr 0.05 there and 0.01 here"]),
                                ("er", f"{FAST} --n_tasks 2", ["--n_tasks 5 there and 2 here"]),
                                ("er", f"{FAST} --backbone vgg16 --num_filters 2", ["--backbone mnistmlp there"])):
        with pytest.raises(UserError) as caught:
            run(model, f"{flags} --loadcheck {checkpoint}")
        one_line(str(caught.value), f"--loadcheck {checkpoint}", *words)


def test_a_checkpoint_that_is_none(tmp_path: Path, checkpoint: Path) -> None:
    good = checkpoint.read_bytes()
    other = tmp_path / "other.pt"
    torch.save({"model": {}}, other)
    weights = other.read_bytes()
    torch.save([1, 2, 3], other)
    for content in (weights, other.read_bytes(), b"", b"hello\n", b"PK\x03\x04", bytes(range(256)) * 50, b"\x80\x02.",
                    good[:100], good[: len(good) // 2], good[:-1], good[:-30], good[100:]):
        bad = tmp_path / "bad.pt"
        bad.write_bytes(content)
        message = refused(f"--loadcheck {bad}", f"--loadcheck {bad}", "not a checkpoint")
        assert len(message) < 300
    refused(f"--loadcheck {tmp_path / 'missing.pt'}", "missing.pt", "no such file")
    refused(f"--loadcheck {tmp_path}", str(tmp_path), "a folder; give one of its files")


def test_a_checkpoint_with_flipped_bits(tmp_path: Path, checkpoint: Path) -> None:
    """Wherever the damage is, it is found, or it did not matter."""
    from utils.checkpoints import read_checkpoint

    good, bad = checkpoint.read_bytes(), tmp_path / "bad.pt"
    whole = torch.load(checkpoint, weights_only=True)
    found = 0
    for at in range(0, len(good), len(good) // 60):
        bad.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            state = read_checkpoint(bad)
        except UserError as e:
            one_line(str(e), "damaged")
            found += 1
        else:
            tensors = {key: value for key, value in state["model"].items() if isinstance(value, torch.Tensor)}
            assert len(tensors) > 4
            assert all(torch.equal(value, whole["model"][key]) for key, value in tensors.items())
    assert found > 30


def test_a_file_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"format": 1, "args": Evil()}, tmp_path / "evil.pt")
    refused(f"--loadcheck {tmp_path / 'evil.pt'}", "not a checkpoint")
    assert not (tmp_path / "owned").exists()


# ---- a full disk


@pytest.mark.parametrize("written", [0, 1000])
def test_a_full_disk_while_saving_leaves_the_last_good_checkpoint(
        written: int, run: Callable, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--savecheck last` overwrites the same file: the old one stays whole and loads, and the result is there."""
    good = checkpoint.read_bytes()

    def full(state: object, file: Any) -> None:
        file.write(b"x" * written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        finished = run("er", f"{FAST} --loadcheck {checkpoint} --savecheck last --ckpt_name good --stop_after 3")
    assert len(finished["results"]["class_il"]["matrix"]) == 3
    with pytest.raises(UserError, match="^the run is finished, but ") as caught:
        finished["model"].run.complain()  # as the program does at its end
    one_line(str(caught.value), "cannot write the checkpoint", "good_last.pt", "No space left on device")
    assert checkpoint.read_bytes() == good
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good_last.pt", "results"]
    assert len(run("er", f"{FAST} --loadcheck {checkpoint}")["results"]["class_il"]["matrix"]) == 5


def test_a_disk_that_is_really_full(run: Callable, tmp_path: Path) -> None:
    """torch.save writes through its own code; the kernel's device for this purpose is always full."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    from mammoth_sbs.files import write_atomically

    with pytest.raises(UserError) as caught, open("/dev/full", "wb", buffering=0) as full:
        write_atomically(tmp_path / "a.pt", lambda f: torch.save({"a": torch.zeros(10_000)}, full), "checkpoint")
    one_line(str(caught.value), "cannot write the checkpoint")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError) as caught:
        run("er", f"{FAST} --stop_after 1 --results_path file")
    one_line(str(caught.value), "cannot write the result file", str(tmp_path / "file"))
