"""How far each way to choose (q, s) stays behind the best pair, on heat maps that were run in full.

A way is judged by runs that are there: a fixed pair by its cell, `share` by the cell of the pair that it gives; `auto`
and `rule` by runs that were left to choose.
The best pair of a seed is the one that is best on the other seeds: the best of thirteen noisy means is flattered by
its noise, which nobody could have chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.core.samplers.speed import by_share
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.heatmap import UNIFORM, Pair, collect, fixed, usual_title
from mammoth_sbs.figures.output import Table, columns, drawing, note_below, write_csv, write_tables
from mammoth_sbs.figures.results import Measure, Run, check_alike, group, measures
from mammoth_sbs.figures.statistics import Difference, Seeds, paired

FEWEST = 2  # seeds, for there must be others
BEST = "the best pair"
SHARE = "SBS share"  # as the arm of runs is called that were left to it
Surface = dict[Pair, Seeds]


@dataclass(frozen=True)
class Judged:
    """One way on one surface."""

    way: str
    panel: str
    regret: Difference  # of the best pair over it; less is better
    gain: Difference  # of it over the uniform buffer

    @property
    def below_uniform(self) -> bool:
        """By more than the standard error of the difference."""
        return self.gain.mean < -(self.gain.error or 0.0)


def best_by_others(surface: Surface, higher: bool = True) -> Seeds:
    """Of each seed the value of the pair whose mean over the other seeds is best."""
    order = max if higher else min
    return {seed: surface[order(surface, key=lambda pair: fmean(
        value for other, value in surface[pair].items() if other != seed))][seed] for seed in surface[UNIFORM]}


def judge(way: str, panel: str, seeds: Seeds, surface: Surface, higher: bool = True) -> Judged:
    """What a way gave on a surface, on the seeds that both have."""
    sign = 1 if higher else -1
    mine, best, uniform = ({seed: sign * found[seed] for seed in seeds if seed in surface[UNIFORM]}
                           for found in (seeds, best_by_others(surface, higher), surface[UNIFORM]))
    return Judged(way, panel, paired(best, mine), paired(mine, uniform))


def name_of(pair: Pair) -> str:
    return f"({pair[0]:g}, {pair[1]:g})"


def ways_of(runs: Sequence[Run], measure: Measure) -> dict[str, dict[str, Seeds]]:
    """By panel: what runs gave that were left to choose, by the name of their arm."""
    left = [run for run in runs if run.args.get("sampler") == "speed" and any(isinstance(side, str)
                                                                             for side in run.band)]
    out: dict[str, dict[str, Seeds]] = {}
    for (panel, arm), members in group(left, lambda run: (usual_title(run), run.arm)).items():
        check_alike(f"{panel}, {arm}", members)
        out.setdefault(panel, {})[arm] = {run.seed: measure.of(run) for run in members}
    return out


def shares(runs: Sequence[Run]) -> dict[str, float]:
    """By panel: the share of the data that the buffer holds, as `share` reckons it at the end of the first task."""
    return {usual_title(run): run.args["buffer_size"] / (run.record["sbs"]["tasks"][0]["examples"] * run.tasks)
            for run in runs if run.record.get("sbs", {}).get("tasks")}


def collect_judged(runs: Sequence[Run], measure: Measure, common: bool = False) -> list[Judged]:
    """Every way on every surface: the pairs that all surfaces have, and what chose for itself."""
    surfaces = collect(fixed(runs), measure, common)
    chosen, share_of = ways_of(runs, measure), shares(fixed(runs))
    out = []
    for panel, surface in surfaces.items():
        if len(surface[UNIFORM]) < FEWEST:
            raise UserError(f"regret: {panel} has one seed, and the best pair is chosen on others; add seeds")
        everywhere = [pair for pair in surface if all(pair in other for other in surfaces.values())]
        found = {name_of(pair): surface[pair] for pair in everywhere}
        if panel in share_of and (pair := by_share(share_of[panel])) in surface:
            found[SHARE] = surface[pair]
        found |= chosen.get(panel, {})
        out += [judge(way, panel, seeds, surface, measure.higher) for way, seeds in found.items()
                if set(seeds) & set(surface[UNIFORM])]
    return out


def summary(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """By way, the one with the least mean regret first; those that were tried on every surface."""
    panels = {one.panel for one in judged}
    ways: dict[str, list[Judged]] = {}
    for one in judged:
        ways.setdefault(one.way, []).append(one)
    whole = {way: members for way, members in ways.items() if len(members) == len(panels)}
    return dict(sorted(whole.items(), key=lambda item: fmean(one.regret.mean for one in item[1])))


def table(ways: Mapping[str, Sequence[Judged]]) -> Table:
    """A row per way."""
    rows, panels = [], [one.panel for one in next(iter(ways.values()))]
    for way, members in ways.items():
        worst = max(members, key=lambda one: one.regret.mean)
        rows.append([way, f"{fmean(one.regret.mean for one in members):.2f}", worst.regret.text(),
                     f"{fmean(one.gain.mean for one in members):+.2f}",
                     f"{sum(one.below_uniform for one in members)} of {len(panels)}",
                     *(one.gain.text(sign=True) for one in members)])
    head = ["way", "mean regret", "worst regret", "mean gain over (0, 0)", "below (0, 0)",
            *(f"gain, {panel}" for panel in panels)]
    return head, rows, frozenset()


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the figure, the table, and a row of CSV for each way and surface."""
    files: list[Path] = []
    for measure in measures(metric):
        judged = collect_judged(runs, measure, common)
        stem = out / f"regret_{measure.name}"
        ways = summary(judged)
        draw(ways, measure, stem, files)
        files.append(write_csv(Path(f"{stem}.csv"), [row(one, measure) for one in judged]))
        files += write_tables(stem, [(f"regret of ways to choose q and s, {measure.title}, points", table(ways))])
    return files


def row(one: Judged, measure: Measure) -> dict[str, Any]:
    """For a CSV file."""
    return {"way": one.way, "panel": one.panel, "setting": measure.setting, "metric": measure.metric,
            "seeds": one.regret.seeds, **columns("regret", one.regret), **columns("minus_uniform", one.gain),
            "below_uniform": one.below_uniform}


def draw(ways: Mapping[str, Sequence[Judged]], measure: Measure, stem: Path, files: list[Path]) -> None:
    """A line per way: a point for each surface, and the mean of them."""
    best, first = next(iter(ways.items()))
    alt = (f"Regret of {len(ways)} ways to choose q and s over {len(first)} heat maps, points of {measure.title}. "
           f"Least on average: {best}, {fmean(one.regret.mean for one in first):.2f}.")
    with drawing(stem, 6.5, 1.3 + 0.24 * len(ways), files, alt) as figure:
        axis = figure.subplots()
        for i, members in enumerate(ways.values()):
            values = [one.regret.mean for one in members]
            axis.plot(values, [i] * len(values), "o", color="#1f77b4", markersize=4, alpha=0.7)
            axis.plot([fmean(values)], [i], "D", color="#d62728", markersize=5)
        axis.set_yticks(range(len(ways)), list(ways))
        axis.invert_yaxis()
        axis.axvline(0, color="black", linewidth=0.8)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_xlabel(f"behind {BEST}, points of {measure.title}")
        note_below(figure, "Points: one heat map each; diamonds: their mean. The best pair of a seed is that of the "
                           "other seeds.")
