"""The tables of docs/streams.md come out of the committed runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from mammoth_sbs.commands import main
from mammoth_sbs.figures.bars import collect
from mammoth_sbs.figures.results import load, measures
from mammoth_sbs.figures.statistics import Mean, compare, paired, probability
from tests.conftest import REPO

PAGE = "".join((REPO / "docs" / name).read_text(encoding="utf-8") for name in ("streams.md", "pilots.md"))
README = (REPO / "README.md").read_text(encoding="utf-8")
RESERVOIR, SPEED = "stream-reservoir", "stream-speed q=0 s=0.6, band both"
BALANCED = "stream-speed q=0.2 s=0.2, band both"
NEAR = "band both, near 20"
SCRATCH = {"CIFAR-10": f"stream-speed q=0.2 s=0.2, {NEAR}", "CIFAR-100": f"stream-speed q=0 s=0.4, {NEAR}"}
LATER = ("streams_confirm_frozen_cifar10_balanced", "streams_confirm_cifar10", "streams_confirm_cifar100")  # seeds
MEASURES = [measure for pair in zip(measures("anytime"), measures("final"), strict=True) for measure in pair]


def charts(name: str, seeds: set[int], arms: tuple[str, ...] = (), **where: str) -> list[dict]:
    """By measure: what each method reached with each arm, seed by seed."""
    runs = load([REPO / "results" / name], where=where.items())
    runs = [run for run in runs if not arms or run.arm in arms]
    assert {run.seed for run in runs} == seeds
    return [next(iter(collect(runs, measure).values())) for measure in MEASURES]


def confirmation(name: str, buffer: str, what: str = "", speed: str = SPEED) -> Iterator[list[str]]:
    """A row for each method and measure: both means, and what is known of the difference."""
    seeds = set(range(210, 220)) if name in LATER else set(range(200, 210))
    found = charts(name, seeds, (RESERVOIR, speed), buffer_size=buffer)
    for method in found[0]:
        for measure, chart in zip(MEASURES, found, strict=True):
            arms = chart[method]
            change = paired(arms[speed], arms[RESERVOIR])
            means = [Mean.of(arms[arm].values()).text() for arm in (RESERVOIR, speed)]
            yield [what or f"{method}, {int(buffer):,}", measure.title.replace(" accuracy", ""), *means,
                   change.text(sign=True), change.span(), change.better(), probability(change.p)]


def designs(name: str, seeds: set[int], **where: str) -> Iterator[list[str]]:
    """A row for each arm of ER: by measure, how far it is ahead of the reservoir."""
    found = charts(name, seeds, **where)
    for arm in found[0]["ER"]:
        if arm != RESERVOIR:
            yield [arm, *(compare(chart, arm, RESERVOIR)["ER"].text(sign=True) for chart in found)]


def rivals(folders: tuple[str, ...], seeds: set[int], method: str, buffer: str, **where: str) -> Iterator[list[str]]:
    """A row for each sampler, on the seeds that all have: by measure, how far it is ahead of the reservoir."""
    runs = load([REPO / "results" / name for name in folders], where=[("buffer_size", buffer), *where.items()])
    found = [next(iter(collect(runs, measure, common=True).values())) for measure in MEASURES]
    assert set(found[0][method][RESERVOIR]) == seeds
    for arm in found[0][method]:
        if arm != RESERVOIR:
            changes = [compare(chart, arm, RESERVOIR)[method].text(sign=True) for chart in found]
            yield [f"{method}, {int(buffer):,}", arm, *changes]


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


CONFIRMED = [("streams_confirm_cifar100", SCRATCH["CIFAR-100"]), ("streams_confirm_cifar10", SCRATCH["CIFAR-10"]),
             ("streams_confirm_frozen", SPEED), ("streams_confirm_frozen_cifar10", SPEED),
             ("streams_confirm_frozen_cifar10_balanced", BALANCED)]


def test_the_summary() -> None:
    """Of the eight rows of each table, how many are ahead of the reservoir by two standard errors, and behind."""
    for name, speed in CONFIRMED:
        cells = []
        for buffer in ("500", "2000"):
            found = charts(name, set(range(210, 220) if name in LATER else range(200, 210)), (RESERVOIR, speed),
                           buffer_size=buffer)
            changes = [paired(arms[speed], arms[RESERVOIR]) for chart in found for arms in chart.values()]
            ahead, behind = (sum(sign * change.mean > 2 * change.error for change in changes) for sign in (1, -1))
            counts = {"ahead in": ahead, "even in": len(changes) - ahead - behind, "behind in": behind}
            means = sorted(change.mean for change in changes)
            cells.append(f"{', '.join(f'{word} {n}' for word, n in counts.items() if n)}: "
                         f"{means[0]:+.2f} to {means[-1]:+.2f}")
        assert f"{line(cells)[2:]}\n" in PAGE


def forgotten(name: str, speed: str, buffer: str) -> list[str]:
    """By setting and method: how much less is forgotten than with the reservoir."""
    runs = [run for run in load([REPO / "results" / name], where=[("buffer_size", buffer)])
            if run.arm in (RESERVOIR, speed)]
    (found,) = zip(*(collect(runs, measure).values() for measure in measures("forgetting")), strict=True)
    return [paired(arms[speed], arms[RESERVOIR]).text(sign=True) for chart in found for arms in chart.values()]


@pytest.mark.parametrize(("name", "speed"), CONFIRMED)
def test_the_table_of_forgetting(name: str, speed: str) -> None:
    for buffer in ("500", "2000"):
        assert f"| {int(buffer):,} {line(forgotten(name, speed, buffer))}\n" in PAGE


@pytest.mark.parametrize("buffer", ["500", "2000"])
@pytest.mark.parametrize(("name", "speed"), CONFIRMED)
def test_the_confirmation(name: str, speed: str, buffer: str) -> None:
    rows = list(confirmation(name, buffer, speed=speed))
    assert len(rows) == 8
    for row in rows:
        assert line(row) in PAGE
        if name.removeprefix("streams_confirm_") in ("frozen", "cifar100") and (row[1], buffer) == (
                "final Class-IL", "500"):
            assert f"{row[4].lstrip('+')} points ({row[0].partition(',')[0]})" in README


@pytest.mark.parametrize(("name", "what"), [
    ("blurry", "blurred"), ("drift", "drifting"), ("imbalance", "long-tailed"), ("noise", "noisy")])
def test_other_streams(name: str, what: str) -> None:
    for row in confirmation(f"streams_confirm_{name}", "500", what):
        assert line(row) in PAGE
        if what == "noisy" and row[1].startswith("final"):
            assert row[4].lstrip("+") in README


@pytest.mark.parametrize(("name", "what"), [
    ("blurry", "blurred"), ("drift", "drifting"), ("imbalance", "long-tailed"), ("noise", "noisy")])
def test_the_rivals_on_other_streams(name: str, what: str) -> None:
    """And who is ahead: the class-balanced reservoir with a long tail, else `stream-speed`, or nobody."""
    found = charts(f"streams_confirm_{name}", set(range(200, 210)))
    rows = list(designs(f"streams_confirm_{name}", set(range(200, 210))))
    assert len(rows) == 4
    for row in rows:
        assert line([what, *row]) in PAGE
    changes = [{arm: compare(chart, arm, RESERVOIR)["ER"] for arm in set(chart["ER"]) - {RESERVOIR}} for chart in found]
    best = [max(arms, key=lambda arm: arms[arm].mean) for arms in changes]
    assert best == 4 * ["stream-cbrs" if name == "imbalance" else SPEED]
    nobody = [all(change.mean < 2 * change.error for change in arms.values()) for arms in changes]
    assert nobody == [False, False, False, name == "blurry"]


def file(name: str, data: str) -> str:
    return f"streams_{name}_{data.lower().replace('-', '')}"


@pytest.mark.parametrize("data", SCRATCH)
def test_the_rivals_from_scratch(data: str) -> None:
    """On CIFAR-10 nobody is ahead; on CIFAR-100 only `stream-speed` is."""
    folders = (file("confirm", data), "streams_rivals")
    rows = list(rivals(folders, set(range(210, 220)), "ER", "500", model="er_sbs",
                       dataset=f"seq-{data.lower().replace('-', '')}"))
    assert len(rows) == 4
    for _, arm, *cells in rows:
        assert line([data, arm, *cells]) in PAGE
        ahead = [float(mean) > 2 * float(error) for mean, error in (cell.split(" ± ") for cell in cells)]
        assert any(ahead) == (arm == SCRATCH["CIFAR-100"] and data == "CIFAR-100")


@pytest.mark.parametrize("data", SCRATCH)
def test_the_first_look_from_scratch(data: str) -> None:
    (row,) = designs(file("first_look", data), {200, 201, 202})
    assert row[0] == BALANCED and line([data, *row[1:]]) in PAGE


@pytest.mark.parametrize(("name", "data", "buffer", "seeds"), [
    ("streams_slots", "CIFAR-10", 50, range(220, 226)), ("streams_pilot_full", "CIFAR-10", 500, range(100, 103)),
    ("streams_confirm_cifar100", "CIFAR-100", 500, range(210, 220)),
    ("streams_confirm_cifar100", "CIFAR-100", 2000, range(210, 220)),
    ("streams_slots", "CIFAR-100", 5000, range(220, 226))])
def test_the_slots_per_class(name: str, data: str, buffer: int, seeds: range) -> None:
    """Leaving out the slow, ER from scratch, with ever more slots per class."""
    found = designs(name, set(seeds), dataset=f"seq-{data.lower().replace('-', '')}", buffer_size=str(buffer))
    ((_, *changes),) = [row for row in found if row[0] == SCRATCH["CIFAR-100"]]
    slots = str(buffer // int(data.partition("-")[2]))
    assert line([slots, f"{data}, {buffer:,}", str(len(seeds)), *changes]) in PAGE


@pytest.mark.parametrize("data", SCRATCH)
def test_the_pilot_from_scratch(data: str) -> None:
    """Of the designs that were run with both buffers, the one with the largest mean of all eight was taken."""
    means: dict[str, list[float]] = {}
    for buffer in ("500", "2000"):
        for row in designs("streams_pilot_full", {100, 101, 102}, dataset=f"seq-{data.lower().replace('-', '')}",
                           buffer_size=buffer):
            assert line([f"{data}, {int(buffer):,}", *row]) in PAGE
            means.setdefault(row[0], []).append(sum(float(cell.partition(" ")[0]) for cell in row[1:]))
    assert max((arm for arm in means if len(means[arm]) == 2), key=lambda arm: sum(means[arm])) == SCRATCH[data]


@pytest.mark.parametrize("buffer", ["500", "2000"])
def test_the_rivals(buffer: str) -> None:
    names = ("streams_confirm_frozen", "streams_rivals_frozen")
    rows = [row for method in ("ER", "DER++") for row in rivals(names, set(range(200, 210)), method, buffer)]
    assert len(rows) == 8
    for row in rows:
        assert line(row) in PAGE


def test_the_picture(tmp_path: Path) -> None:
    """By the command beside it."""
    assert "figure bars results/streams_confirm_frozen --where buffer_size=500 -o docs/figures/streams" in PAGE
    main(["figure", "bars", str(REPO / "results" / "streams_confirm_frozen"), "--where", "buffer_size=500",
          "-o", str(tmp_path)])
    for setting in ("task_il", "class_il"):
        name = f"bars_{setting}.csv"
        assert (tmp_path / name).read_text() == (REPO / "docs" / "figures" / "streams" / name).read_text()


def test_the_curves(tmp_path: Path) -> None:
    """By the command beside them; the last point of a curve is the final accuracy."""
    results = ["streams_confirm_cifar100", "streams_confirm_cifar10"]
    command = ["figure", "curves", *(f"results/{name}" for name in results), "--where", "buffer_size=500", "-o"]
    assert " ".join([*command, "docs/figures/streams"]) in PAGE
    main([part if not part.startswith("results/") else str(REPO / part) for part in command] + [str(tmp_path)])
    for setting in ("task_il", "class_il"):
        name = f"curves_{setting}.csv"
        drawn = (tmp_path / name).read_text()
        assert drawn == (REPO / "docs" / "figures" / "streams" / name).read_text()
        (measure,) = (measure for measure in measures("final") if measure.setting == setting)
        for dataset, chart in collect(load([REPO / "results" / name for name in results],
                                           where=[("buffer_size", "500")]), measure).items():
            for method, arms in chart.items():
                for arm, seeds in arms.items():
                    last = [row for row in csv.DictReader(drawn.splitlines()) if row["arm"] == arm
                            and row["method"] == method and row["dataset"] == dataset][-1]
                    assert float(last["mean"]) == pytest.approx(Mean.of(seeds.values()).mean)


@pytest.mark.parametrize(("name", "seeds", "where", "taken"), [
    ("streams_pilot_frozen", 4, {}, SPEED), ("streams_pilot", 6, {}, BALANCED),
    ("streams_pilot_frozen_large", 4, {"dataset": "seq-cifar10"}, BALANCED),
    ("streams_pilot_frozen_large", 4, {"dataset": "seq-cifar100"}, "stream-speed q=0 s=0.4, band both")])
def test_the_pilots(name: str, seeds: int, where: dict[str, str], taken: str) -> None:
    """Designs less the reservoir; the one with the largest mean of the four was taken, if any."""
    rows = list(designs(name, set(range(100, 100 + seeds)), **where))
    for row in rows:
        assert line(row) in PAGE
    assert max(rows, key=lambda row: sum(float(cell.partition(" ")[0]) for cell in row[1:]))[0] == taken
