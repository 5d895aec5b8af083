"""What a command line means if a flag is left out, and the least and the most that each takes: the same tomorrow."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.models.flags import unused as unused_of_sbs
from mammoth_sbs.models.flags import unused_in_streams
from tests.conftest import REQUIRED
from tests.vendor.conftest import parse

from utils.args import unused

HOST: dict[str, Any] = {
    "extra_models": None, "backbone": "mnistmlp", "dataset_config": None, "model_config": "default", "online": False,
    "loadcheck": None, "lr_later": None, "n_epochs": 10, "batch_size": 32, "optimizer": "sgd", "optim_wd": 0.0,
    "optim_mom": 0.0, "optim_nesterov": False, "lr_scheduler": None, "lr_milestones": [],
    "sched_multistep_lr_gamma": 0.1, "drop_last": False, "joint": 0, "validation": None, "n_tasks": None,
    "max_classes": None, "train_per_class": None, "test_per_class": None, "custom_class_order": None,
    "class_order": None, "second_task": None, "noise_rate": 0.0, "imbalance": None, "blurry": 0.0, "drift": None,
    "permute_classes": False, "base_path": "./data/", "results_path": "results/", "checkpoint_path": "./checkpoints/",
    "savecheck": None, "resume": False, "ckpt_name": None, "start_from": None, "stop_after": None, "device": None,
    "compile": False, "code_optimization": 0, "num_workers": None, "debug_mode": False, "non_verbose": False,
    "disable_log": False, "enable_other_metrics": False, "eval_epochs": None, "eval_steps": None, "tensorboard": None,
    "wandb_entity": None, "wandb_project": None, "wandb_name": None, "mlp_hidden_size": 100, "shared_first_task": None,
    "sbs_record": None, "sbs_record_every": None, "sbs_record_tasks": None, "sbs_record_scores": None}
XDER = {"gamma": 0.85, "lambd": 0.05, "simclr_temp": 5.0, "simclr_batch_size": 64, "simclr_num_aug": 4,
        "constr_eta": 0.1, "constr_margin": 0.3, "dp_weight": 0.0, "past_constraint": False, "future_constraint": True,
        "align_bn": True}
METHOD: dict[str, dict[str, Any]] = {
    "sgd": {}, "joint": {}, "er": {}, "der": {}, "derpp": {}, "xder": XDER, "gem": {"gamma": 0.5},
    "agem": {"as_paper": False}, "rpc": {"as_paper": False}, "fdr": {"as_paper": False}}
SBS: dict[str, Any] = {
    "sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, "sbs_grid": [0.0, 0.2, 0.4, 0.6], "sbs_tune": "first",
    "sbs_tune_epochs": None, "sbs_score": "speed", "sbs_scope": "task"}
STREAM = {"sbs_during": "closed", "sbs_look": None, "sbs_looks": None, "sbs_band": None, "sbs_near": None}


def words(model: str) -> str:
    needed = " ".join(f"{flag} {value}" for flag, value in REQUIRED.get(model.removesuffix("_sbs"), {}).items())
    buffer = "" if model in ("sgd", "joint") else "--buffer_size 100"
    return f"--model {model} --dataset seq-digits --lr .1 --seed 0 {buffer} {needed}"


@pytest.mark.parametrize("model", METHOD)
def test_what_is_left_out(model: str) -> None:
    found = vars(parse(words(model)))
    assert {name: found[name] for name in (*HOST, *METHOD[model])} == HOST | METHOD[model]
    if model not in ("sgd", "joint"):
        assert found["minibatch_size"] == found["batch_size"]
        more = SBS | (STREAM if model in ("er", "der", "derpp") else {})
        found = vars(parse(words(f"{model}_sbs")))
        assert {name: found[name] for name in more} == more


LIMITS = [  # model, flag, what is taken, what is not
    ("er", "--buffer_size", "1 10000000", "0 10000001"), ("er", "--minibatch_size", "1", "0"),
    ("er", "--lr", "0.001 2", "0 -1"), ("er", "--lr_later", "0.001", "0"), ("er", "--n_epochs", "1", "0"),
    ("er", "--batch_size", "1", "0"), ("er", "--optim_wd", "0", "-0.1"), ("er", "--optim_mom", "0 0.99", "1 -0.1"),
    ("er", "--optim_nesterov", "0", "2"), ("er", "--lr_milestones", "1", "0"),
    ("er", "--sched_multistep_lr_gamma", "0.01 1", "0 1.01"), ("er", "--joint", "0 1", "2"),
    ("er", "--validation", "0.1 90", "0 91"), ("er", "--n_tasks", "1 2", "0"), ("er", "--max_classes", "2", "1"),
    ("er", "--train_per_class", "1", "0"), ("er", "--test_per_class", "1", "0"), ("er", "--stop_after", "1", "0"),
    ("er", "--code_optimization", "0 1", "4"), ("er", "--num_workers", "0", "-1"), ("er", "--eval_epochs", "1", "0"),
    ("er", "--eval_steps", "1", "0"), ("er", "--sbs-record-every", "1", "0"), ("er", "--sbs-record-tasks", "1", "0"),
    ("er", "--noise_rate", "0 0.5", "-0.1"), ("er", "--seed", "0 18446744073709551615", "-1 18446744073709551616"),
    ("er_sbs", "--sbs-q", "0 0.95 auto rule", "-0.1 0.96 other"), ("er_sbs", "--sbs-s", "0 0.75 auto", "-0.1 0.96"),
    ("er_sbs", "--sbs-grid", "0 0.95", "0.96 -0.1"), ("er_sbs", "--sbs-tune-epochs", "1", "0"),
    ("er_sbs", "--sbs-near", "0 5", "-1"), ("der", "--alpha", "0 2", "-0.1"), ("derpp", "--beta", "0 2", "-0.1"),
    ("gem", "--gamma", "0 0.5", "-0.1"), ("fdr", "--alpha", "0 2", "-0.1"), ("xder", "--gamma", "0 1", "-0.1 1.1"),
    ("xder", "--lambd", "0 3", "-0.1"), ("xder", "--simclr_temp", "0.1", "0"),
    ("xder", "--simclr_batch_size", "1", "0"), ("xder", "--simclr_num_aug", "2", "1"),
    ("xder", "--constr_eta", "0", "-0.1"), ("xder", "--constr_margin", "0", "-0.1"),
    ("xder", "--dp_weight", "0", "-0.1"), ("xder", "--alpha", "0", "-1"), ("xder", "--beta", "0", "-1"),
    ("agem", "--as_paper", "0 1", "2"), ("rpc", "--as_paper", "0 1", "2")]


@pytest.mark.parametrize(("model", "flag", "taken", "refused"), LIMITS)
def test_the_least_and_the_most(model: str, flag: str, taken: str, refused: str) -> None:
    given = words(model).split()
    name = flag[2:].replace("-", "_")
    if flag in given:
        at = given.index(flag)
        del given[at : at + 2]
    for value in taken.split():
        if (flag, value) == ("--sbs-q", "0.95"):
            given += ["--sbs-s", "0"]
        found = getattr(parse(f"{' '.join(given)} {flag} {value}"), name)
        found = found[0] if isinstance(found, list) else found
        assert found == value or float(found) == float(value)
    for value in refused.split():
        with pytest.raises(UserError, match=flag):
            parse(f"{' '.join(given)} {flag} {value}")


# ---- flags that change nothing

def lines(model: str, more: str) -> list[str]:
    args = parse(f"{words(model)} {more}")
    if not model.endswith("_sbs"):
        return unused(args)
    if args.sampler.startswith("stream"):
        return unused_in_streams(args)
    return unused_of_sbs(args, frozenset({"speed": "qs", "ccs": "s"}.get(args.sampler, "")),
                         args.sampler in ("speed", "ccs"))


@pytest.mark.parametrize(("model", "more", "says"), [
    ("er", "", None), ("er", "--optim_mom .9 --optim_nesterov 1", None), ("er", "--optimizer adam", None),
    ("er", "--optimizer adam --optim_mom .9", "--optim_mom, --optim_nesterov change nothing with --optimizer adam"),
    ("er", "--lr_milestones 3", "--lr_milestones, --sched_multistep_lr_gamma change nothing without"),
    ("er", "--sched_multistep_lr_gamma .5", "--lr_milestones, --sched_multistep_lr_gamma change nothing without"),
    ("er", "--lr_scheduler multisteplr --lr_milestones 3 --sched_multistep_lr_gamma .5", None),
    ("er_sbs", "", None), ("er_sbs", "--sbs-q .3 --sbs-s .1 --sbs-score loss", None),
    ("er_sbs", "--sampler uniform --sbs-q .3 --sbs-s .1", "--sbs-q, --sbs-s changes nothing with --sampler uniform"),
    ("er_sbs", "--sampler ccs --sbs-s .1", None),
    ("er_sbs", "--sampler ccs --sbs-q .1", "--sbs-q changes nothing with --sampler ccs"),
    ("er_sbs", "--sampler uniform --sbs-score loss", "--sbs-score changes nothing with --sampler uniform"),
    ("er_sbs", "--sbs-grid 0 .5 --sbs-tune each --sbs-tune-epochs 2",
     "--sbs-grid, --sbs-tune, --sbs-tune-epochs changes nothing without auto or rule"),
    ("er_sbs", "--sbs-q auto --sbs-grid 0 .5 --sbs-tune each", None),
    ("er_sbs", "--sbs-s rule --sbs-tune-epochs 2", None),
    ("er_sbs", "--sampler stream-speed --sbs-q .3 --sbs-s .1 --sbs-look margin --sbs-near 3", None),
    ("er_sbs", "--sampler stream_speed --sbs-scope seen", "--sbs-scope changes nothing with --sampler stream_speed"),
    ("er_sbs", "--sampler stream-cbrs", None),
    ("er_sbs", "--sampler stream-cbrs --sbs-q .3 --sbs-s .1 --sbs-near 3 --sbs-during stock",
     "--sbs-near, --sbs-during, --sbs-q, --sbs-s changes nothing with --sampler stream-cbrs"),
    ("er_sbs", "--sampler stream-speed --sbs-score loss --sbs-grid 0 --sbs-tune each --sbs-tune-epochs 1",
     "--sbs-score, --sbs-grid, --sbs-tune, --sbs-tune-epochs changes nothing with --sampler stream-speed")])
def test_what_changes_nothing_is_named_and_nothing_else(model: str, more: str, says: str | None) -> None:
    found = lines(model, more)
    assert found == [] if says is None else len(found) == 1 and found[0].startswith(says)


def test_stream_flags_without_a_stream_change_nothing() -> None:
    args: Namespace = parse(f"{words('er_sbs')} --sbs-look margin --sbs-band both")
    assert unused_in_streams(args) == ["--sbs-look, --sbs-band changes nothing with --sampler speed"]
