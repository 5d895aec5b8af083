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
from mammoth_sbs.figures.output import drawing, panels, write_csv, write_tables
from mammoth_sbs.figures.results import (
    DATASETS,
    FIXED,
    SAMPLERS,
    SETTINGS,
    STOCK,
    TUNED,
    Mean,
    Run,
    Seeds,
    arms,
    group,
    paired,
)

ROWS = (*SAMPLERS.values(), FIXED, TUNED)
BASE = SAMPLERS["uniform"]
EXAMPLES = {"CIFAR-10": 50_000, "CIFAR-100": 50_000, "TinyImageNet": 100_000}  # what the paper's buffers are a share of
A_ROW = 5  # panels beside each other
Table = dict[str, dict[str, Seeds]]  # column to sampler to seeds


@cache
def paper() -> dict[str, Any]:
    """The paper's tables."""
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))


def papers_column(setting: str, dataset: str, share: float) -> tuple[str, dict[str, float]]:
    """The paper's column for a split and a buffer's share of its data: title, and numbers by sampler if it has any."""
    for j, column in enumerate(paper()["columns"]):
        split, size = column.rsplit(" ", 1)
        of = EXAMPLES[split.rsplit("-", 1)[0]]
        if split == dataset and abs(1000 * int(size.removesuffix("k")) / of - share) < 0.05 * share:
            return size, {name: row[j] for name, row in paper()[setting].items() if row[j] is not None}
    return "", {}


def collect(runs: Sequence[Run], setting: str, common: bool = False) -> Table:
    """By column (data set and buffer): accuracies by sampler and seed."""
    sampled = [run for run in runs if run.arm != STOCK]
    methods = sorted({run.method for run in sampled})
    if len(methods) > 1:
        raise UserError(f"samplers: runs of {', '.join(methods)}; give --where model=er_sbs, or another of them")
    table: Table = {}
    for (dataset, size), members in group(sampled, lambda run: (run.dataset, run.args["buffer_size"])).items():
        found = arms(f"{dataset}, buffer {size}", members, setting, common)
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


def write(runs: Sequence[Run], out: Path, common: bool = False) -> list[Path]:
    """For Task-IL and Class-IL: the table, its standard errors, the differences to Random as a figure, and the CSV."""
    files: list[Path] = []
    share = shares(runs)
    for setting, title in SETTINGS.items():
        table = collect(runs, setting, common)
        theirs = {column: papers_column(setting, column.rsplit(" ", 1)[0], share[column]) for column in table}
        files += figure(table, theirs, share, out / f"samplers_{setting}", title)
        files += tables(table, theirs, share, out / f"samplers_{setting}", title)
        files.append(write_csv(out / f"samplers_{setting}.csv", rows(table, theirs, share, title)))
    return files


def heading(column: str, share: float) -> str:
    return f"{column} ({100 * share:.3g}%)"


def figure(table: Table, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float], stem: Path,
           title: str) -> list[Path]:
    """A panel per column: each sampler's paired difference to Random, the paper's as a hollow diamond."""
    files: list[Path] = []
    shown = {name: column for name, column in table.items() if BASE in column}
    if not shown:
        raise UserError("samplers: no run with --sampler uniform, which the others are compared with")
    names = [name for name in dict.fromkeys(n for column in shown.values() for n in column) if name != BASE]
    columns, lines = min(len(shown), A_ROW), -(-len(shown) // A_ROW)
    with drawing(stem, max(3.6, 0.6 + 2.3 * columns), 0.9 + 0.28 * len(names) * lines + 0.7 * lines, files) as figure:
        axes = panels(figure, len(shown), columns, sharey=True)
        for axis, (column, found) in zip(axes, shown.items(), strict=True):
            places = [i for i, name in enumerate(names) if name in found]
            changes = [paired(found[names[i]], found[BASE]) for i in places]
            errors = [float("nan") if change.error is None else change.error for change in changes]
            axis.barh(places, [change.mean for change in changes], xerr=errors,
                      color=["#ff7f0e" if names[i].startswith("SBS") else "#1f77b4" for i in places], height=0.6,
                      error_kw={"elinewidth": 0.9, "capsize": 1.5})
            numbers = theirs[column][1]
            known = [i for i, name in enumerate(names) if name in numbers]
            axis.plot([numbers[names[i]] - numbers[BASE] for i in known], known, "D", color="black", fillstyle="none",
                      markersize=5)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_yticks(range(len(names)), names)
            axis.set_ylim(len(names) - 0.5, -0.5)
            beside = f"\n◇ paper, {theirs[column][0]}" if known else ""
            axis.set_title(heading(column, share[column]) + beside, fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        figure.supxlabel(f"difference to Random, {title} points", fontsize=9)
    return files


def tables(table: Table, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float], stem: Path,
           title: str) -> list[Path]:
    """Means with the best of each column in bold, then the standard errors; the paper's columns beside ours."""
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
        bold |= {(names.index(name), len(head) - 1) for name in best({name: m.mean for name, m in ours.items()})}
        if numbers:
            head.append(f"paper, {theirs[column][0]}")
            for i, name in enumerate(names):
                means[i].append(f"{numbers[name]:.2f}" if name in numbers else "–")
                errors[i].append(papers_error(column.rsplit(" ", 1)[0], theirs[column][0], name, title))
            bold |= {(names.index(name), len(head) - 1) for name in best(numbers)}
    return write_tables(stem, [(f"Final {title} accuracy, %", (head, means, frozenset(bold))),
                               ("Standard errors", (head, errors, frozenset()))])


def best(values: dict[str, float]) -> list[str]:
    """All that share the highest value."""
    return [name for name, value in values.items() if value == max(values.values())]


def papers_error(dataset: str, size: str, name: str, title: str) -> str:
    found = paper().get(next(key for key, text in SETTINGS.items() if text == title) + "_standard_error", {})
    return f"{found[name][paper()['columns'].index(f'{dataset} {size}')]:.2f}" if name in found else "–"


def rows(table: Table, theirs: dict[str, tuple[str, dict[str, float]]], share: dict[str, float],
         title: str) -> list[dict[str, Any]]:
    """What is drawn, and the paper's number."""
    lines = []
    for column, found in table.items():
        for name, seeds in found.items():
            value = Mean.of(seeds.values())
            change = paired(seeds, found[BASE]) if BASE in found else None
            lines.append({"column": column, "buffer_share": round(share[column], 4), "setting": title, "sampler": name,
                          "seeds": value.seeds, "mean": value.mean, "standard_error": value.error,
                          "minus_random": change and change.mean,
                          "minus_random_standard_error": change and change.error,
                          "minus_random_seeds_up": change and change.up, "paper": theirs[column][1].get(name)})
    return lines
