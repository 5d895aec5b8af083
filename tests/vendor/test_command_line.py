"""Parts of the command line, each by itself: whose flag it is, what a name stands for, how a run is written down."""

from __future__ import annotations

import argparse
import inspect
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from tests.vendor.conftest import parse

import datasets
import models
from utils import args as flags

RUN = "--dataset seq-digits --lr .1 --seed 0"


def method(*names: str, error: Exception | None = None) -> Any:
    """A method with these flags; which of them it has may depend on the data set."""

    def get_parser(parser: argparse.ArgumentParser) -> None:
        if error:
            raise error
        assert parser.get_default("dataset") == "seq-x"
        for name in names:
            parser.add_argument(name)

    return SimpleNamespace(get_parser=get_parser)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> flags.ArgumentParser:
    """The command line of method m with network n, beside other methods, data sets and networks."""
    monkeypatch.setattr(models, "get_model_names", lambda: {
        "m": method(), "m-sbs": method("--sbs-q"), "broken": method(error=UserError("no")), "a": method("--alpha"),
        "b": method("--alpha", "--beta")})
    monkeypatch.setattr(datasets, "get_dataset_names", lambda: ["seq-x", "seq-y", "seq-z"])
    monkeypatch.setattr(datasets, "dataset_flags", lambda name: {} if name == "seq-x" else {"drift": 1})
    monkeypatch.setattr(flags, "REGISTERED_BACKBONES", ["n", "o"])
    monkeypatch.setattr(flags, "backbone_flags", lambda name: {"o": {"width": 1}}.get(name, {}))
    parser = flags.ArgumentParser()
    parser.set_defaults(model="m", backbone="n", dataset="seq-x")
    return parser


OTHERS = [
    ("--sbs_q", "--sbs-q is a flag of the _sbs models, and --model is m; take --model m_sbs"),
    ("--alpha", "--alpha is a flag of other methods, not of m: a, b"),
    ("--beta", "--beta is a flag of other methods, not of m: b"),
    ("--drift", "--drift is a flag of other data sets, not of seq-x: seq-y, seq-z"),
    ("--width", "--width is a flag of other networks, not of n: o"), ("--nobodys", "")]


def test_whose_flag_it_is(others: flags.ArgumentParser) -> None:
    for flag, says in OTHERS:
        assert flags.of_others(flag, others) == says
        assert others.unknown(flag) == says if says else "unknown flag --nobodys" in others.unknown(flag)


def test_a_name_may_be_written_with_either_line() -> None:
    known = ["a_b", "c-d", "efgh"]
    found = [flags.one_of("model", known, name) for name in ("a_b", "c-d", "c_d", "efgh")]
    assert found == ["a_b", "c-d", "c-d", "efgh"]
    with pytest.raises(UserError, match=r"^--model efg: not known; did you mean efgh\? There are: a_b, c-d, efgh$"):
        flags.one_of("model", known, "efg")
    with pytest.raises(UserError, match=r"^--model zzz: not known\. There are: a_b, c-d, efgh$"):
        flags.one_of("model", set(known), "zzz")


def test_what_has_no_default_is_asked_for() -> None:
    for given, flag in (("--lr .1", "--buffer_size"), ("--buffer_size 9", "--lr")):
        with pytest.raises(UserError, match=rf"^the following arguments are required: {flag}"):
            parse(f"--model er --dataset seq-digits {given}")


def test_a_stream_in_small_batches_is_one_word() -> None:
    found = parse(f"--model er --buffer_size 9 {RUN} --online 1")
    assert (found.n_epochs, found.batch_size, found.minibatch_size, found.eval_steps) == (1, 10, 10, 250)


TYPED: list[tuple[str, str, Any]] = [
    ("--model_config base", "model_config", "default"), ("-O 2", "code_optimization", 2),
    ("--code_optimization 3", "code_optimization", 3), ("--resume", "resume", True), ("--resume 0", "resume", False),
    ("--savecheck epoch", "savecheck", "epoch"), ("--ckpt_name c", "ckpt_name", "c"), ("--device cpu", "device", "cpu"),
    ("--compile 1", "compile", True), ("--optimizer adagrad", "optimizer", "adagrad"),
    ("--lr_scheduler cosine", "lr_scheduler", "cosine"), ("--second_task rotations", "second_task", "rotations"),
    ("--drop_last 1", "drop_last", True), ("--tensorboard d", "tensorboard", "d"),
    ("--disable_log 1", "disable_log", True),
    ("--enable_other_metrics 1", "enable_other_metrics", True), ("--debug_mode 1", "debug_mode", True)]


