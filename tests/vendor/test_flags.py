"""The embedded host's flags: which default wins, what is required, how names may be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import mammoth_main
from tests.vendor.conftest import parse


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
    save_checkpoint(tmp_path / "c.pt", SimpleNamespace(state_dict=dict), args, 0, [], inside=None, run="a",
                    seconds=0.0, during=[], ahead=None)
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
