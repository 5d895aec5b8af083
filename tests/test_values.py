"""Ranges: every number a user can type has one, it is stated once, and what is outside gets one line that names it."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mammoth_sbs.commands import COMMANDS
from mammoth_sbs.errors import UserError
from mammoth_sbs.experiments.config import read_config
from mammoth_sbs.experiments.runs import resolve
from mammoth_sbs.values import PERCENT, SEED, Range, Unfit, at_least, number, text
from tests.conftest import REPO, mammoth_main

from backbone import REGISTERED_BACKBONES
from models import get_model_names

ER = "--model er --dataset seq-digits --buffer_size 20 --lr 0.05"
RANGES = [at_least(1), at_least(0, 9), number(above=0), number(0, below=1), number(0, 0.95, words=("auto",)), PERCENT,
          SEED, number(above=0, most=90), number()]


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The host's parser for every method and every network."""
    for model in get_model_names():
        yield model, mammoth_main.build_parser(["--model", model, "--dataset", "seq-digits"])
    for network in REGISTERED_BACKBONES:
        yield network, mammoth_main.build_parser(["--model", "sgd", "--dataset", "seq-digits", "--backbone", network])


ACTIONS = {(name, action.option_strings[0]): action for name, parser in parsers() for action in parser._actions}
NUMBERS = {flag: action for (_, flag), action in ACTIONS.items() if isinstance(action.type, Range)}


# ---- a range


@pytest.mark.parametrize("values", RANGES, ids=str)
@settings(max_examples=60, deadline=None)
@given(value=st.one_of(st.integers(-(2**53), 2**53), st.floats(), st.sampled_from([0, 1, 9, 90, 100, 0.95, 2**64])))
def test_what_a_flag_takes_is_what_a_file_may_hold_and_is_inside_the_limits(values: Range, value: float) -> None:
    inside = math.isfinite(value) and (value > values.least if values.above else value >= values.least) and \
        (value < values.most if values.below else value <= values.most)
    fits = inside and (values.kind is float or isinstance(value, int))
    try:
        assert values(repr(value)) == value
        assert fits
    except argparse.ArgumentTypeError as e:
        assert not fits and f"{values} is needed, not {value!r}" in str(e)
    try:
        values.check(value, "x")
        assert fits
    except Unfit as e:
        assert not fits and str(e).startswith("x is ") and str(e).endswith(f", not {values}")


@pytest.mark.parametrize("values", RANGES, ids=str)
@pytest.mark.parametrize("typed", ["", " ", "nan", "inf", "-inf", "1e999", "x", "1,5", "0x10", "None", "9" * 5000])
def test_what_is_no_number(values: Range, typed: str) -> None:
    if typed != "9" * 5000 or math.isfinite(values.most):
        with pytest.raises(argparse.ArgumentTypeError, match="is needed, not"):
            values(typed)
    for other in (None, True, "x", [1], {}, math.nan, math.inf):
        with pytest.raises(Unfit, match=f"^x is .*, not {values}$"):
            values.check(other, "x")


def test_limits_in_words() -> None:
    assert [str(values) for values in RANGES[:5]] == [
        "a whole number of at least 1", "a whole number from 0 to 9", "a number above 0",
        "a number of at least 0 and below 1", "a number from 0 to 0.95 or auto"]
    assert number(0, 0.95)("0.95") == 0.95 and number(0, 0.95, words=("auto",))("auto") == "auto"
    with pytest.raises(argparse.ArgumentTypeError, match=r"not 20; did you mean 0\.2\?$"):
        number(0, 0.95)("20")