def test_what_is_typed_is_what_is_meant() -> None:
    for typed, name, value in TYPED:
        assert getattr(parse(f"--model er --buffer_size 9 {RUN} {typed}"), name) == value


LIMITS = [  # a flag of every run, what it takes, what it does not
    ("buffer_size", "1 10000000", "0 10000001"), ("minibatch_size", "1", "0"), ("lr", "0.001 2", "0 -1"),
    ("lr_later", "0.001", "0"), ("n_epochs", "1", "0"), ("batch_size", "1", "0"), ("optim_wd", "0 0.5", "-0.1"),
    ("optim_mom", "0 0.99", "1 -0.1"), ("lr_milestones", "1", "0"), ("sched_multistep_lr_gamma", "0.01 1", "0 1.01"),
    ("joint", "0 1", "2"), ("validation", "0.1 90", "0 91"), ("n_tasks", "1", "0"), ("max_classes", "2", "1"),
    ("train_per_class", "1", "0"), ("test_per_class", "1", "0"), ("seed", "0", "-1"), ("start_from", "0", "-1"),
    ("stop_after", "1", "0"), ("code_optimization", "0 1 2 3", "4 -1"), ("num_workers", "0", "-1"),
    ("eval_epochs", "1", "0"), ("eval_steps", "1", "0"), ("as_paper", "0 1", "2"), ("drop_last", "0 1", "2"),
    ("optimizer", "sgd adam adamw adagrad", "sdg"), ("lr_scheduler", "multisteplr cosine None", "step"),
    ("savecheck", "epoch task last", "never"), ("model_config", "default best base", "worst")]
LEFT_OUT = {
    "model": None, "extra_models": None, "dataset": None, "backbone": None, "dataset_config": None, "loadcheck": None,
    "model_config": "default", "online": False, "as_paper": False, "minibatch_size": None, "lr_later": None,
    "n_epochs": None, "batch_size": None, "optimizer": "sgd", "optim_wd": 0.0, "optim_mom": 0.0,
    "optim_nesterov": False, "lr_scheduler": None, "lr_milestones": [], "sched_multistep_lr_gamma": 0.1,
    "drop_last": False, "joint": 0, "validation": None, "n_tasks": None, "max_classes": None, "train_per_class": None,
    "test_per_class": None, "custom_class_order": None, "class_order": None, "second_task": None, "seed": None,
    "permute_classes": False, "base_path": "./data/", "results_path": "results/", "checkpoint_path": "./checkpoints/",
    "savecheck": None, "resume": False, "ckpt_name": None, "start_from": None, "stop_after": None, "device": None,
    "compile": False, "code_optimization": 0, "num_workers": None, "debug_mode": False, "non_verbose": False,
    "disable_log": False, "enable_other_metrics": False, "eval_epochs": None, "eval_steps": None, "tensorboard": None,
    "wandb_entity": None, "wandb_project": None, "wandb_name": None}


def test_what_every_run_takes_and_what_it_means_to_leave_it_out() -> None:
    parser = flags.ArgumentParser()
    assert flags.add_rehearsal_args(parser) is parser
    flags.add_as_paper_arg(parser, "which does it otherwise")
    flags.add_initial_args(parser)
    flags.add_experiment_args(parser, 5)
    flags.add_management_args(parser)
    flags.add_board_args(parser)
    needed = ["--buffer_size", "9", "--lr", "0.5"]
    assert vars(parser.parse_args(needed)) == {"buffer_size": 9, "lr": 0.5, **LEFT_OUT}
    for name, taken, refused in LIMITS:
        for value in taken.split():
            found = getattr(parser.parse_args([*needed, f"--{name}", value]), name)
            found = found[0] if isinstance(found, list) else found
            assert str(found) == {"base": "default"}.get(value, value) or float(found) == float(value), name
        for value in refused.split():
            with pytest.raises(UserError, match=name):
                parser.parse_args([*needed, f"--{name}", value])


def test_a_named_setting_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seq-x").mkdir()
    two = "N_TASKS: 2\nN_CLASSES_PER_TASK: 5\nN_CLASSES: 10\nlr: 0.1\nseed: null"
    (tmp_path / "seq-x" / "two.yaml").write_text(two)
    (tmp_path / "seq-x" / "plain.yaml").write_text("lr: 0.2")
    monkeypatch.setattr(datasets, "CONFIGS", tmp_path)
    assert flags.dataset_config("seq-x", None) == {}
    assert flags.dataset_config("seq-x", "two") == {"n_tasks": 2, "lr": 0.1}
    assert flags.dataset_config("seq-x", "plain") == {"lr": 0.2}
    with pytest.raises(UserError, match=r"^--dataset_config tow: seq-x has plain, two; did you mean two\?$"):
        flags.dataset_config("seq-x", "tow")
    with pytest.raises(UserError, match="^--dataset_config two: seq-y has none$"):
        flags.dataset_config("seq-y", "two")


