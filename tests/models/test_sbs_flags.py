"""The user's command: defaults, what is printed, and one line for bad input before any training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mammoth_sbs.errors import UserError
from tests.conftest import STOCK, Start, mammoth_main
from tests.models.conftest import SMALL

from utils.training import train


def test_an_sbs_model_needs_no_flag_but_its_data_set(capsys: pytest.CaptureFixture) -> None:
    args = mammoth_main.parse_args(["--model", "derpp_sbs", "--dataset", "seq-cifar100"])
    assert (args.buffer_size, args.lr, args.alpha, args.beta) == (500, 0.03, 0.1, 0.5)
    assert (args.sbs_q, args.sbs_s, args.sbs_scope, args.sbs_during) == (0.2, 0.2, "task", "closed")
    given = ["--alpha", ".7", "--buffer_size", "200"]
    args = mammoth_main.parse_args(["--model", "derpp_sbs", "--dataset", "seq-cifar100", *given])
    assert (args.buffer_size, args.lr, args.alpha, args.beta) == (200, 0.03, 0.7, 0.5)
    best = ["--model", "derpp_sbs", "--dataset", "seq-cifar10", "--model_config", "best"]
    assert mammoth_main.parse_args(best).alpha == 0.2
    for name in STOCK:
        for dataset in ("seq-cifar10", "seq-cifar100", "seq-tinyimg", "seq-mnist", "seq-digits"):
            assert mammoth_main.parse_args(["--model", f"{name}-sbs", "--dataset", dataset]).lr > 0


def test_what_is_printed(start: Start, capsys: pytest.CaptureFixture) -> None:
    it = start("derpp_sbs", "--n_epochs 1 --train_per_class 20 --stop_after 1 --buffer_size 10")
    train(it.model, it.dataset, it.args)
    out = capsys.readouterr().out
    assert "derpp_sbs on seq-digits: buffer_size 10, lr 0.05, alpha 0.2, beta 0.5" in out
    assert out.count("cannot rank examples") == 1  # one epoch: one warning
    assert "SBS task 1: 40 examples" in out
    assert "left out 8 quickest and 8 slowest" in out and "10 stored" in out
    for other in (f"{SMALL} --stop_after 1", "--n_epochs 1 --sbs-score margin"):  # a margin can
        start("derpp_sbs", other)
        assert "cannot rank" not in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "says"), [
    ("--sbs-q 20", "not 20; did you mean 0.2?"),
    ("--sbs-s -0.1", "--sbs-s: a number from 0 to 0.95"),
    ("--sbs-q 1", "--sbs-q: a number from 0 to 0.95"),
    ("--sbs-q .999", "--sbs-q: a number from 0 to 0.95"),
    ("--sbs-q x", "--sbs-q: a number from 0 to 0.95, auto, rule or share is needed, not x"),
    ("--sbs-q .6 --sbs-s .4", "--sbs-q 0.6, --sbs-s 0.4: q + s must be at most 0.95"),
    ("--buffer_size 4", "give at least 5"),
    ("--sampler sped", "did you mean `speed`?"),
    ("--sbs-record nowhere/x.npz", "there is no folder nowhere"),
    ("--sbs-record x.txt", "ends in .npz"),
])
def test_bad_flags(start: Start, flags: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        start("er_sbs", flags)
    message = str(error.value)
    assert says in message and "\n" not in message


@pytest.mark.parametrize(("flags", "says"), [
    ("--sampler uniform --sbs-q .4", "--sbs-q changes nothing with --sampler uniform"),
    ("--sampler uniform --sbs-q .4 --sbs-s 0", "--sbs-q, --sbs-s changes nothing"),
    ("--sampler uniform --sbs-score loss", "--sbs-score changes nothing with --sampler uniform"),
    ("--sbs-grid 0 .5", "--sbs-grid changes nothing without auto or rule"),
    ("--sbs-tune each --sbs-tune-epochs 3", "--sbs-tune, --sbs-tune-epochs changes nothing without auto or rule"),
    ("--sampler uniform", ""), ("--sbs-q .4 --sbs-score loss", ""),
    ("--sbs-q auto --sbs-grid 0 .5 --sbs-tune each", ""),
])
def test_a_flag_that_changes_nothing_is_named(start: Start, flags: str, says: str,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    start("er_sbs", flags)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == bool(says) and says in "".join(warnings)


def test_too_small_for_quotas(start: Start) -> None:
    with pytest.raises(UserError, match="give at least 10"):
        start("gem_sbs", "--buffer_size 9")


def test_data_without_index_or_with_foreign_labels(start: Start) -> None:
    it = start("er_sbs", SMALL)
    it.dataset.get_data_loaders()
    data = it.dataset.train_loader.dataset
    with pytest.raises(UserError, match="carry no index"):
        it.model.meta_begin_task(it.dataset)
        it.model.meta_observe(*data.batch(torch.arange(4))[:3], epoch=0)
    it.model.hook.remove()
    data.targets[0] = 7
    with pytest.raises(UserError, match="labels 0 to 7, outside its classes 0 to 1"):
        it.model.meta_begin_task(it.dataset)
    it.dataset.train_loader = SimpleNamespace(dataset=[])
    with pytest.raises(UserError, match="cannot carry an index"):
        it.model.meta_begin_task(it.dataset)
