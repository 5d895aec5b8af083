"""Command lines: `-` and `_` are the same in every flag, help names every default, typos come with the nearest flag."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from mammoth_sbs import host
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.parser import Parser, program, spelled
from tests.conftest import REPO, STOCK, mammoth_main

SBS = "--model derpp_sbs --dataset seq-cifar100 --seed 1"


def parse(line: str) -> Namespace:
    return mammoth_main.parse_args(line.split())


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def help_of(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        parse(f"{line} --help")
    assert not end.value.code
    return " ".join(capsys.readouterr().out.split())


# ---- two spellings


def test_every_flag_of_a_run_may_be_spelled_both_ways() -> None:
    parser = mammoth_main.build_parser(SBS.split())
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    assert len(flags) > 40
    for flag in flags:
        assert spelled(flag.replace("_", "-")) == flag, f"{flag} is spelled against the rule"
    usual, other = (parse(f"{SBS} {flags}") for flags in (
        "--buffer_size 9 --sbs-q=.3 --lr_milestones 3 4 --sbs-tune-epochs 2",
        "--buffer-size 9 --sbs_q=.3 --lr-milestones 3 4 --sbs_tune_epochs 2"))
    assert vars(usual) == vars(other) and usual.buffer_size == 9 and usual.sbs_q == 0.3


def test_two_spellings_of_one_flag_are_one_flag() -> None:
    with pytest.raises(UserError, match=r"^--buffer_size is given 2 times"):
        parse(f"{SBS} --buffer_size 9 --buffer-size 10")


def test_published_values_for_the_buffer_size_by_either_spelling() -> None:
    line = "--model derpp --dataset seq-cifar10 --model_config best --seed 1"
    assert vars(parse(f"{line} --buffer-size 5120")) == vars(parse(f"{line} --buffer_size 5120"))


def test_a_sweep_takes_both_spellings_and_its_runs_are_the_same(tmp_path: Path) -> None:
    texts = ("base: --model er_sbs --dataset seq-digits --n_epochs 2\ngrid: {sbs-q: [0, .2], buffer_size: [50, 60]}",
             "base: --model er_sbs --dataset seq-digits --n-epochs 2\ngrid: {sbs_q: [0, .2], buffer-size: [50, 60]}",
             "base: {model: er_sbs, dataset: seq-digits, n-epochs: 2}\ngrid: {sbs_q: [0, .2], buffer-size: [50, 60]}")
    ids = []
    for text in texts:
        (tmp_path / "a.yaml").write_text(text)
        ids.append([run.id for run in resolve(read_config(tmp_path / "a.yaml"))])
    assert ids[0] == ids[1] == ids[2] and len(set(ids[0])) == 4
    (tmp_path / "a.yaml").write_text("base: --model er_sbs --dataset seq-digits\n  --n-epochs 2 --n_epochs 3")
    with pytest.raises(UserError, match="line 2: --n_epochs is given twice, first in line 2"):
        read_config(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("base: --model er_sbs --dataset seq-digits\ngrid:\n  buffer-size: [3, 50]\n")
    (tmp_path / "b.yaml").write_text("base: --model er_sbs --dataset seq-digits\ngrid:\n  buffer-size: [x, 50]\n")
    with pytest.raises(UserError, match="b.yaml, line 3: argument --buffer_size"):
        resolve(read_config(tmp_path / "b.yaml"))


def test_a_real_mammoth_is_given_its_own_spelling(tmp_path: Path) -> None:
    words = host.as_seen_from_here(["--buffer-size", "9", "--base-path=data", "--sbs_q", "0.2", "--p-lam", "1"])
    assert words[:2] == ["--buffer_size", "9"] and words[2] == f"--base_path={Path('data').absolute()}"
    assert words[3:7] == ["--sbs-q", "0.2", "--p-lam", "1"]


def test_commands_take_both_spellings() -> None:
    parser = Parser(prog="x")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--base_path")
    args = parser.parse_args(["--dry_run", "--base-path", "a_b-c"])
    assert (args.dry_run, args.base_path) == (True, "a_b-c")
    part = parser.add_subparsers(parser_class=Parser).add_parser("part")
    part.add_argument("--to_there")
    assert parser.parse_args(["part", "--to-there", "a"]).to_there == "a"
    with pytest.raises(UserError, match=r"^unknown flag --dry_runs; did you mean --dry-run\?; see x --help"):
        parser.parse_args(["--dry_runs"])


# ---- help


def test_help_without_a_model_explains_three_lines_and_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    from backbone import REGISTERED_BACKBONES
    from datasets import get_dataset_names

    text = help_of("", capsys)
    lines = [line for line in text.split("mammoth-sbs run ") if "--buffer_size 100" in line]
    for line, word in zip(lines, ("stock:", "uniform:", "SBS:"), strict=True):
        words, _, explained = line.partition(word)
        assert explained
        parse(words)  # it can be typed
    networks = [name for name in REGISTERED_BACKBONES if not name.startswith("timm:")]  # these register when asked for
    for name in [*STOCK, *get_dataset_names(), *networks, "timm:NAME"]:
        assert f" {name}" in text
    assert "Class-IL" in text and "Task-IL" in text


def test_help_shows_the_flags_of_sbs_first_and_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("--model derpp_sbs --dataset seq-cifar100", capsys)
    flags = ["--sampler", "--sbs-q", "--sbs-s", "--buffer_size", "--backbone", "--lr", "--seed", "--num_filters"]
    places = [text.index(f" {flag} ") for flag in flags]
    assert places == sorted(places)
    for words in ("left out; auto: searched", "--sbs-s SBS_S fraction of slowest", "(default: 0.2)",
                  "herding", "epochs per task (default: 50, by seq-cifar100)",
                  "learning rate (default: 0.03, by derpp's best config)",
                  "weight of the loss on replayed logits (default: 0.1, by derpp's best config)",
                  "replay buffer (default: 500, by derpp-sbs)", "(default: multisteplr, by seq-cifar100)",
                  "lowers the rate (default: 35 45, by seq-cifar100)", "of resnet18 (default: 64)",
                  "this many tasks (default: 10)", "weight decay (default: 0.0)", "random order first (default: 0)"):
        assert words in text, words
    parser = mammoth_main.build_parser(["--model", "derpp_sbs", "--dataset", "seq-cifar100"])
    helps = [parser.formatter_class("")._get_help_string(action) for action in parser._actions  # type: ignore[call-arg]
             if action.dest != "help"]
    assert all("(default" in text for text in helps)


def test_help_says_what_is_required_and_what_a_split_changes(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("--model derpp --dataset seq-cifar100 --dataset_config 2tasks", capsys)
    assert "examples in the replay buffer (required)" in text and "this many tasks (default: 2)" in text
    assert "learning rate (required)" in text
    text = help_of("--model derpp --dataset seq-cifar100 --model_config best", capsys)
    assert "learning rate (default: 0.03, by derpp's best config)" in text


# ---- what the user has


@pytest.mark.parametrize(("words", "env", "name"), [
    (["main.py"], {}, "python main.py"), (["-m", "mammoth_sbs", "run"], {}, "mammoth-sbs run"),
    (["main.py"], {"MAMMOTH_SBS_PROGRAM": "scripts/run"}, "scripts/run")])
def test_usage_names_what_the_user_typed(words: list[str], env: dict[str, str], name: str) -> None:
    done = subprocess.run([sys.executable, *words, "--help"], cwd=REPO, env={**os.environ, **env}, text=True,
                          capture_output=True, check=True)
    assert done.stdout.startswith(f"usage: {name} --model MODEL --dataset DATASET")
    assert f"\n  {name} --model derpp" in done.stdout


def test_the_recorded_command_begins_with_what_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, name in (("/there/main.py", "python main.py"), ("/bin/mammoth-sbs", "mammoth-sbs run"),
                        ("ipykernel_launcher.py", "mammoth-sbs run")):
        monkeypatch.setattr(sys, "argv", [first])
        assert program() == name and parse(SBS).command.startswith(f"{name} --model derpp-sbs")
