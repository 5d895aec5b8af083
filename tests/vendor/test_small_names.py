"""Small things that methods written for Mammoth import, and where files go: by hand."""

from __future__ import annotations

import argparse
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mammoth_sbs.errors import UserError

import utils
from utils import conf
from utils.schedulers import get_scheduler


def test_the_log_is_shown_once_on_standard_output(capsys: pytest.CaptureFixture,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    try:
        utils.setup_logging()
        utils.setup_logging()
        assert len(root.handlers) == 1 and root.level == logging.INFO
        logging.info("what happened")
        logging.debug("and more")
        out = capsys.readouterr().out
        assert out.startswith("[INFO] ") and out.endswith(" - what happened\n") and out.count("\n") == 1
        root.handlers.clear()
        monkeypatch.setenv("LOG_LEVEL", "ERROR")
        utils.setup_logging()
        assert root.level == logging.ERROR
    finally:
        monkeypatch.setattr(root, "handlers", handlers)
        root.setLevel(level)


def test_binary_flags_numbers_or_none_and_folders(tmp_path: Path) -> None:
    assert [utils.binary_to_boolean_type(value) for value in ("1", "0", "True", "false", True, 0)] == [
        True, False, True, False, True, False]
    with pytest.raises(argparse.ArgumentTypeError, match="give 0 or 1, not 2"):
        utils.binary_to_boolean_type("2")
    assert utils.none_or_float("None") is None and utils.none_or_float("0.5") == 0.5
    for _ in range(2):
        utils.create_if_not_exists(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_what_a_function_takes_as_flags() -> None:
    def build(n_classes: int, width: int = 3, depth: int = 0, rate: float = 0.5, name: str = "x", deep: bool = True,
              wide: bool | None = None, *args: Any, **kwargs: Any) -> None:
        """A network."""

    found = utils.flags_of(build, "n_classes")
    assert {name: default for name, (default, _) in found.items()} == {
        "width": 3, "depth": 0, "rate": 0.5, "name": "x", "deep": True, "wide": None}
    assert found["width"][1]("1") == 1 and found["depth"][1]("0") == 0 and found["rate"][1]("-2") == -2.0
    assert found["name"][1]("y") == "y" and found["deep"][1]("0") is False
    for name, wrong in (("width", "0"), ("rate", "x"), ("name", ""), ("deep", "2")):
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            found[name][1](wrong)
    needed = utils.flags_of(lambda n: n)
    assert list(needed) == ["n"]


def test_places_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "_state", {"base_path": "./data/", "checkpoint_path": "./checkpoints/"})
    assert (conf.base_path(), conf.get_checkpoint_path()) == ("./data/", "./checkpoints/")
    assert conf.base_path("there/") == conf.base_path() == "there/"
    assert conf.get_checkpoint_path("here/") == conf.get_checkpoint_path() == "here/"


def test_the_device_is_the_one_asked_for_else_the_first_gpu_else_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "_state", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert conf.get_device() == torch.device("cuda:0")
    assert conf.get_device("meta,cpu") == torch.device("meta") == conf.get_device()
    monkeypatch.setattr(conf, "_state", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert conf.get_device() == torch.device("cpu")
    for wrong in ("nothing", "77"):
        with pytest.raises(UserError, match=rf"--device {wrong}: not usable here \(.*\); try cpu"):
            conf.get_device(wrong)
    assert conf.get_device() == torch.device("cpu")


def test_precision_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", said.append)
    conf.set_precision(0, torch.device("cpu"))
    conf.set_precision(1, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for level in range(4):
        conf.set_precision(level, torch.device("cuda"))
    assert said == ["highest", "highest", "highest", "high", "medium", "medium"]
    with pytest.raises(UserError, match="--code_optimization 2: needs a GPU with bfloat16, not cpu; give 0 or 1"):
        conf.set_precision(2, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    with pytest.raises(UserError, match="--code_optimization 3: needs a GPU with bfloat16"):
        conf.set_precision(3, torch.device("cuda"))


def test_a_seed_is_for_every_generator() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        conf.set_random_seed(seed)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        assert draws(3) == draws(3) and all(a != b for a, b in zip(draws(3), draws(4), strict=True))
        assert draws(3)[1] == draws(3 + 2**32)[1]  # NumPy takes no more
    finally:
        random.setstate(before[0]), np.random.set_state(before[1]), torch.set_rng_state(before[2])


def test_a_loader_of_a_methods_own_follows_the_seed() -> None:
    def order(seed: int) -> list[int]:
        loader = conf.create_seeded_dataloader(SimpleNamespace(seed=seed), list(range(20)), shuffle=True, batch_size=20)
        return next(iter(loader)).tolist()

    assert order(1) == order(1) != order(2) and sorted(order(1)) == list(range(20))


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        conf.warn_once("only", "once", 1)
    assert [record.message for record in caplog.records] == ["only once 1"]


def test_schedules_within_a_task() -> None:
    for name, rates in (("multisteplr", [1, 1, 0.5, 0.25]), ("cosine", [1, 0.853553, 0.5, 0.146447]), (None, None)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        args: Any = SimpleNamespace(lr_scheduler=name, lr_milestones=[2, 3], sched_multistep_lr_gamma=0.5, n_epochs=4)
        scheduler = get_scheduler(SimpleNamespace(opt=optimizer), args)  # type: ignore[arg-type]
        if rates is None:
            assert scheduler is None
            continue
        found = []
        for _ in range(4):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()  # type: ignore[union-attr]
        assert found == pytest.approx(rates, abs=1e-5)
