"""Whole maps over (q, s): whether two rank the pairs alike, how many pairs beat uniform, and the figures of both."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.agreement import agreement, over_other_seeds, ranks_alike, share_above
from mammoth_sbs.figures.following import listed, named
from mammoth_sbs.figures.results import load
from mammoth_sbs.figures.robustness import titles
from tests.figures.conftest import Put, draw, rows_of

PAIRS = [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0), (0.2, 0.2), (0.4, 0.2)]


def one_map(*seeds: list[float]) -> dict:
    """A map from the accuracies of each seed, in the order of PAIRS."""
    return {pair: {seed: values[i] for seed, values in enumerate(seeds)} for i, pair in enumerate(PAIRS)}


# ---- statistics


def test_rank_correlation_row_by_row() -> None:
    found = ranks_alike(np.array([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 1, 1]], float),
                        np.array([[1, 5, 6, 90], [4, 3, 2, 1], [1, 3, 2, 4], [1, 2, 3, 4]], float))
    assert found[:3] == pytest.approx([1, -1, 0.8])  # 1 - 6 * 2 / (4 * 15)
    assert np.isnan(found[3])  # all alike: no ranks


def test_maps_agree_by_the_ranks_of_their_means() -> None:
    rising, falling = one_map([50, 51, 52, 53, 60], [40, 41, 42, 43, 44]), one_map([9, 8, 7, 6, 5], [5, 4, 3, 2, 1])
    same = agreement(rising, rising)
    assert (same.pairs, same.seeds) == (5, 2) and same.rank_correlation.value == pytest.approx(1)
    against = agreement(rising, falling).rank_correlation
    assert against.value == against.low == against.high == pytest.approx(-1)  # in every draw of the seeds


def test_the_interval_is_over_seeds_and_knows_when_they_disagree() -> None:
    """Two of three seeds say yes: an interval over the five cells would not know of the third."""
    reference = one_map(*[[1, 2, 3, 4, 5]] * 3)
    torn = one_map([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1])
    found = agreement(reference, torn).rank_correlation
    assert found.value == pytest.approx(1) and found.low == pytest.approx(-1) and found.high == pytest.approx(1)
    alone = agreement(one_map([1, 2, 3, 4, 5]), one_map([1, 3, 2, 4, 5]))
    assert alone.rank_correlation.value == pytest.approx(0.9) and alone.rank_correlation.low is None
    assert alone.other_seeds is None and alone.rank_correlation.text() == "+0.90"


def test_only_pairs_and_seeds_that_both_have_count() -> None:
    one, other = one_map([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), one_map([1, 2, 3, 4, 5])
    del other[0.4, 0.2]
    found = agreement(one, other)
    assert (found.pairs, found.seeds) == (4, 1)
    assert agreement(one, {pair: other[pair] for pair in PAIRS[:2]}).rank_correlation.value is None  # two points


def test_luck_that_seeds_share_makes_maps_agree_and_other_seeds_do_not() -> None:
    """Neither map has a shape; in each seed both have the same noise."""
    noise = np.random.default_rng(1).normal(size=(40, 13))
    assert ranks_alike(noise.mean(0), noise.mean(0)) == pytest.approx(1)
    assert abs(over_other_seeds(noise, noise)) < 0.3
    shape = np.arange(13) * 2.0
    assert over_other_seeds(noise + shape, noise + shape) > 0.9


def test_share_of_pairs_above_uniform() -> None:
    found = one_map([50, 51, 49, 53, 50], [50, 53, 49, 51, 50])
    share = share_above(found, (0.0, 0.0))
    assert share.value == share.low == share.high == 0.5  # equal to uniform is not above it
    assert share_above(found, (0.0, 0.0), higher=False).value == 0.25
    torn = share_above(one_map([50, 60, 60, 60, 60], [50, 45, 45, 45, 45]), (0.0, 0.0))
    assert (torn.value, torn.low, torn.high) == (1, 0, 1)
    assert share_above(one_map([50, 51, 49, 53, 50]), (0.0, 0.0)).low is None  # one seed


# ---- following


def test_classes_in_words() -> None:
    assert listed("0-2,7,cat") == ["0", "1", "2", "7", "cat"] and listed("3-1,9") == ["3", "2", "1", "9"]
    assert listed("4-2-0") == ["4", "2", "0"]  # Mammoth's own spelling
    assert named(["0", "1", "2", "7", "cat"]) == "0-2 7 cat"
    assert named([str(i) for i in range(0, 40, 2)]) == "20 classes (0 2 4 6 8 ...)"


def put_map(put: Put, shape: dict, seeds: tuple[int, ...] = (0, 1), **flags: object) -> None:
    for seed, (pair, value) in product(seeds, shape.items()):
        put("er_sbs", seed, value + seed, tasks=2, sbs_q=pair[0], sbs_s=pair[1], dataset="seq-cifar100", max_classes=20,
            **flags)


RISING = dict(zip(PAIRS, [50.0, 51, 52, 53, 54], strict=True))
FALLING = dict(zip(PAIRS, [50.0, 49, 48, 47, 46], strict=True))


def test_each_two_following_tasks_are_compared(folder: Path, put: Put) -> None:
    put_map(put, RISING)
    put_map(put, {pair: value / 2 for pair, value in RISING.items()}, custom_class_order="0-9,20-29")
    put_map(put, FALLING, second_task="rotations")
    put_map(put, RISING, second_task="random-labels")
    out = draw("following", folder)
    rows = {(row["one"], row["other"]): row for row in rows_of(out / "following_task_il_agreement.csv")}
    b, c, rotated, labels = "0-9 → 10-19", "0-9 → 20-29", "0-9 → 0-9 rotated", "0-9 → 10-19, random labels"
    assert len(rows) == 10
    assert float(rows[b, c]["rank_correlation"]) == pytest.approx(1) and rows[b, c]["seeds"] == "2"
    assert float(rows[rotated, b]["rank_correlation"]) == float(rows[rotated, b]["low"]) == pytest.approx(-1)
    assert rows[labels, labels]["rank_correlation"] == ""  # with itself it says nothing
    assert float(rows[labels, labels]["over_other_seeds"]) == pytest.approx(1)
    assert {row["panel"] for row in rows_of(out / "following_task_il.csv")} == {b, c, rotated, labels}
    drawn = re.findall(r"<text[^>]*>([^<]+)</text>", (out / "following_task_il_agreement.svg").read_text())
    assert {"0-9 followed by", "−1.00", "+1.00"} <= set(drawn)
    assert (out / "following_class_il.png").is_file()


def test_only_what_follows_the_same_task_is_compared(folder: Path, put: Put) -> None:
    put_map(put, RISING)
    put_map(put, FALLING, custom_class_order="10-19,0-9")
    with pytest.raises(UserError, match=r"^following: every first task is followed by one task only \(0-9 → 10-19; 10"):
        draw("following", folder)
    put("er_sbs", 0, 60.0, sbs_q=0, sbs_s=0)
    with pytest.raises(UserError, match=r"^following: run \w+ is of CIFAR-10-5; this figure is of one task"):
        draw("following", folder)


# ---- robustness


USUAL = {"optimizer": "sgd", "optim_wd": 0.0005, "optim_mom": 0.9}


def test_settings_are_named_by_what_differs_from_the_reference(folder: Path, put: Put) -> None:
    one = {PAIRS[0]: 50.0}
    put_map(put, one, **USUAL)
    put_map(put, one, **USUAL | {"optimizer": "adam", "lr": 0.001, "optim_wd": 0.0001, "optim_mom": 0.0})
    put_map(put, one, **USUAL | {"optim_wd": 0.0})
    put_map(put, one, **USUAL | {"n_epochs": 2})
    put_map(put, one, **USUAL | {"lr": 0.2})
    put_map(put, one, **USUAL, lr_later=[0.01])
    put_map(put, one, **USUAL | {"backbone": "vgg16"})
    put_map(put, one, **USUAL, custom_class_order="3-12,0-2,13-19")
    assert sorted(titles(load([folder])).values()) == [
        "2 epochs", "Adam", "VGG-16", "another split", "learning rate 0.2", "no weight decay", "reference",
        "second task's rate 0.01"]


def test_each_setting_has_its_share_and_how_alike_it_is_to_the_reference(folder: Path, put: Put) -> None:
    put_map(put, RISING, **USUAL)
    put_map(put, RISING, **USUAL | {"optim_wd": 0.0})
    put_map(put, FALLING, **USUAL | {"lr": 0.2})
    out = draw("robustness", folder)
    rows = {row["setting"]: row for row in rows_of(out / "robustness_task_il_shares.csv")}
    assert list(rows) == ["reference", "learning rate 0.2", "no weight decay"]
    same, against = rows["no weight decay"], rows["learning rate 0.2"]
    assert (same["above"], same["pairs"], same["share"]) == ("4", "4", "1.0")
    assert (against["above"], against["share_high"]) == ("0", "0.0")
    assert float(same["default_pair"]) == 3 and float(against["default_pair"]) == -3  # q = s = .2
    assert float(same["reference_rank_correlation"]) == pytest.approx(1)
    assert float(against["reference_rank_correlation"]) == pytest.approx(-1)
    assert rows["reference"]["reference_rank_correlation"] == ""
    assert "| no weight decay | 2 | 4 of 4 | 100% (100% to 100%) | +3.00 (+3.00 to +3.00) |" in (
        out / "robustness_task_il.md").read_text()
    assert "4 of 4 above uniform" in (out / "robustness_task_il.svg").read_text()


def test_robustness_is_of_one_data_set(folder: Path, put: Put) -> None:
    put_map(put, RISING)
    put("er_sbs", 0, 60.0)
    with pytest.raises(UserError, match=r"^robustness: the runs are of CIFAR-10-5, CIFAR-100-2; pick one with --where"):
        draw("robustness", folder)
