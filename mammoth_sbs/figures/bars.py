"""Bar charts: per method the stock buffer in blue and SBS in orange, as the paper's; other arms between them.

Beside the bars, on the same lines, the paired differences to the uniform and to the stock buffer: an axis that begins
at 0 hides two points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.output import (
    Table,
    columns,
    difference_table,
    drawing,
    legend_above,
    note_below,
    write_csv,
    write_tables,
)
from mammoth_sbs.figures.results import (
    METHODS,
    OF_THE_SETTING,
    STOCK,
    TUNED,
    UNIFORM,
    Measure,
    Run,
    V,
    arms,
    check_alike,
    group,
    in_order,
    measures,
    references,
)
from mammoth_sbs.figures.statistics import POOLED, Difference, Mean, Seeds, compare, over_methods

COLOURS = {STOCK: "#1f77b4", UNIFORM: "#8d96a5"}
SBS_COLOURS = ("#ff7f0e", "#a63603", "#e8b200", "#d62728", "#a0458f", "#c9803d", "#f58fb0", "#8c6d31")
OTHER_COLOURS = ("#2ca02c", "#9467bd", "#17becf", "#7f7f7f", "#bcbd22", "#98df8a", "#c5b0d5", "#9edae5")
MARKERS = "osD^vP*X"
BARS, DIFFERENCES = 3.6, 2.5  # inches of a panel
NOTE = ("Bars: mean over seeds, whiskers ± one standard error. Points: mean paired difference, whiskers its 95% "
        "interval (bootstrap over seeds)")
Chart = dict[str, dict[str, Seeds]]  # method to arm to seeds
Comparisons = dict[tuple[str, str], dict[str, Difference]]  # (arm, the arm it is compared with) to method to difference


def collect(runs: Sequence[Run], measure: Measure, common: bool = False) -> dict[str, Chart]:
    """By data set: the arms of each method."""
    return by_method(runs, measure.of, common, "bars")


def by_method(runs: Sequence[Run], of: Callable[[Run], V], common: bool,
              kind: str) -> dict[str, dict[str, dict[str, dict[int, V]]]]:
    """What is known of runs, by data set, method, arm and seed."""
    charts = {}
    for dataset, members in group(runs, lambda run: run.dataset).items():
        check_alike(dataset, members, only=OF_THE_SETTING)
        methods = group(members, lambda run: run.method)
        ordered = [name for name in METHODS.values() if name in methods] + sorted(set(methods) - set(METHODS.values()))
        charts[dataset] = {method: arms(f"{dataset}, {method}", methods[method], of, common) for method in ordered}
    if not any(len(found) > 1 for chart in charts.values() for found in chart.values()):
        raise UserError(f"{kind}: no method has two arms to compare; run its stock and its _sbs model")
    return charts


def arms_of(chart: Chart) -> list[str]:
    """All arms, each once."""
    return list(in_order({arm: seeds for found in chart.values() for arm, seeds in found.items()}))


def comparisons(chart: Chart) -> Comparisons:
    """Every arm less the uniform buffer, and less the stock one."""
    names = arms_of(chart)
    base = references(names)
    pairs = [(arm, other) for other in base for arm in names if arm not in base or base.index(arm) < base.index(other)]
    return {pair: compare(chart, *pair) for pair in pairs}


def with_pooled(chart: Chart) -> Chart:
    """And a line for all methods together: arms that all of them have, their mean seed by seed."""
    everywhere = [arm for arm in arms_of(chart) if all(arm in found for found in chart.values())]
    together = {arm: over_methods({method: found[arm] for method, found in chart.items()}) for arm in everywhere}
    return {**chart, POOLED: {arm: seeds for arm, seeds in together.items() if seeds}} if len(chart) > 1 else chart


# ---- tables


def rows(dataset: str, measure: Measure, chart: Chart, found: Comparisons) -> list[dict[str, Any]]:
    """What is drawn: a row per bar, with its paired differences."""
    lines = []
    for method, members in with_pooled(chart).items():
        for arm, seeds in members.items():
            value = Mean.of(seeds.values())
            line = {"dataset": dataset, "setting": measure.setting, "metric": measure.metric, "method": method,
                    "arm": arm, "seeds": value.seeds, "mean": value.mean, "standard_error": value.error}
            for (left, right), changes in found.items():
                if left == arm and method in changes:
                    line |= columns(f"minus_{right}", changes[method])
            lines.append(line)
    return lines


def tables(dataset: str, measure: Measure, chart: Chart, found: Comparisons) -> list[tuple[str, Table]]:
    """Means with standard errors, the best in bold; then a table for each comparison."""
    names = arms_of(chart)
    lines, bold = [], set()
    for i, (method, members) in enumerate(with_pooled(chart).items()):
        means = {arm: Mean.of(seeds.values()) for arm, seeds in members.items()}
        lines.append([method] + [means[arm].text() if arm in means else "–" for arm in names])
        bold |= {(i, 1 + names.index(arm)) for arm in measure.best({arm: m.mean for arm, m in means.items()})} \
            if len(means) > 1 else set()
    title = f"{dataset}: {measure.title}, {measure.unit}, mean ± standard error, {count(chart)}"
    out = [(title, (["method", *names], lines, frozenset(bold)))]
    return out + [(f"{dataset}: {left} − {right}, {measure.title}, points, {count(chart, left, right)}",
                   difference_table(changes, "method", measure.higher)) for (left, right), changes in found.items()]


def seeds_of(chart: Chart, *of: str) -> set[int]:
    """How many seeds the methods have (that have all of these arms)."""
    return {len(seeds) for found in chart.values() if all(arm in found for arm in of) for seeds in found.values()}


def count(chart: Chart, *of: str) -> str:
    """`10 seeds`, or `5 to 10 seeds`."""
    known = seeds_of(chart, *of)
    least, most = min(known), max(known)
    return f"{least} seed{'s' * (least != 1)}" if least == most else f"{least} to {most} seeds"


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """One figure for Task-IL and one for Class-IL, a line of panels per data set; tables and the CSV."""
    files: list[Path] = []
    for measure in measures(metric):
        write_charts(collect(runs, measure, common), measure, out / f"bars_{measure.name}", files)
    return files


def write_charts(charts: dict[str, Chart], measure: Measure, stem: Path, files: list[Path]) -> None:
    """Figure, CSV and tables of one measure; what is written is added to `files`."""
    found = {dataset: comparisons(chart) for dataset, chart in charts.items()}
    figure(charts, found, measure, stem, files)
    files.append(write_csv(stem.with_suffix(".csv"), [
        row for dataset, chart in charts.items() for row in rows(dataset, measure, chart, found[dataset])]))
    files += write_tables(stem, [table for dataset, chart in charts.items()
                                 for table in tables(dataset, measure, chart, found[dataset])])


# ---- the figure


def figure(charts: dict[str, Chart], found: dict[str, Comparisons], measure: Measure, stem: Path,
           files: list[Path]) -> None:
    """A line of panels per data set: the bars, then the differences to each arm that others are compared with."""
    names = list(in_order({arm: {} for chart in charts.values() for arm in arms_of(chart)}))
    others = {dataset: list(dict.fromkeys(right for _, right in pairs)) for dataset, pairs in found.items()}
    heights = [0.75 + (len(chart) + (len(chart) > 1)) * (0.14 + 0.1 * len(arms_of(chart)))
               for chart in charts.values()]
    wide = max(map(len, others.values()))
    with drawing(stem, BARS + DIFFERENCES * wide, sum(heights) + 0.8, files, describe(found, measure)) as drawn:
        axes = drawn.subplots(len(charts), 1 + wide, squeeze=False, sharey="row",
                              width_ratios=[BARS, *[DIFFERENCES] * wide], height_ratios=heights)
        for line, (dataset, chart) in zip(axes, charts.items(), strict=True):
            bars(line[0], chart, names)
            line[0].set_title(f"{dataset}, {count(chart)}", fontsize=10)
            line[0].set_xlabel(f"{measure.title}, {measure.unit}")
            for axis, other in zip(line[1:], others[dataset], strict=False):
                points(axis, chart, names, {left: changes for (left, right), changes in found[dataset].items()
                                            if right == other})
                axis.set_title(f"difference to {other}", fontsize=10)
                axis.set_xlabel("points" if measure.higher else "points, less is better")
            for axis in line[1 + len(others[dataset]):]:
                axis.set_visible(False)
            same_scale(line[1 : 1 + len(others[dataset])])
        pooled = "; pooled: mean over methods, seed by seed" * any(len(chart) > 1 for chart in charts.values())
        part = any(POOLED in changes and len(changes) <= len(charts[dataset])
                   for dataset, pairs in found.items() for changes in pairs.values())
        note_below(drawn, f"{NOTE}{pooled}{' (hollow: of those that have the arm)' * part}.")
        handles = {text: handle for line in axes
                   for handle, text in zip(*line[0].get_legend_handles_labels(), strict=True)}
        legend_above(drawn, [handles[name] for name in names if name in handles], [n for n in names if n in handles])


def places(chart: Chart) -> dict[tuple[str, str], float]:
    """Where each arm of each method is drawn: methods downwards from 0, a line of its own for each arm."""
    lines = {method: list(found) for method, found in chart.items()} | {POOLED: arms_of(chart)}
    return {(method, arm): i + (j - (len(found) - 1) / 2) * thickness(chart)
            for i, (method, found) in enumerate(lines.items()) for j, arm in enumerate(found)}


def thickness(chart: Chart) -> float:
    """Of a bar, where a method has 1."""
    return 0.8 / len(arms_of(chart))


def bars(axis: Any, chart: Chart, names: Sequence[str]) -> None:
    """One data set: a group of bars per method, and one for all methods together."""
    colours = palette(names)
    at, shown = places(chart), with_pooled(chart)
    for name in arms_of(chart):
        mine = [method for method in shown if name in shown[method]]
        means = [Mean.of(shown[method][name].values()) for method in mine]
        axis.barh([at[method, name] for method in mine], [value.mean for value in means],
                  thickness(chart),
                  xerr=[float("nan") if value.error is None else value.error for value in means],
                  color=colours[name], label=name, error_kw={"elinewidth": 0.9, "capsize": 1.5})
    several = len(seeds_of(chart)) > 1
    axis.set_yticks(range(len(shown)), [f"{method} (n = {len(next(iter(found.values())))})" if several and found
                                        else method for method, found in shown.items()])
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.axvline(0, color="black", linewidth=0.8)
    finish(axis, chart)


def points(axis: Any, chart: Chart, names: Sequence[str], changes: Mapping[str, Mapping[str, Difference]]) -> None:
    """A point per arm and method with its 95% interval, on the line of the bar that it belongs to."""
    colours, at = palette(names), places(chart)
    for arm, by_method in changes.items():
        for method, change in by_method.items():
            y, part = at[method, arm], method == POOLED and len(by_method) <= len(chart)  # not all methods have it
            if change.low is not None and change.high is not None:
                axis.plot([change.low, change.high], [y, y], "-", color=colours[arm], linewidth=1.3)
            axis.plot([change.mean], [y], MARKERS[names.index(arm) % len(MARKERS)], color=colours[arm],
                      markersize=4.5 if method != POOLED else 6.5, markeredgecolor=colours[arm] if part else "white",
                      markeredgewidth=1.0 if part else 0.5, fillstyle="none" if part else "full")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(left=False, labelleft=False)
    finish(axis, chart)


def finish(axis: Any, chart: Chart) -> None:
    axis.spines[["top", "right", "left"]].set_visible(False)
    if len(chart) > 1:
        axis.axhspan(len(chart) - 0.5, len(chart) + 0.5, color="#f1f1f1", zorder=0)


def same_scale(axes: Collection[Any]) -> None:
    """Differences are compared across panels too; zero is always in sight."""
    limits = [limit for axis in axes for limit in axis.get_xlim()]
    for axis in axes:
        axis.set_xlim(min(limits), max(limits))


def palette(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each arm: blue, grey, orange and its relatives for SBS, others for other samplers."""
    sbs = sorted((name for name in names if name.startswith("SBS")), key=lambda name: name != TUNED)
    others = [name for name in names if name not in COLOURS and name not in sbs]
    found: dict[str, Any] = dict(COLOURS)
    for members, colours, more in ((sbs, SBS_COLOURS, "inferno"), (others, OTHER_COLOURS, "viridis")):
        if len(members) > len(colours):
            from matplotlib import colormaps

            shades: Sequence[Any] = [colormaps[more](0.1 + 0.8 * i / (len(members) - 1)) for i in range(len(members))]
        else:
            shades = colours
        found |= dict(zip(members, shades, strict=False))
    return found


def describe(found: Mapping[str, Comparisons], measure: Measure) -> str:
    """What the picture shows, in words."""
    parts = []
    for dataset, pairs in found.items():
        for (left, right), changes in pairs.items():
            *_, last = changes or [""]
            said = ", ".join(f"{method} {change.mean:+.2f}" for method, change in changes.items())
            interval = f" ({changes[last].span()})" if last == POOLED else ""
            parts.append(f"{left} minus {right} on {dataset}: {said}{interval}")
    return f"Bar chart of {measure.title} and paired differences in points. {'. '.join(parts)}."
