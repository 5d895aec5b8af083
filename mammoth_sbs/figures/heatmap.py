"""Heat maps over (q, s), as the paper's: red is better than the uniform buffer (0, 0), blue is worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.output import columns, drawing, panels, rows_of, write_csv
from mammoth_sbs.figures.results import Measure, Run, check_alike, check_seeds, group, measures
from mammoth_sbs.figures.statistics import Difference, Mean, Seeds, holm, paired

Pair = tuple[float, float]  # (q, s)
UNIFORM: Pair = (0.0, 0.0)
A_ROW = 4  # panels beside each other
LEGIBLE = 40  # cells: beyond, their text would not be
HATCH: dict[str, Any] = {"facecolor": "white", "edgecolor": "#bbbbbb", "hatch": "////", "linewidth": 0}


def differences(values: Mapping[Pair, float]) -> dict[Pair, float]:
    """Each value less that of the uniform buffer, or less the mean if (0, 0) was not tried."""
    base = values[UNIFORM] if UNIFORM in values else fmean(values.values())
    return {pair: value - base for pair, value in values.items()}


def signed(value: float) -> str:
    """`+1.2`, and a zero without a sign."""
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def draw(values_of: Mapping[str, Mapping[Pair, float]], stem: str | Path, chosen: Mapping[str, Pair] | None = None,
         unit: str = "points", said: Mapping[str, Mapping[Pair, str]] | None = None, higher: bool = True) -> list[Path]:
    """One panel per title, all on one colour scale, as `stem`.png and `stem`.svg; `chosen` pairs are printed bold.

    `said` is what stands in the cells in place of the difference.
    """
    shown = {title: differences(values) for title, values in values_of.items()}
    limit = max(abs(value) for grid in shown.values() for value in grid.values()) or 1.0
    to = "(0, 0)" if all(UNIFORM in grid for grid in shown.values()) else "the mean"
    texts = said or {title: {pair: signed(value) for pair, value in grid.items()} for title, grid in shown.items()}
    order = max if higher else min
    words = [f"{title}: best {at(order(grid, key=grid.__getitem__), texts[title])}, "
             f"worst {at((min if higher else max)(grid, key=grid.__getitem__), texts[title])}"
             for title, grid in shown.items()]
    return _maps(shown, stem, f"difference to {to}, {unit}", "RdBu_r" if higher else "RdBu", (-limit, limit), texts,
                 chosen or {}, f"Heat map over q and s of the difference to {to}, {unit}. {'. '.join(words)}.")


def draw_errors(errors_of: Mapping[str, Mapping[Pair, float]], stem: str | Path) -> list[Path]:
    """The standard errors of such differences: the darker, the less sure, and never so dark that black is lost on it.
    (0, 0) has none: it is the reference."""
    limit = 1.6 * max(value for grid in errors_of.values() for value in grid.values()) or 1.0
    texts = {title: {UNIFORM: "reference"} | {pair: f"{value:.2f}" for pair, value in grid.items()}
             for title, grid in errors_of.items()}
    words = [f"{title}: {min(grid.values()):.2f} to {max(grid.values()):.2f}" for title, grid in errors_of.items()]
    return _maps(errors_of, stem, "standard error of difference, points", "YlOrBr", (0.0, limit), texts, {},
                 f"Heat map over q and s of the standard error of the difference to (0, 0). {'. '.join(words)}.")


def at(pair: Pair, texts: Mapping[Pair, str]) -> str:
    """A cell in words."""
    return f"{texts[pair].splitlines()[0]} at q = {pair[0]:g}, s = {pair[1]:g}"


def _maps(maps: Mapping[str, Mapping[Pair, float]], stem: str | Path, label: str, colours: str,
          limits: tuple[float, float], texts: Mapping[str, Mapping[Pair, str]], chosen: Mapping[str, Pair],
          alt: str) -> list[Path]:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    files: list[Path] = []
    lines, wide = rows_of(len(maps), A_ROW)
    with drawing(stem, 1.1 + 3.4 * wide, 3.6 * lines, files, alt, "compressed") as figure:
        axes = panels(figure, len(maps), wide)
        hatched = False
        for axis, (title, grid) in zip(axes, maps.items(), strict=True):
            image, gaps = _panel(axis, grid, colormaps[colours], limits, texts[title], chosen.get(title))
            axis.set_title(title)
            hatched |= gaps
        bar = figure.colorbar(image, ax=axes, shrink=0.8)
        bar.set_label("\n".join(wrap(label, 36)), labelpad=9)  # matplotlib does not count the tick labels' minus
        if hatched:
            figure.legend([Patch(**HATCH)], ["not run"], loc="outside lower right", frameon=False, fontsize=8)
    return files


def _panel(axis: Any, grid: Mapping[Pair, float], colours: Callable[[float], Sequence[float]],
           limits: tuple[float, float], texts: Mapping[Pair, str], chosen: Pair | None) -> tuple[Any, bool]:
    """One grid: q to the right, s upwards, pairs that were not run hatched; the image, and whether there are such."""
    from matplotlib.patches import Rectangle

    qs, ss = (sorted({pair[side] for pair in texts}) for side in (0, 1))
    cells = [[grid.get((q, s), float("nan")) for q in qs] for s in ss]
    image = axis.imshow(cells, origin="lower", cmap=colours, vmin=limits[0], vmax=limits[1])
    gaps = [(q, s) for q in qs for s in ss if (q, s) not in texts]
    for q, s in gaps:
        axis.add_patch(Rectangle((qs.index(q) - 0.5, ss.index(s) - 0.5), 1, 1, **HATCH))
    if len(texts) <= LEGIBLE:
        for (q, s), said in texts.items():
            shade = colours((grid[q, s] - limits[0]) / (limits[1] - limits[0])) if (q, s) in grid else (1, 1, 1)
            dark = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] < 0.5
            small = 7.5 if "\n" in said or len(said) > 6 else 9
            axis.text(qs.index(q), ss.index(s), said, ha="center", va="center", color="white" if dark else "black",
                      weight="bold" if (q, s) == chosen else "normal", fontsize=small)
    for pair, style in ((UNIFORM, "-"), (chosen, ":")):
        if pair is not None and pair in texts:
            corner = qs.index(pair[0]) - 0.5, ss.index(pair[1]) - 0.5
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2, linestyle=style,
                                     clip_on=False))
    axis.set_xticks(range(len(qs)), [f"{100 * q:g}%" for q in qs])
    axis.set_yticks(range(len(ss)), [f"{100 * s:g}%" for s in ss])
    axis.set_xlabel("quickest left out, q")
    axis.set_ylabel("slowest left out, s")
    return image, bool(gaps)


# ---- from the runs of a sweep


Maps = dict[str, dict[Pair, Seeds]]  # by panel, (q, s) and seed


def fixed(runs: Sequence[Run]) -> list[Run]:
    """Those of SBS whose q and s were given."""
    return [run for run in runs if run.args.get("sampler") == "speed" and
            all(isinstance(side, float | int) for side in run.band)]


def usual_title(run: Run) -> str:
    return f"{run.dataset}, {run.method}, buffer {run.buffer}"


def collect(runs: Sequence[Run], measure: Measure, common: bool = False,
            title_of: Callable[[Run], str] = usual_title) -> Maps:
    """By panel: numbers by (q, s) and seed."""
    maps = {}
    for title, members in group(fixed(runs), title_of).items():
        check_alike(title, members, {"sbs_q", "sbs_s"})
        pairs = group(members, lambda run: (float(run.band[0]), float(run.band[1])))
        found: dict[Pair, Seeds] = {pair: {run.seed: measure.of(run) for run in at}
                                    for pair, at in sorted(pairs.items())}
        if len(found) > 1:
            if UNIFORM not in found:
                raise UserError(f"{title}: no run with --sbs-q 0 --sbs-s 0, which the others are compared with")
            maps[title] = check_seeds(title, found, common)
    if not maps:
        raise UserError("heatmap: no runs of --sampler speed with different --sbs-q and --sbs-s")
    return maps


def cell(pair: Pair, change: Difference, value: Mean) -> str:
    """What stands in a cell: the difference, its standard error, how many seeds; at (0, 0) what it differs from."""
    first = f"{value.mean:.1f}" if pair == UNIFORM else signed(change.mean)
    error = value.error if pair == UNIFORM else change.error
    return "\n".join([first, *([] if error is None else [f"± {error:.1f}"]), f"n = {change.seeds}"])


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the map of differences to (0, 0), that of their standard errors, and the CSV."""
    return [file for measure in measures(metric)
            for file in write_maps(collect(runs, measure, common), measure, out / f"heatmap_{measure.name}")]