def test_flags_of_a_network_stand_beside_those_of_every_run() -> None:
    parser = flags.ArgumentParser()
    parser.add_argument("--lr", default=7)
    flags.add_flags(parser, "network n", {"lr": (1, int), "width": (3, int), "kind": ("a", ("a", "b"), "which"),
                                          "needed": (inspect.Parameter.empty, int)})
    found = parser.parse_args(["--needed", "5"])
    assert vars(found) == {"lr": 7, "width": 3, "kind": "a", "needed": 5}
    found = parser.parse_args(["--needed", "5", "--width", "8", "--kind", "b", "--lr", "x"])
    assert vars(found) == {"lr": "x", "width": 8, "kind": "b", "needed": 5}
    for wrong in ("", "--needed 5 --kind c"):
        with pytest.raises(UserError):
            parser.parse_args(wrong.split())
    told = {action.dest: action.help for action in parser._actions}
    assert told["kind"] == "which" and told["width"] == "of n"


def test_a_run_is_written_down_as_one_would_type_it() -> None:
    parser = flags.ArgumentParser()
    for name in ("--model", "--dataset", "--backbone"):
        parser.add_argument(name, default="usual")
    parser.add_argument("--code_optimization", "-O", default=0)
    parser.add_argument("--name")
    parser.add_argument("--rates", nargs="+", default=[1])
    parser.add_argument("--on", default=False)
    parser.own_defaults = {action.dest: action.default for action in parser._actions}
    chosen = "--model usual --dataset usual --backbone usual"  # they decide on the other flags
    usual = dict(parser.own_defaults)
    assert flags.command_line(Namespace(**usual), parser) == chosen
    args = Namespace(**usual | {"code_optimization": 2, "name": "my run", "rates": [1, 2.5], "on": True, "help": "x"})
    assert flags.command_line(args, parser) == f"{chosen} --code_optimization 2 --name 'my run' --rates 1 2.5 --on 1"
    found = parse(f"--model er --buffer_size 9 {RUN} --code_optimization 1").command
    assert " --code_optimization 1" in found and "-O" not in found


def test_a_hidden_layer_is_for_a_frozen_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "backbone_flags", lambda name: {"head_hidden": (0, 9)})
    usual = parse(f"--model er --buffer_size 9 {RUN}")
    for frozen, hidden, says in ((False, 5, True), (False, 0, False), (True, 5, False), (None, 5, False)):
        given = Namespace(**vars(usual) | {"head_hidden": hidden} | ({} if frozen is None else {"frozen": frozen}))
        assert flags.unused(given) == ["--head_hidden changes nothing without --frozen 1"] * says


def test_flags_that_change_nothing_are_named() -> None:
    momentum = ["--optim_mom, --optim_nesterov change nothing with --optimizer adam"]
    schedule = ["--lr_milestones, --sched_multistep_lr_gamma change nothing without --lr_scheduler multisteplr"]
    cases: list[tuple[str, list[str]]] = [
        ("", []), ("--optimizer adam", []), ("--optim_mom .9 --optim_nesterov 1", []),
        ("--optimizer adam --optim_mom .9", momentum), ("--lr_milestones 3", schedule),
        ("--sched_multistep_lr_gamma .5", schedule),
        ("--lr_scheduler cosine --lr_milestones 3 --optimizer adam --optim_mom .9", momentum + schedule),
        ("--lr_scheduler multisteplr --lr_milestones 3 --sched_multistep_lr_gamma .5", [])]
    for given, says in cases:
        assert flags.unused(parse(f"--model er --buffer_size 9 {RUN} {given}")) == says
    milestones = parse("--model er --dataset seq-cifar100 --buffer_size 9 --lr .1 --lr_scheduler None")
    assert flags.unused(milestones) == []  # the data set's own


def test_a_flag_is_given_once() -> None:
    twice = ("--lr 1 --lr 2", "--lr"), ("--lr=1 --lr 2", "--lr"), ("--sbs-q 1 --lr 3 --sbs_q=2", "--sbs-q")
    for given, flag in twice:
        with pytest.raises(UserError, match=f"^{flag} is given 2 times; give it once$"):
            flags.no_duplicate_flags(given.split())
    flags.no_duplicate_flags(["--lr", "1", "--sbs-q=2", "--seed", "1", "er", "er"])
