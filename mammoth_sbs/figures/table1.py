"""Table 1: samplers of the buffer against each other, the paper's numbers beside ours.

A column of ours and one of the paper's belong together if the data set is split alike and the buffer holds the same
share of the training examples: 2% is 1k of CIFAR's 50,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.output import (
    columns,
    difference_table,
    drawing,
    note_below,
    panels,
    rows_of,
    write_csv,
    write_tables,
)
from mammoth_sbs.figures.results import (
    DATASETS,
    FIXED,
    SAMPLERS,
    STOCK,
    TUNED,
    Measure,
    Run,
    arms,
    group,
    measures,
)
from mammoth_sbs.figures.statistics import Difference, Mean, Seeds, corrected, paired

BY_SHARE = "SBS share"  # the paper's SBS stands beside it too: in both q and s are chosen for the setting
ROWS = (*SAMPLERS.values(), FIXED, TUNED, BY_SHARE)
BASE = SAMPLERS["uniform"]
EXAMPLES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "TinyImageNet": 100_000}  # what the paper's buffers are a share of
A_ROW = 5  # panels beside each other, at the most
NOTE = "Bars: mean paired difference over seeds, whiskers its 95% interval (bootstrap over seeds)."
Table = dict[str, dict[str, Seeds]]  # column to sampler to seeds
Changes = dict[str, dict[str, Difference]]  # column to sampler to its difference to Random


@cache
def paper() -> dict[str, Any]:
    """The paper's tables."""
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))


def papers_column(measure: Measure, dataset: str, share: float) -> tuple[str, dict[str, float]]:
    """The paper's column for a split and a buffer's share of its data: title, and numbers by sampler if it has any."""
    if measure.metric != "final":
        return "", {}
    for j, column in enumerate(paper()["columns"]):
        split, size = column.rsplit(" ", 1)
        of = EXAMPLES[split.rsplit("-", 1)[0]]
        if split == dataset and abs(1000 * int(size.removesuffix("k")) / of - share) < 0.05 * share:
            numbers = {name: row[j] for name, row in paper()[measure.setting].items() if row[j] is not None}
            return size, numbers | ({BY_SHARE: numbers[TUNED]} if TUNED in numbers else {})
    return "", {}


def collect(runs: Sequence[Run], measure: Measure, common: bool = False) -> Table:
    """By column (data set and buffer): numbers by sampler and seed."""
    sampled = [run for run in runs if run.arm != STOCK]
    methods = sorted({run.method for run in sampled})
    if len(methods) > 1:
        raise UserError(f"samplers: runs of {', '.join(methods)}; give --where model=er_sbs, or another of them")
    table: Table = {}
    for (dataset, size), members in group(sampled, lambda run: (run.dataset, run.args["buffer_size"])).items():
        found = arms(f"{dataset}, buffer {size}", members, measure.of, common)
        named = {SAMPLERS.get(arm, arm): seeds for arm, seeds in found.items()}
        order = [*ROWS, *sorted(set(named) - set(ROWS))]
        table[f"{dataset} {members[0].buffer}"] = {name: named[name] for name in order if name in named}
    if not any(len(column) > 1 for column in table.values()):
        raise UserError("samplers: no column has two samplers to compare; run an _sbs model with --sampler uniform and "
                        "with others")
    return dict(sorted(table.items(), key=lambda item: column_order(item[0])))


def column_order(column: str) -> tuple[int, str, int]:
    dataset, size = column.rsplit(" ", 1)
    name, tasks = dataset.rsplit("-", 1)
    place = list(DATASETS.values()).index(name) if name in DATASETS.values() else len(DATASETS)
    return place, tasks.zfill(3), int(size.replace("k", "000"))


