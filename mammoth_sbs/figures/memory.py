"""What a larger buffer keeps (the paper's Fig. 3 and its twins): M for a small, a medium and a large one, and the mean
learning speed of what is remembered against the buffer's size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.correlation import correlation
from mammoth_sbs.figures.output import drawing, write_csv
from mammoth_sbs.figures.recorded import RIGHT, Networks, draw_matrix, majority, matrix_rows, sorted_lines
from mammoth_sbs.figures.results import SETTINGS, Run, check_alike, check_seeds, group
from mammoth_sbs.figures.statistics import Mean

WITH_THE_BUFFER = {"model", "buffer_size", "minibatch_size", "sampler"}  # no buffer is another model, without its flags


def collect(runs: Sequence[Run], common: bool = False) -> dict[str, dict[int, Networks]]:
    """By data set and buffer size, 0 for none; the same seeds of each."""
    found = {}
    for dataset, members in group(runs, lambda run: run.dataset).items():
        sbs = {name for run in members for name in run.args if name.startswith("sbs_")}
        check_alike(dataset, members, WITH_THE_BUFFER | sbs)
        sizes = group(members, lambda run: run.args.get("buffer_size") or 0)
        for size, alike in sizes.items():
            check_alike(f"{dataset}, buffer {size}", alike)
        if len(sizes) < 3:
            raise UserError(f"{dataset}: memory needs runs of at least three --buffer_size, not of {len(sizes)}")
        by_seed = check_seeds(dataset, {f"buffer {size}": {run.seed: 0.0 for run in alike}
                                        for size, alike in sizes.items()}, common)
        found[dataset] = {size: Networks(f"{dataset}, buffer {size}",
                                         [run for run in sizes[size] if run.seed in by_seed[f"buffer {size}"]])
                          for size in sorted(sizes)}
    return found


def remembered_speed(it: Networks, setting: str) -> list[float]:
    """Of each network: the mean learning speed of the test examples that it remembers; nan if there are none."""
    memory = it.memory(True, setting)
    return [float(speed[kept].mean()) if kept.any() else float("nan")
            for speed, kept in zip(memory.speed, memory.remembered, strict=True)]


def shown_sizes(sizes: Sequence[int]) -> list[int]:
    """The smallest buffer, the one in the middle, and the largest."""
    real = [size for size in sizes if size]
    return [real[0], real[len(real) // 2], real[-1]]


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the figure, its correlations, and what is drawn."""
    found = collect(runs, common)
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        stem = out / f"memory_{setting}"
        rows: dict[str, list[dict[str, Any]]] = {"": [], "_sizes": [], "_matrices": []}
        with drawing(stem, 13.5, 3.3 * len(found), files,
                     f"{name}: M for several buffers, and the learning speed of remembered examples by size") as figure:
            axes = figure.subplots(len(found), 4, squeeze=False, width_ratios=(1, 1, 1, 1.1))
            for line, (dataset, sizes) in zip(axes, found.items(), strict=True):
                for axis, size in zip(line, shown_sizes(list(sizes)), strict=False):
                    it = sizes[size]
                    lines = sorted_lines(majority(it.matrices(True, setting)), it.speeds(True, setting).mean(0))
                    draw_matrix(axis, it.edges(), lines, it.switches())
                    axis.set(title=f"{it.title}, {name}", ylabel="test example, quickest first")
                    rows["_matrices"] += matrix_rows(dataset, {"setting": name, "buffer": size}, lines)
                draw_sizes(line[3], dataset, name, {size: remembered_speed(it, setting) for size, it in sizes.items()},
                           {size: it.memory(True, setting).remembered.mean() for size, it in sizes.items()}, rows)
        files += [write_csv(Path(f"{stem}{part}.csv"), drawn) for part, drawn in rows.items()]
    return files


def draw_sizes(axis: Any, dataset: str, name: str, speeds: dict[int, list[float]], shares: dict[int, float],
               rows: dict[str, list[dict[str, Any]]]) -> None:
    """Mean learning speed of the remembered against size: networks as grey dots, their means with standard errors."""
    known = {size: [value for value in values if np.isfinite(value)] for size, values in speeds.items()}
    means = {size: Mean.of(values) for size, values in known.items() if values}
    every = [(size, value) for size, values in known.items() for value in values]
    own = {seed: np.nanmean([values[seed] for values in speeds.values()]) for seed in range(len(speeds[max(speeds)]))}
    within = [(size, value - own[seed]) for size, values in speeds.items() for seed, value in enumerate(values)]
    statistics = {"sizes": correlation(list(means), [mean.mean for mean in means.values()]),
                  "networks": correlation(*np.array(every).T), "within seeds": correlation(*np.array(within).T)}
    axis.scatter(*zip(*every, strict=True), s=12, color="#c9c9c9", linewidths=0) if every else None
    axis.errorbar(list(means), [mean.mean for mean in means.values()], [mean.error or 0 for mean in means.values()],
                  fmt="o-", color=RIGHT, markersize=4, capsize=2)
    axis.set(xlabel="buffer size", ylabel="mean speed of the remembered", title=f"{dataset}, {name}")
    axis.text(0.98, 0.98, "\n".join(found.text(f"{over}: r") for over, found in statistics.items()), fontsize=6,
              transform=axis.transAxes, va="top", ha="right", color=RIGHT)
    axis.margins(y=0.3)
    rows["_sizes"] += [{"panel": dataset, "setting": name, "buffer": size, "networks": mean.seeds,
                        "speed_of_remembered": mean.mean, "standard_error": mean.error,
                        "remembered_percent": 100 * shares[size]} for size, mean in means.items()]
    rows[""] += [{"panel": dataset, "setting": name, "over": over, **found.row()} for over, found in statistics.items()]
