"""Forgetting as a function of learning speed (the paper's Fig. 2, its class-incremental twin, and other data sets).

Per data set: test accuracy of each task, M of the first task's training and test data, and how many networks remember
an example against how quickly it was learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.figures.output import drawing, write_csv
from mammoth_sbs.figures.recorded import (
    RIGHT,
    Memory,
    Networks,
    draw_matrix,
    majority,
    matrix_rows,
    networks,
    sorted_lines,
)
from mammoth_sbs.figures.results import SETTINGS, Run

COLOURS = ("#1f4e79", "#e07b39", "#4b8f5b", "#8c5fa8", "#b23a48", "#6d6d6d")  # of tasks
GREY, DOT = "#c9c9c9", "#b23a48"
BINS = 20  # of learning speed, for the single examples in the background


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the figure, its correlations, and what is drawn in each panel."""
    panels = networks(runs)
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        stem = out / f"forgetting_{setting}"
        with drawing(stem, 13.5, 3.3 * len(panels), files,
                     f"{name}: test accuracy by epoch, M of training and test data, and learning speed against being "
                     f"remembered; {', '.join(it.title for it in panels)}") as figure:
            axes = figure.subplots(len(panels), 4, squeeze=False, width_ratios=(1.1, 1, 1, 1.1))
            rows: dict[str, list[dict[str, Any]]] = {"": [], "_accuracy": [], "_matrices": [], "_groups": []}
            for line, it in zip(axes, panels, strict=True):
                draw(line, it, setting, name, rows)
        files += [write_csv(Path(f"{stem}{part}.csv"), found) for part, found in rows.items()]
    return files


def draw(axes: Any, it: Networks, setting: str, name: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """One data set: four panels."""
    draw_accuracy(axes[0], it, setting, name, rows["_accuracy"])
    for axis, test in ((axes[1], False), (axes[2], True)):
        lines = sorted_lines(majority(it.matrices(test, setting)), it.speeds(test, setting).mean(0))
        draw_matrix(axis, it.edges(), lines, it.switches())
        data = "test" if test else "train"
        axis.set_title(f"M, {data}")
        axis.set_ylabel("example, quickest first")
        rows["_matrices"] += matrix_rows(it.title, {"setting": name, "data": data}, lines)
    memory = it.memory(True, setting)
    draw_groups(axes[3], memory)
    for share, speed, count in memory.groups():
        rows["_groups"].append({"panel": it.title, "setting": name, "share_that_remember": share, "mean_speed": speed,
                                "examples": count})
    for over, found in memory.correlations().items():
        rows[""].append({"panel": it.title, "setting": name, "over": over, **found.row(), "networks": len(it),
                         "accuracy_after_own": 100 * memory.first.mean(), "accuracy_at_end": 100 * memory.last.mean(),
                         "remembered": 100 * memory.remembered.mean()})


def draw_accuracy(axis: Any, it: Networks, setting: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Mean test accuracy of each task in each epoch."""
    for task in it.records[0].followed:
        accuracy = 100 * it.matrices(True, setting, task).mean((0, 2))
        ends = it.edges(task)[1:]
        axis.plot(ends, accuracy, color=COLOURS[(task - 1) % len(COLOURS)], label=f"task {task}")
        rows += [{"panel": it.title, "setting": name, "task": task, "epoch": int(end), "accuracy": value}
                 for end, value in zip(ends, accuracy, strict=True)]
    for switch in it.switches():
        axis.axvline(switch, color="black", linestyle="--", linewidth=1)
    many = f"{len(it)} networks" if len(it) > 1 else "1 network"
    axis.set(xlabel="epoch", ylabel=f"test accuracy, {name}, %", ylim=(0, 100), title=f"{it.title}, {many}")
    axis.legend(frameon=False, loc="lower left")


def draw_groups(axis: Any, memory: Memory) -> None:
    """The paper's groups as dots, single examples as discs of their number behind them."""
    places = np.stack([np.round(memory.mean_speed * BINS) / BINS, memory.share])
    where, counts = np.unique(places, axis=1, return_counts=True)
    axis.scatter(where[0], 100 * where[1], s=120 * counts / counts.max(), color=GREY, label="examples", linewidths=0)
    shares, speeds, _ = zip(*memory.groups(), strict=True)
    axis.scatter(speeds, 100 * np.array(shares), s=28, color=DOT, zorder=3, label="mean of a group")
    found = memory.correlations()
    axis.text(0.03, 0.97, "\n".join([found["groups"].text("groups: r"), found["examples"].text("examples: r"),
                                     found["known examples"].text("known: r")]),
              transform=axis.transAxes, va="top", fontsize=6.5, color=RIGHT,
              bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1})
    axis.set(xlabel="mean learning speed", ylabel="networks that remember, %", xlim=(-0.03, 1.03), ylim=(-4, 135),
             title="speed and memory, test")
    axis.set_yticks(range(0, 101, 20))
    axis.legend(frameon=False, loc="lower right", fontsize=7, markerscale=0.8)
