"""`mammoth-sbs run`: before a long run it says how long, and the run does not feel that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.experiments import duration

RUN = ("run --model derpp_sbs --dataset seq-digits --buffer_size 50 --n_epochs 2 --stop_after 2 --seed 1 --lr 0.1 "
       "--backbone small-resnet18 --num_filters 2")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def results() -> list[dict]:
    return [json.loads(file.read_text())["results"] for file in Path().rglob("results/**/*.json")]


def test_nothing_is_said_of_a_short_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "calibrate", lambda *_: pytest.fail("a short run is not measured"))
    main(RUN.split())
    assert "this will take" not in capsys.readouterr().out


def test_a_long_run_says_how_long_and_is_the_same_run(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    main(RUN.split())
    before = capsys.readouterr().out
    monkeypatch.setattr(duration, "LONG", 0.0)
    main(f"{RUN} --sbs-record a.npz --savecheck last".split())
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert re.fullmatch(r"this will take about 0:00:\d\d at this machine's speed \(a few steps were timed\); "
                        r"--backbone tiny-resnet18 or a GPU would change that", first)
    assert rest.split("Accuracy")[1] == before.split("Accuracy")[1]
    one, other = results()
    assert one == other
    (file,) = Path("checkpoints").glob("*.pt")
    assert re.fullmatch(r"derpp-sbs_seq-digits_None_50_2_1_[0-9a-f]{8}_last\.pt", file.name)


@pytest.mark.parametrize(("flags", "said"), [("--sbs-q auto", ", and the search for q and s beside"),
                                             ("--non_verbose 1", None)])
def test_what_else_is_said(
        flags: str, said: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "LONG", 0.0)
    duration.announce(f"{RUN} {flags}".split()[1:])
    out = capsys.readouterr().out
    assert (said in out) if said else not out
    assert not list(Path().iterdir())  # the measurement leaves nothing behind