def write_maps(maps: Maps, measure: Measure, stem: Path, below: Mapping[str, str] | None = None) -> list[Path]:
    """Maps of one measure, their standard errors and what is drawn; `below` has a line to put under each title."""
    means = {title: {pair: Mean.of(seeds.values()) for pair, seeds in found.items()} for title, found in maps.items()}
    changes = {title: {pair: paired(seeds, found[UNIFORM]) for pair, seeds in found.items()}
               for title, found in maps.items()}
    shown = {title: f"{title}\n{below[title]}" if below else title for title in maps}
    said = {shown[title]: {pair: cell(pair, change, means[title][pair]) for pair, change in grid.items()}
            for title, grid in changes.items()}
    files = draw({shown[title]: {pair: change.mean for pair, change in grid.items()}
                  for title, grid in changes.items()},
                 stem, unit=f"points of {measure.title}", said=said, higher=measure.higher)
    if all(change.error is not None for grid in changes.values() for change in grid.values()):
        files += draw_errors({title: {pair: change.error or 0.0 for pair, change in grid.items() if pair != UNIFORM}
                              for title, grid in changes.items()}, f"{stem}_errors")
    files.append(write_csv(Path(f"{stem}.csv"), [
        row for title, grid in changes.items() for row in rows(title, measure, means[title], grid)]))
    return files


def rows(title: str, measure: Measure, means: Mapping[Pair, Mean],
         changes: Mapping[Pair, Difference]) -> list[dict[str, Any]]:
    """What is drawn: a row per cell; p-values are corrected over the cells that are compared with (0, 0)."""
    others = [pair for pair in changes if pair != UNIFORM]
    together = dict(zip(others, holm([changes[pair].p for pair in others]), strict=True))
    lines = []
    for (q, s), value in means.items():
        line = {"panel": title, "setting": measure.setting, "metric": measure.metric, "q": q, "s": s,
                "seeds": value.seeds, "mean": value.mean, "standard_error": value.error}
        if (q, s) != UNIFORM:
            line |= columns("minus_uniform", changes[q, s]) | {"minus_uniform_p_holm": together[q, s]}
        lines.append(line)
    return lines
