"""Accuracy along the stream, as online papers show it: what `--eval_steps` measured, arm by arm, and below it the
paired difference to the reservoir. The mean of a curve is the average anytime accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.bars import by_method, palette
from mammoth_sbs.figures.output import drawing, legend_above, note_below, write_csv
from mammoth_sbs.figures.results import SETTINGS, Run, in_order, references
from mammoth_sbs.figures.statistics import Mean, minus

Place = tuple[int, int]  # task, from 1, and step in it
Curve = dict[Place, float]
Arms = dict[str, dict[int, Curve]]  # by arm and seed
WIDTH, HEIGHTS = 3.6, (2.3, 1.5)  # inches of a column, of curves and of differences


def curve(run: Run, setting: str) -> Curve:
    """After each evaluation the mean accuracy over the tasks so far."""
    entries = run.record.get("eval_steps")
    if not entries:
        raise UserError(f"curves: run {run.id} ({run.dataset}, {run.method}, {run.arm}) was not evaluated on the way; "
                        "make the runs with --eval_steps, or --online 1, in a folder of their own")
    return {(entry["task"], entry["step"]): fmean(entry[setting]) for entry in entries}


def places(arms: Arms) -> list[Place]:
    """The evaluations that all runs have: tasks need not be equally long for all seeds."""
    curves = [found for seeds in arms.values() for found in seeds.values()]
    shared = sorted(set.intersection(*map(set, curves)))
    if not shared:
        raise UserError("curves: no evaluation is at the same step of all runs; give all the same --eval_steps")
    return shared


def positions(shared: Sequence[Place]) -> list[float]:
    """Where they are drawn: each task is one wide, and its evaluations are evenly in it, the last at its end."""
    in_task = Counter(task for task, _ in shared)
    past: Counter[int] = Counter()
    out = []
    for task, _ in shared:
        past[task] += 1
        out.append(task - 1 + past[task] / in_task[task])
    return out


def rows(arms: Arms, what: dict[str, Any]) -> list[dict[str, Any]]:
    """What is drawn: a row for each evaluation of each arm."""
    (reference, *_), shared, lines = references(list(arms)), places(arms), []
    for arm in arms:
        for (task, step), position in zip(shared, positions(shared), strict=True):
            here, there = ({seed: found[task, step] for seed, found in arms[name].items()} for name in (arm, reference))
            mean, change = Mean.of(here.values()), Mean.of(minus(here, there).values())
            lines.append({**what, "arm": arm, "task": task, "step": step, "position": position, "seeds": mean.seeds,
                          "mean": mean.mean, "standard_error": mean.error,
                          f"minus_{reference}": change.mean, f"minus_{reference}_standard_error": change.error})
    return lines


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: a figure with a column for each method and a pair of lines for each data set."""
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        charts = by_method(runs, partial(curve, setting=setting), common, "curves")
        stem = out / f"curves_{setting}"
        drawn = {(dataset, method): rows(arms, {"dataset": dataset, "setting": setting, "method": method})
                 for dataset, chart in charts.items() for method, arms in chart.items() if len(arms) > 1}
        figure(drawn, name, stem, files)
        files.append(write_csv(stem.with_suffix(".csv"), [row for lines in drawn.values() for row in lines]))
    return files


def figure(drawn: dict[tuple[str, str], list[dict[str, Any]]], name: str, stem: Path, files: list[Path]) -> None:
    datasets, methods = (list(dict.fromkeys(key)) for key in zip(*drawn, strict=True))
    names = list(in_order({row["arm"]: {} for lines in drawn.values() for row in lines}))
    colours = palette(names)
    with drawing(stem, WIDTH * len(methods), sum(HEIGHTS) * len(datasets) + 0.8, files, describe(drawn, name)) as it:
        axes = it.subplots(2 * len(datasets), len(methods), squeeze=False, sharex="row", sharey="row",
                           height_ratios=HEIGHTS * len(datasets))
        for i, dataset in enumerate(datasets):
            for j, method in enumerate(methods):
                above, below = axes[2 * i, j], axes[2 * i + 1, j]
                if (dataset, method) not in drawn:
                    above.set_visible(False), below.set_visible(False)
                    continue
                panel(above, below, drawn[dataset, method], colours)
                above.set_title(f"{dataset}, {method}", fontsize=10)
                below.set_xlabel("tasks of the stream")
            axes[2 * i, 0].set_ylabel(f"{name} accuracy, %")
            axes[2 * i + 1, 0].set_ylabel("difference, points")
        note_below(it, "Above: mean over seeds, on the classes so far, ± one standard error. Below: paired difference "
                       f"to {references(names)[0]}, ± two.")
        handles = {text: handle for axis in axes[::2].flat
                   for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        legend_above(it, [handles[arm] for arm in names if arm in handles], [arm for arm in names if arm in handles])


def panel(above: Any, below: Any, lines: Sequence[dict[str, Any]], colours: dict[str, Any]) -> None:
    """One method on one data set."""
    arms = list(dict.fromkeys(row["arm"] for row in lines))
    (reference, *_) = references(arms)
    for arm in arms:
        mine = [row for row in lines if row["arm"] == arm]
        x = [row["position"] for row in mine]
        line(above, x, mine, "mean", "standard_error", 1, colours[arm], arm)
        if arm != reference:
            minus_it = f"minus_{reference}"
            line(below, x, mine, minus_it, f"{minus_it}_standard_error", 2, colours[arm], arm)
    below.axhline(0, color="black", linewidth=0.8)
    for axis in (above, below):
        axis.grid(color="#eeeeee", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)


def line(axis: Any, x: Sequence[float], mine: Sequence[dict[str, Any]], value: str, error: str, times: int,
         colour: Any, label: str) -> None:
    """A mean, with so many standard errors around it; for one seed there is none."""
    means, spread = [row[value] for row in mine], [times * (row[error] or 0.0) for row in mine]
    axis.plot(x, means, color=colour, linewidth=1.2, label=label)
    axis.fill_between(x, [mean - wide for mean, wide in zip(means, spread, strict=True)],
                      [mean + wide for mean, wide in zip(means, spread, strict=True)], color=colour, alpha=0.2,
                      linewidth=0)


def describe(drawn: dict[tuple[str, str], list[dict[str, Any]]], name: str) -> str:
    """What the picture shows, in words: the mean difference along the stream."""
    parts = []
    for (dataset, method), lines in drawn.items():
        (reference, *_) = references(list(dict.fromkeys(row["arm"] for row in lines)))
        for arm in dict.fromkeys(row["arm"] for row in lines if row["arm"] != reference):
            mean = fmean(row[f"minus_{reference}"] for row in lines if row["arm"] == arm)
            parts.append(f"{arm} minus {reference} on {dataset} with {method}: {mean:+.2f} on average")
    return f"{name} accuracy along the stream. {'. '.join(parts)}."
