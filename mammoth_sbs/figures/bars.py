"""Bar charts: per method the stock buffer in blue beside SBS in orange, as the paper's; a third arm between them.

Each bar is the mean final accuracy over seeds, with its standard error. Differences are paired by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.output import Table, drawing, panels, write_csv, write_tables
from mammoth_sbs.figures.results import (
    METHODS,
    OF_THE_SETTING,
    SETTINGS,
    STOCK,
    UNIFORM,
    Mean,
    Run,
    Seeds,
    arms,
    check_alike,
    group,
    paired,
)

COLOURS = {STOCK: "#1f77b4", UNIFORM: "#b9c0cb"}
SBS_COLOURS = ("#ff7f0e", "#a63603", "#fdbe85", "#e6550d", "#5f2202", "#f2c14e", "#d18f5c", "#8c6d31")
LEGEND_COLUMNS = 4
A_ROW = 12.0  # inches of panels beside each other
Chart = dict[str, dict[str, Seeds]]  # method to arm to seeds


def collect(runs: Sequence[Run], setting: str, common: bool = False) -> dict[str, Chart]:
    """By data set: the arms of each method."""
    charts: dict[str, Chart] = {}
    for dataset, members in group(runs, lambda run: run.dataset).items():
        check_alike(dataset, members, only=OF_THE_SETTING)
        methods = group(members, lambda run: run.method)
        ordered = [name for name in METHODS.values() if name in methods] + sorted(set(methods) - set(METHODS.values()))
        charts[dataset] = {method: in_order(arms(f"{dataset}, {method}", methods[method], setting, common))
                           for method in ordered}
    if not any(len(found) > 1 for chart in charts.values() for found in chart.values()):
        raise UserError("bars: no method has two arms to compare; run its stock and its _sbs model")
    return charts


def in_order(found: dict[str, Seeds]) -> dict[str, Seeds]:
    """Stock, then the other samplers, then SBS."""
    return dict(sorted(found.items(), key=lambda item: (item[0] != STOCK, item[0].startswith("SBS"), item[0])))


def rows(dataset: str, setting: str, chart: Chart) -> list[dict[str, Any]]:
    """What is drawn: a row per bar, with its paired differences to the arms before it."""
    lines = []
    for method, found in chart.items():
        names = list(found)
        for i, arm in enumerate(names):
            value = Mean.of(found[arm].values())
            line = {"dataset": dataset, "setting": SETTINGS[setting], "method": method, "arm": arm,
                    "seeds": value.seeds, "mean": value.mean, "standard_error": value.error}
            for other in names[:i]:
                change = paired(found[arm], found[other])
                line |= {f"minus_{other}": change.mean, f"minus_{other}_standard_error": change.error,
                         f"minus_{other}_seeds_up": change.up}
            lines.append(line)
    return lines


def table(chart: Chart) -> Table:
    """Means with standard errors, the best in bold, and SBS's paired differences with how many seeds went up."""
    names = list(in_order({arm: seeds for found in chart.values() for arm, seeds in found.items()}))
    pairs = [(names[j], names[i]) for j in range(len(names)) for i in range(j) if names[j].startswith("SBS")]
    head = ["method", *names, *(f"{left} − {right}" for left, right in pairs)]
    lines, bold = [], set()
    for i, (method, found) in enumerate(chart.items()):
        means = {arm: Mean.of(seeds.values()) for arm, seeds in found.items()}
        line = [method] + [means[arm].text() if arm in means else "–" for arm in names]
        bold.add((i, 1 + names.index(max(means, key=lambda arm: means[arm].mean))))
        for left, right in pairs:
            both = left in found and right in found
            change = paired(found[left], found[right]) if both else None
            line.append(f"{change.text(sign=True)} ({change.up} of {change.seeds} up)" if change else "–")
        lines.append(line)
    return head, lines, frozenset(bold)


def write(runs: Sequence[Run], out: Path, common: bool = False) -> list[Path]:
    """One figure for Task-IL and one for Class-IL, a panel per data set; tables and the CSV."""
    files: list[Path] = []
    for setting, title in SETTINGS.items():
        charts = collect(runs, setting, common)
        stem = out / f"bars_{setting}"
        width = max(3.2, 1.2 + 0.24 * max(sum(map(len, chart.values())) for chart in charts.values()))
        columns = max(1, min(len(charts), int(A_ROW / width)))
        lines = -(-len(charts) // columns)
        with drawing(stem, width * columns, 3.2 * lines, files) as figure:
            axes = panels(figure, len(charts), columns)
            for axis, (dataset, chart) in zip(axes, charts.items(), strict=True):
                panel(axis, chart)
                axis.set_title(f"{dataset}, {title}")
                axis.set_ylabel(f"final {title} accuracy, %")
        files.append(write_csv(out / f"bars_{setting}.csv",
                               [row for dataset, chart in charts.items() for row in rows(dataset, setting, chart)]))
        named = [(f"{dataset}, {title}", table(chart)) for dataset, chart in charts.items()]
        files += write_tables(stem, named)
    return files


def panel(axis: Any, chart: Chart) -> None:
    """One data set: a group of bars per method."""
    names = list(in_order({arm: seeds for found in chart.values() for arm, seeds in found.items()}))
    sbs = [name for name in names if name.startswith("SBS")]
    others = [name for name in names if name not in COLOURS and name not in sbs]
    colours = COLOURS | dict(zip(sbs, SBS_COLOURS * len(sbs), strict=False)) | \
        {name: f"C{2 + i % 8}" for i, name in enumerate(others)}
    width = 0.8 / len(names)
    tops = []
    for name in names:
        at = [i + (list(found).index(name) - (len(found) - 1) / 2) * width
              for i, found in enumerate(chart.values()) if name in found]
        means = [Mean.of(found[name].values()) for found in chart.values() if name in found]
        axis.bar(at, [value.mean for value in means], width,
                 yerr=[float("nan") if value.error is None else value.error for value in means],
                 color=colours[name], label=name, error_kw={"elinewidth": 0.9, "capsize": 1.5})
        tops += [value.mean + (value.error or 0.0) for value in means]
    axis.set_xticks(range(len(chart)), list(chart), rotation=30 if len(chart) > 5 else 0)
    axis.set_ylim(0, (1.13 + 0.09 * -(-len(names) // LEGEND_COLUMNS)) * max(tops))  # room for the legend
    axis.legend(ncols=min(len(names), LEGEND_COLUMNS), frameon=False, loc="upper left", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
