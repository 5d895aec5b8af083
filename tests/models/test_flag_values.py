"""The flags that every `_sbs` model adds: what they take, what they are if not given, and which change nothing."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

import pytest

from mammoth_sbs import host
from mammoth_sbs.core.streams import STREAM_SAMPLERS
from mammoth_sbs.models.flags import (
    DEFAULT,
    GRID,
    MOST,
    OPEN,
    add_record_args,
    add_sbs_args,
    add_stream_args,
    adder,
    unused,
    unused_in_streams,
)


def a_parser(each_step: bool = True) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    add_sbs_args(parser, each_step)
    add_stream_args(parser)
    add_record_args(parser)
    return parser


def parsed(flags: str = "", each_step: bool = True) -> Namespace:
    return a_parser(each_step).parse_args(flags.split())


def test_what_the_flags_are_if_they_are_not_given() -> None:
    assert (DEFAULT, MOST, GRID) == (0.2, 0.95, (0, 0.2, 0.4, 0.6))  # the paper's SBS-fix
    assert OPEN == ("auto", "rule", "share")
    assert vars(parsed()) == {
        "sampler": "speed", "sbs_q": 0.2, "sbs_s": 0.2, "sbs_grid": [0, 0.2, 0.4, 0.6], "sbs_tune": "first",
        "sbs_tune_epochs": None, "sbs_score": "speed", "sbs_scope": "task", "sbs_during": "closed",
        "sbs_look": None, "sbs_looks": None, "sbs_band": None, "sbs_near": None,
        "sbs_record": None, "sbs_record_every": None, "sbs_record_tasks": None, "sbs_record_scores": None}
    assert "sbs_during" not in parsed(each_step=False)


@pytest.mark.parametrize(("flags", "value"), [
    ("--sbs-q 0", 0), ("--sbs-s 0", 0), ("--sbs-q .95", 0.95), ("--sbs-q rule", "rule"), ("--sbs-s auto", "auto"),
    ("--sbs-grid 0 .95", [0, 0.95]), ("--sbs-tune-epochs 1", 1), ("--sbs-near 0", 0), ("--sbs-record-every 1", 1),
    ("--sbs-record-tasks 1", 1), ("--sbs-tune each", "each"), ("--sbs-score el2n", "el2n"),
    ("--sbs-scope seen", "seen"), ("--sbs-during stock", "stock"), ("--sbs-look margin", "margin"),
    ("--sbs-looks replay", "replay"), ("--sbs-band both", "both"), ("--sbs-record r.npz", "r.npz"),
    ("--sbs-record-scores loss c-score", ["loss", "c-score"])])
def test_what_the_flags_take(flags: str, value: Any) -> None:
    name = flags.split()[0].removeprefix("--").replace("-", "_")
    assert getattr(parsed(flags), name) == value


@pytest.mark.parametrize(("flag", "value"), [
    ("--sbs-q", "-.01"), ("--sbs-s", ".96"), ("--sbs-grid", "-.01"), ("--sbs-grid", ".96"), ("--sbs-tune-epochs", "0"),
    ("--sbs-near", "-1"), ("--sbs-record-every", "0"), ("--sbs-record-tasks", "0"), ("--sbs-record", " ")])
def test_what_they_do_not_take(flag: str, value: str) -> None:
    (action,) = [action for action in a_parser()._actions if flag in action.option_strings]
    with pytest.raises(ArgumentTypeError):
        action.type(value)  # type: ignore[operator, misc]


def test_the_help_names_the_samplers_of_streams_where_they_can_be_used() -> None:
    for each_step in (True, False):
        text = " ".join(a_parser(each_step).format_help().split())
        assert ("; at every step: stream-reservoir," in text) is each_step
        assert "fraction of quickest learned examples" in text and "fraction of slowest learned examples" in text


def test_on_mammoth_a_flag_is_written_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for embedded in (True, False):
        parser = ArgumentParser(add_help=False)
        monkeypatch.setattr(host, "is_embedded", lambda embedded=embedded: embedded)
        for flag in ("--sampler", "--sbs-tune-epochs"):
            adder(parser)(flag, default=3)
        written[embedded] = [action.option_strings for action in parser._actions]
        assert parser.parse_args([]) == Namespace(sampler=3, sbs_tune_epochs=3)
    assert written == {True: [["--sampler"], ["--sbs-tune-epochs"]],
                       False: [["--sampler"], ["--sbs-tune-epochs", "--sbs_tune_epochs"]]}


# ---- flags that change nothing

BOTH, NEITHER = frozenset("qs"), frozenset[str]()


@pytest.mark.parametrize(("flags", "takes", "ranks", "lines"), [
    ("", BOTH, True, []), ("", NEITHER, False, []), ("--sbs-q .3 --sbs-s .3 --sbs-score loss", BOTH, True, []),
    ("--sbs-q .3 --sampler x", NEITHER, True, ["--sbs-q changes nothing with --sampler x"]),
    ("--sbs-q .3 --sbs-s .3", frozenset("s"), True, ["--sbs-q changes nothing with --sampler speed"]),
    ("--sbs-q .3 --sbs-s .4", NEITHER, True, ["--sbs-q, --sbs-s changes nothing with --sampler speed"]),
    ("--sbs-score loss", BOTH, False, ["--sbs-score changes nothing with --sampler speed"]),
    ("--sbs-grid .1 --sbs-tune each --sbs-tune-epochs 2", BOTH, True,
     ["--sbs-grid, --sbs-tune, --sbs-tune-epochs changes nothing without auto or rule"]),
    ("--sbs-grid .1 --sbs-q auto", BOTH, True, []), ("--sbs-grid .1 --sbs-s rule", BOTH, True, []),
    ("--sbs-q .3 --sbs-score loss --sbs-grid 0", NEITHER, False,
     ["--sbs-q changes nothing with --sampler speed", "--sbs-score changes nothing with --sampler speed",
      "--sbs-grid changes nothing without auto or rule"])])
def test_flags_that_a_sampler_does_not_use(flags: str, takes: frozenset[str], ranks: bool, lines: list[str]) -> None:
    assert unused(parsed(flags), takes, ranks) == lines


@pytest.mark.parametrize(("sampler", "flags", "named"), [
    ("speed", "", ""), ("speed", "--sbs-q .3 --sbs-score loss --sbs-tune each --sbs-during stock", ""),
    ("speed", "--sbs-look p --sbs-near 0", "--sbs-look, --sbs-near"),
    ("stream-speed", "--sbs-q .3 --sbs-s .1 --sbs-look p --sbs-looks both --sbs-band both --sbs-near 3", ""),
    ("stream_speed", "--sbs-q .3 --sbs-look p", ""),
    ("stream-speed", "--sbs-score loss --sbs-during stock --sbs-scope seen --sbs-grid 0 --sbs-tune each "
                     "--sbs-tune-epochs 2",
     "--sbs-score, --sbs-during, --sbs-scope, --sbs-grid, --sbs-tune, --sbs-tune-epochs"),
    ("stream_cbrs", "", ""), ("stream_cbrs", "--sbs-s .3 --sbs-score loss", "--sbs-score, --sbs-s"),
    ("stream-cbrs", "--sbs-q .3 --sbs-band both", "--sbs-band, --sbs-q")])
def test_flags_that_a_stream_does_not_use(sampler: str, flags: str, named: str) -> None:
    lines = unused_in_streams(parsed(f"--sampler {sampler} {flags}"))
    assert lines == ([f"{named} changes nothing with --sampler {sampler}"] if named else [])
    assert sampler == "speed" or sampler.replace("_", "-") in STREAM_SAMPLERS
