"""`mammoth-sbs demo`: three arms beside each other, drawn twice, and a verdict that follows the numbers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mammoth_sbs.commands import demo, main
from mammoth_sbs.core.band import SpeedBand
from mammoth_sbs.core.speed import Learned


def test_the_demonstration_trains_draws_and_says_what_to_type_next(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    main(["demo", "--seeds", "2"])
    out = capsys.readouterr().out
    rows = re.findall(r"^  (stock|uniform|SBS) +(\d+\.\d) ± (\d+\.\d) +(\d+\.\d)$", out, re.M)
    assert [row[0] for row in rows] == ["stock", "uniform", "SBS"]
    assert all(float(forgotten) > 5 for *_, forgotten in rows)  # forgetting is real
    gain = float(re.search(r"seed by seed: ([+-]\d+\.\d)", out)[1])  # type: ignore[index]
    assert gain == pytest.approx(float(rows[2][1]) - float(rows[1][1]), abs=0.11)
    assert "█" in out and "░" in out and re.search(r"left out as slowest:  \d+ of digit \d", out)
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG"
    command = out.strip().splitlines()[-1]
    assert command.startswith("  mammoth-sbs run --model derpp_sbs --dataset seq-cifar10")


def test_the_histogram_shows_every_example_once() -> None:
    speed = torch.tensor([1.0] * 6 + [0.5] * 3 + [0.0])
    learned = Learned(1, speed, torch.arange(10) % 2, torch.arange(10), torch.arange(2), SpeedBand(0.2, 0.2), {})
    split = demo.parts(learned)
    assert demo.counts(learned, split) == [(1.0, 2, 4), (0.5, 1, 2), (0.0, 1, 0)]
    lines = demo.histogram(learned, split).splitlines()[1:]
    assert lines[0] == "  1.0 " + "█" * 33 + "░" * 17 + " 6" and lines[2].split() == ["0.0", "░" * 8, "1"]


@pytest.mark.parametrize(("gains", "said"), [([3.0, 3.2, 2.9], "is felt"), ([-3.0, 3.2, 0.1], "too easy")])
def test_the_verdict_follows_the_numbers(gains: list[float], said: str) -> None:
    def runs(finals: list[float]) -> list:
        return [SimpleNamespace(class_il=SimpleNamespace(final=final)) for final in finals]

    assert said in demo.verdict({"uniform": runs([70.0] * 3), "SBS": runs([70 + gain for gain in gains])})