@pytest.mark.parametrize("typed", ["", "  ", "\t", "a\0b"])
def test_a_name_is_never_empty(typed: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        text(typed)


# ---- every flag has one


def test_every_flag_says_what_it_takes() -> None:
    """No bare numbers or strings: those take NaN, a minus and an empty text without a word."""
    for (owner, flag), action in ACTIONS.items():
        limited = action.choices or action.type not in (None, int, float, str) or action.dest == "help"
        assert limited, f"{flag} of {owner} takes anything"


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"run"}))
def test_every_flag_of_a_command_says_what_it_takes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Action] = []

    def look(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        inner = [action.choices.values() for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        seen.extend(action for parser in (self, *itertools.chain(*inner)) for action in parser._actions)
        raise UserError("seen")

    from mammoth_sbs.commands import main

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", look)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", look)
    with pytest.raises(UserError, match="seen"):
        main([command, *(["list"] if command == "data" else ["x"])])
    for action in seen:
        limited = action.choices or action.type not in (None, int, float, str) or action.nargs == 0
        assert limited, f"{action.option_strings} takes anything"


@pytest.mark.parametrize("flag", sorted(NUMBERS))
def test_help_shows_every_range(flag: str) -> None:
    owner = next(name for name, other in ACTIONS if other == flag)
    parser = dict(parsers())[owner] if owner in get_model_names() else \
        mammoth_main.build_parser(["--model", "sgd", "--dataset", "seq-digits", "--backbone", owner])
    assert f"[{NUMBERS[flag].type.range}]" in " ".join(parser.format_help().split())  # type: ignore[union-attr]


@pytest.mark.parametrize("flag", sorted(NUMBERS))
def test_defaults_and_published_values_are_inside(flag: str) -> None:
    for (_, other), action in ACTIONS.items():
        values = action.default if isinstance(action.default, list) else [action.default]
        for value in values if other == flag else ():
            if value is not None:
                NUMBERS[flag].type.check(value, flag)  # type: ignore[union-attr]


@pytest.mark.parametrize("flag", sorted(NUMBERS))
def test_no_number_outside_its_range_is_taken(flag: str) -> None:
    owner = next(name for name, other in ACTIONS if other == flag)
    words = ["--model", owner] if owner in get_model_names() else ["--model", "sgd", "--backbone", owner]
    for value in ("nan", "inf", "1e999", "-1", "", "x"):
        with pytest.raises(UserError, match=f"^argument {flag}: [^\n]* is needed, not [^\n]*$"):
            mammoth_main.parse_args([*words, "--dataset", "seq-digits", flag, value])


# ---- the cases that were found


@pytest.mark.parametrize("flag", [
    "--optim_wd -5", "--optim_mom -1", "--optim_mom 2", "--optim_mom 1", "--lr nan", "--lr inf", f"--seed {2**64}",
    "--mlp_hidden_size 100000", "--validation 99.9", "--batch_size 1000000", "--lr_milestones -5", "--lr_milestones 0",
    "--sched_multistep_lr_gamma nan", "--stop_after 99", "--train_per_class 1000000", "--start_from 2",
    "--validation .9999", "--buffer_size 99999999999",
])
def test_flags_outside_their_range(flag: str) -> None:
    name = flag.split()[0]
    line = " ".join(flag if part.startswith(name.lstrip("-") + " ") else f"--{part}".strip()
                    for part in ER.split("--")[1:])
    line = line if flag in line else f"{line} {flag}"
    with pytest.raises(UserError, match=f"^(argument )?{name}\\b[^\n]*$"):
        mammoth_main.initialize(mammoth_main.parse_args(line.split()))


@pytest.mark.parametrize("flag", ["--model", "--dataset", "--backbone", "--base_path", "--results_path", "--ckpt_name",
                                  "--checkpoint_path", "--loadcheck", "--device", "--dataset_config", "--lr", "--seed",
                                  "--shared_first_task"])
def test_empty_values(flag: str) -> None:
    words = ER.split()
    if flag in words:
        words[words.index(flag) + 1] = ""
    else:
        words += [flag, ""]
    with pytest.raises(UserError, match=f"^argument {flag}: [^\n]*$"):
        mammoth_main.parse_args(words)


@pytest.mark.parametrize(("line", "says"), [
    (f"{ER} --sbs-q .2", "--sbs-q is a flag of the _sbs models, and --model is er; take --model er_sbs"),
    (f"{ER} --alpha 1", "--alpha is a flag of other methods, not of er: der, derpp"),
    (f"{ER.replace('er ', 'gem_sbs ')} --sbs-during x", "--sbs-during is a flag of other methods, not of gem-sbs: "),
    (f"{ER} --num_filters 8", "--num_filters is a flag of other networks, not of mnistmlp: "),
    ("--model sgd --dataset seq-digits --lr 1 --buffer_size 3", "--buffer_size is a flag of other methods, not of sgd"),
    (f"{ER} --no_such_flag 8", "unknown flag --no_such_flag"),
    ("--model xyzzy --dataset seq-digits", "--model xyzzy: not known. There are: agem, "),
    ("--model er --dataset seq-digit", "--dataset seq-digit: not known; did you mean seq-digits? There are: "),
])
def test_flags_of_others_are_named_as_such(line: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        mammoth_main.parse_args(line.split())
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(("flags", "says"), [
    ("--optimizer adam --optim_mom .9", "--optim_mom, --optim_nesterov change nothing with --optimizer adam"),
    ("--lr_milestones 3", "change nothing without --lr_scheduler multisteplr"),
    ("--optim_mom .9 --lr_scheduler multisteplr --lr_milestones 3", ""),
])
def test_host_flags_that_change_nothing_are_named(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    mammoth_main.initialize(mammoth_main.parse_args(f"{ER} {flags}".split()))
    out = capsys.readouterr().out
    assert (f"warning: {says}" in out or f"{says}\n" in out) if says else "warning" not in out


def test_a_sweep_says_it_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for value, line in (("momentum: [0.5]", 3), ("optim_mom: [0.5, 2]", 3), ("lr_milestones: [[3, -5]]", 3)):
        file.write_text(f"base: {ER}\ngrid:\n  {value}\n", encoding="utf-8")
        with pytest.raises(UserError, match=f"^{file}, line {line}: [^\n]*$"):
            resolve(read_config(file))


@pytest.mark.parametrize("config", sorted((REPO / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_all_configurations_are_still_inside(config: Path) -> None:
    assert resolve(read_config(config))


def test_whole_numbers_have_no_end_and_others_end_where_floats_do() -> None:
    huge = 10**400
    assert at_least(1).holds(huge) and not at_least(1).holds(-huge)
    assert not number(0).holds(huge) and number(0).holds(10**300)
