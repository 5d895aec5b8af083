"""Heat maps over (q, s), as the paper's: red is better than the uniform buffer (0, 0), blue is worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.output import drawing, panels, write_csv
from mammoth_sbs.figures.results import SETTINGS, Mean, Run, Seeds, check_alike, check_seeds, group, paired

Pair = tuple[float, float]  # (q, s)
UNIFORM: Pair = (0.0, 0.0)
A_ROW = 4  # panels beside each other


def differences(values: Mapping[Pair, float]) -> dict[Pair, float]:
    """Each value less that of the uniform buffer, or less the mean if (0, 0) was not tried."""
    base = values[UNIFORM] if UNIFORM in values else fmean(values.values())
    return {pair: value - base for pair, value in values.items()}


def draw(values_of: Mapping[str, Mapping[Pair, float]], stem: str | Path, chosen: Mapping[str, Pair] | None = None,
         unit: str = "points") -> list[Path]:
    """One panel per title, all on one colour scale, as `stem`.png and `stem`.svg; `chosen` pairs are printed bold."""
    shown = {title: differences(values) for title, values in values_of.items()}
    limit = max(abs(value) for grid in shown.values() for value in grid.values()) or 1.0
    to = "(0, 0)" if all(UNIFORM in grid for grid in shown.values()) else "the mean"
    return _maps(shown, stem, f"difference to {to}, {unit}", "RdBu_r", (-limit, limit), "{:+.1f}", chosen or {})


def draw_errors(errors_of: Mapping[str, Mapping[Pair, float]], stem: str | Path) -> list[Path]:
    """The standard errors of such differences: the darker, the less sure."""
    limit = max(value for grid in errors_of.values() for value in grid.values()) or 1.0
    return _maps(errors_of, stem, "standard error of the difference, points", "Greys", (0.0, limit), "{:.1f}", {})


def _maps(maps: Mapping[str, Mapping[Pair, float]], stem: str | Path, label: str, colours: str,
          limits: tuple[float, float], number: str, chosen: Mapping[str, Pair]) -> list[Path]:
    files: list[Path] = []
    columns = min(len(maps), A_ROW)
    lines = -(-len(maps) // A_ROW)
    with drawing(stem, 0.9 + 3.4 * columns, 3.4 * lines, files) as figure:
        axes = panels(figure, len(maps), columns)
        for axis, (title, grid) in zip(axes, maps.items(), strict=True):
            image = _panel(axis, grid, colours, limits, number, chosen.get(title))
            axis.set_title(title)
        figure.colorbar(image, ax=axes, shrink=0.8, label=label)
    return files


def _panel(axis: Any, grid: Mapping[Pair, float], colours: str, limits: tuple[float, float], number: str,
           chosen: Pair | None) -> Any:
    """One grid: q to the right, s upwards, pairs that were not tried left white."""
    from matplotlib.patches import Rectangle

    qs, ss = (sorted({pair[side] for pair in grid}) for side in (0, 1))
    cells = [[grid.get((q, s), float("nan")) for q in qs] for s in ss]
    image = axis.imshow(cells, origin="lower", cmap=colours, vmin=limits[0], vmax=limits[1])
    if len(grid) <= 40:  # beyond, the numbers would not be legible
        for (q, s), value in grid.items():
            axis.text(qs.index(q), ss.index(s), number.format(value), ha="center", va="center",
                      color="white" if abs(value) > 0.6 * limits[1] else "black",
                      weight="bold" if (q, s) == chosen else "normal")
    for pair, style in ((UNIFORM, "-"), (chosen, ":")):
        if pair is not None and pair in grid:
            corner = qs.index(pair[0]) - 0.5, ss.index(pair[1]) - 0.5
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2, linestyle=style,
                                     clip_on=False))
    axis.set_xticks(range(len(qs)), [f"{100 * q:g}%" for q in qs])
    axis.set_yticks(range(len(ss)), [f"{100 * s:g}%" for s in ss])
    axis.set_xlabel("quickest left out, q")
    axis.set_ylabel("slowest left out, s")
    return image


# ---- from the runs of a sweep


def collect(runs: Sequence[Run], setting: str, common: bool = False) -> dict[str, dict[Pair, Seeds]]:
    """By panel (data set, method, buffer): accuracies by (q, s) and seed."""
    maps = {}
    fixed = [run for run in runs if run.args.get("sampler") == "speed" and
             all(isinstance(side, float | int) for side in run.band)]
    by_title = group(fixed, lambda run: f"{run.dataset}, {run.method}, buffer {run.buffer}")
    for title, members in by_title.items():
        check_alike(title, members, {"sbs_q", "sbs_s"})
        pairs = group(members, lambda run: (float(run.band[0]), float(run.band[1])))
        found: dict[Pair, Seeds] = {pair: {run.seed: run.final(setting) for run in at}
                                    for pair, at in sorted(pairs.items())}
        if len(found) > 1:
            if UNIFORM not in found:
                raise UserError(f"{title}: no run with --sbs-q 0 --sbs-s 0, which the others are compared with")
            maps[title] = check_seeds(title, found, common)
    if not maps:
        raise UserError("heatmap: no runs of --sampler speed with different --sbs-q and --sbs-s")
    return maps


def write(runs: Sequence[Run], out: Path, common: bool = False) -> list[Path]:
    """For Task-IL and Class-IL: the map of differences to (0, 0), that of their standard errors, and the CSV."""
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        maps = collect(runs, setting, common)
        changes = {title: {pair: paired(seeds, found[UNIFORM]) for pair, seeds in found.items()}
                   for title, found in maps.items()}
        files += draw({title: {pair: change.mean for pair, change in grid.items()} for title, grid in changes.items()},
                      out / f"heatmap_{setting}", unit=f"{name} points")
        if all(change.error is not None for grid in changes.values() for change in grid.values()):
            files += draw_errors({title: {pair: change.error or 0.0 for pair, change in grid.items()}
                                  for title, grid in changes.items()}, out / f"heatmap_{setting}_errors")
        rows = []
        for title, grid in changes.items():
            for (q, s), change in grid.items():
                value = Mean.of(maps[title][q, s].values())
                rows.append({"panel": title, "setting": name, "q": q, "s": s, "seeds": value.seeds, "mean": value.mean,
                             "standard_error": value.error, "minus_uniform": change.mean,
                             "minus_uniform_standard_error": change.error, "minus_uniform_seeds_up": change.up})
        files.append(write_csv(out / f"heatmap_{setting}.csv", rows))
    return files