def shares(runs: Sequence[Run]) -> dict[str, float]:
    """By column: how much of the training data the buffer holds."""
    found = {}
    for run in runs:
        if run.arm != STOCK:
            examples = sum(task["examples"] for task in run.record["sbs"]["tasks"])
            found[f"{run.dataset} {run.buffer}"] = run.args["buffer_size"] / examples
    return found


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the table, its standard errors, the differences to Random as a figure, and the CSV."""
    files: list[Path] = []
    share = shares(runs)
    for measure in measures(metric):
        table = collect(runs, measure, common)
        theirs = {column: papers_column(measure, column.rsplit(" ", 1)[0], share[column]) for column in table}
        changes = {column: corrected({name: paired(seeds, found[BASE]) for name, seeds in found.items()
                                      if name != BASE}) for column, found in table.items() if BASE in found}
        if not changes:
            raise UserError("samplers: no run with --sampler uniform, which the others are compared with")
        stem = out / f"samplers_{measure.name}"
        figure(changes, theirs, share, stem, measure, files)
        files += tables(table, changes, theirs, share, stem, measure)
        files.append(write_csv(out / f"samplers_{measure.name}.csv", rows(table, changes, theirs, share, measure)))
    return files


def heading(column: str, share: float) -> str:
    return f"{column} ({100 * share:.3g}%)"


def count(changes: dict[str, Difference]) -> str:
    """How many seeds a column has."""
    return f"n = {next(iter(changes.values())).seeds}"


def figure(changes: Changes, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float], stem: Path,
           measure: Measure, files: list[Path]) -> None:
    """A panel per column: each sampler's paired difference to Random, the paper's as a hollow diamond."""
    names = list(dict.fromkeys(name for column in changes.values() for name in column))
    lines, wide = rows_of(len(changes), A_ROW)
    said = [f"{heading(column, share[column])}: " + ", ".join(f"{name} {change.mean:+.2f}" for name, change in
                                                              found.items()) for column, found in changes.items()]
    alt = f"Bars of paired differences to Random in points of {measure.title}. {'. '.join(said)}."
    with drawing(stem, max(3.6, 0.6 + 2.3 * wide), 1.1 + 0.28 * len(names) * lines + 0.8 * lines, files, alt) as drawn:
        axes = panels(drawn, len(changes), wide, sharey=True)
        for axis, (column, found) in zip(axes, changes.items(), strict=True):
            for i, name in enumerate(names):
                if name in found:
                    change = found[name]
                    axis.barh([i], [change.mean], 0.6, color="#ff7f0e" if name.startswith("SBS") else "#1f77b4")
                    if change.low is not None and change.high is not None:
                        axis.plot([change.low, change.high], [i, i], "-", color="black", linewidth=0.9)
            numbers = theirs[column][1]
            known = [i for i, name in enumerate(names) if name in numbers]
            axis.plot([numbers[names[i]] - numbers[BASE] for i in known], known, "D", color="black", fillstyle="none",
                      markersize=5)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_yticks(range(len(names)), names)
            axis.set_ylim(len(names) - 0.5, -0.5)
            beside = f"\n◇ paper, {theirs[column][0]}" if known else ""
            axis.set_title(f"{heading(column, share[column])}, {count(found)}{beside}", fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        note_below(drawn, f"Difference to Random, points of {measure.title}.", NOTE)


def tables(table: Table, changes: Changes, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float],
           stem: Path, measure: Measure) -> list[Path]:
    """Means with the best of each column in bold, then the standard errors; the paper's columns beside ours. Then the
    differences to Random."""
    names = list(dict.fromkeys(name for column in table.values() for name in column))
    head, means, errors = ["buffer"], [[name] for name in names], [[name] for name in names]
    bold = set()
    for column, found in table.items():
        ours = {name: Mean.of(seeds.values()) for name, seeds in found.items()}
        head.append(heading(column, share[column]))
        numbers = {name: value for name, value in theirs[column][1].items() if name in names}
        for i, name in enumerate(names):
            means[i].append(f"{ours[name].mean:.2f}" if name in ours else "–")
            error = ours[name].error if name in ours else None
            errors[i].append("–" if error is None else f"{error:.2f}")
        best = measure.best({name: value.mean for name, value in ours.items()})
        bold |= {(names.index(name), len(head) - 1) for name in best}
        if numbers:
            head.append(f"paper, {theirs[column][0]}")
            for i, name in enumerate(names):
                means[i].append(f"{numbers[name]:.2f}" if name in numbers else "–")
                errors[i].append(papers_error(column.rsplit(" ", 1)[0], theirs[column][0], name, measure.setting))
            bold |= {(names.index(name), len(head) - 1) for name in measure.best(numbers)}
    title = f"{measure.title[0].upper()}{measure.title[1:]}, {measure.unit}"
    return write_tables(stem, [
        (title, (head, means, frozenset(bold))), ("Standard errors", (head, errors, frozenset())),
        *((f"{heading(column, share[column])}: difference to Random, {measure.title}, points, {count(found)}",
           difference_table(found, "buffer", measure.higher)) for column, found in changes.items())])


def papers_error(dataset: str, size: str, name: str, setting: str) -> str:
    found, name = paper().get(f"{setting}_standard_error", {}), TUNED if name == BY_SHARE else name
    return f"{found[name][paper()['columns'].index(f'{dataset} {size}')]:.2f}" if name in found else "–"


def rows(table: Table, changes: Changes, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float],
         measure: Measure) -> list[dict[str, Any]]:
    """What is drawn, and the paper's number."""
    lines = []
    for column, found in table.items():
        for name, seeds in found.items():
            value = Mean.of(seeds.values())
            line = {"column": column, "buffer_share": round(share[column], 4), "setting": measure.setting,
                    "metric": measure.metric, "sampler": name, "seeds": value.seeds, "mean": value.mean,
                    "standard_error": value.error, "paper": theirs[column][1].get(name)}
            change = changes.get(column, {}).get(name)
            lines.append(line | (columns("minus_random", change) if change else {}))
    return lines
