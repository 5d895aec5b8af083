"""M of the first task through all later ones: other data sets and numbers of tasks, other networks, other scores.

Networks whose records hold other scores get a panel for each, of training data: App. "Relationship Between Other
Scoring Methods". Beside each stands its rank correlation with being forgotten, and in the tables how much better
than learning speed it predicts in the same networks; and after each task that followed how well speed does, beside the
accuracy that was left, for where that is chance there is nothing to predict, and how quick those were that it cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mammoth_sbs.figures.agreement import Estimate
from mammoth_sbs.figures.correlation import LEVEL, Correlation, area_under_curve, correlation
from mammoth_sbs.figures.output import Table, drawing, panels, rows_of, write_csv, write_tables
from mammoth_sbs.figures.recorded import Memory, Networks, draw_matrix, majority, matrix_rows, networks, sorted_lines
from mammoth_sbs.figures.results import SETTINGS, Run

SCORES = {"speed": "learning speed", "uncertainty": "uncertainty", "loss": "final loss", "c-score": "c-score"}
A_ROW = 4


def mean(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Over networks, with its 95% interval."""
    from scipy.stats import sem, t

    if not values:
        return None, None, None
    middle = float(np.mean(values))
    if len(values) < 2:
        return middle, None, None
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1) * sem(values))
    return middle, middle - half, middle + half


def means(of: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """For a CSV file: each with its interval."""
    return {f"{name}_{part}": value for name, values in of.items()
            for part, value in zip(("mean", "low", "high"), mean(values), strict=True)}


@dataclass(frozen=True)
class Prediction:
    """How well a score says what will be forgotten, of what was known when its task ended."""

    over_examples: Correlation  # mean score and share of networks that forget
    in_networks: list[float]  # rank correlation in each network by itself
    areas: list[float]  # AUC in each

    def row(self, speed: Prediction | None = None) -> dict[str, Any]:
        """For a CSV file; beside `speed`, also how far its AUC is above that of learning speed, network by network."""
        of = {"in_a_network": self.in_networks, "auc": self.areas}
        if speed is not None and len(speed.areas) == len(self.areas):
            of["auc_less_speed"] = [a - b for a, b in zip(self.areas, speed.areas, strict=True)]
        return {**self.over_examples.row(), "networks": len(self.in_networks), **means(of)}


def prediction(score: np.ndarray, memory: Memory) -> Prediction:
    """Of a score, high for easy, networks x examples: its rank correlation with being forgotten should be negative."""
    alone, areas = [], []
    for values, first, last in zip(score, memory.first, memory.last, strict=True):
        found = correlation(values[first], ~last[first], ranks=True)
        area = area_under_curve(-values[first], ~last[first])
        if found.r is not None and area is not None:
            alone.append(found.r)
            areas.append(area)
    return Prediction(correlation(score.mean(0), 1 - memory.kept, ranks=True), alone, areas)


def scores_of(it: Networks, setting: str) -> dict[str, np.ndarray]:
    """The scores of the first task's training data: networks x examples."""
    found = {"speed": it.speeds(False, setting)}
    for score in SCORES:
        if all(f"task1_{score}" in record for record in it.records) and score != "speed":
            found[score] = np.stack([record[f"task1_{score}"] for record in it.records])
    return found


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """How well each score says what is forgotten of what was known, for a text."""
    def span(row: dict[str, Any], name: str) -> str:
        return Estimate(*(row.get(f"{name}_{part}") for part in ("mean", "low", "high"))).text(sign=name != "auc")

    head = ["networks", "data", "score", "rank correlation with being forgotten, over examples", "in a network",
            "AUC in a network", "less that of speed"]
    return head, [[row["panel"], row["data"], row["score"], Estimate(row["r"], row["low"], row["high"]).text(),
                   *(span(row, name) for name in ("in_a_network", "auc", "auc_less_speed"))]
                  for row in rows], frozenset()


def by_task(it: Networks, setting: str, name: str) -> list[dict[str, Any]]:
    """After each later task: accuracy on the first one's test data, and how well speed says what is forgotten."""
    found = {after: it.memory(True, setting, after) for after in range(2, it.tasks + 1)}
    leaving = newly_forgotten(list(found.values()))
    return [{"panel": it.title, "setting": name, "after_task": after, "accuracy": 100 * float(memory.last.mean()),
             "accuracy_after_own": 100 * float(memory.first.mean()),
             "chance": 100 / len(np.unique(it.records[0]["task1_labels_test"])) if setting == "task_il" else None,
             **prediction(memory.speed, memory).row(), **means(speeds)}
            for (after, memory), speeds in zip(found.items(), leaving, strict=True)]


def newly_forgotten(memories: Sequence[Memory]) -> Iterator[dict[str, list[float]]]:
    """Who leaves when: after each task in turn the mean learning speed, network by network, of what was right at the
    end of every task before and is not any more, and of what still is."""
    there = memories[0].first
    for memory in memories:
        groups = {"speed_of_newly_forgotten": there & ~memory.last, "speed_of_kept": there & memory.last}
        yield {name: [float(speed[of].mean()) for speed, of in zip(memory.speed, group, strict=True) if of.any()]
               for name, group in groups.items()}
        there = groups["speed_of_kept"]


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the matrices, what is drawn, and how well each score predicts."""
    found = networks(runs)
    files: list[Path] = []
    for setting, name in SETTINGS.items():
        stem, rows, lines_drawn = out / f"matrices_{setting}", [], []
        drawn: list[tuple[Networks, str, bool, np.ndarray]] = []
        for it in found:
            drawn.append((it, "speed", True, it.speeds(True, setting)))
            scores = scores_of(it, setting)
            if len(scores) > 1:
                drawn += [(it, score, False, values) for score, values in scores.items()]
        high, wide = rows_of(len(drawn), A_ROW)
        with drawing(stem, 0.6 + 3.4 * wide, 3.5 * high, files,
                     f"{name}: which test examples of the first task were right in which epoch") as figure:
            axes = panels(figure, len(drawn), wide)
            for axis, (it, score, test, values) in zip(axes, drawn, strict=True):
                lines = sorted_lines(majority(it.matrices(test, setting)), values.mean(0))
                draw_matrix(axis, it.edges(), lines, it.switches())
                how = prediction(values, it.memory(test, setting))
                rank = "unknown" if how.over_examples.r is None else f"{how.over_examples.r:.2f}"
                axis.set_title(f"{it.title}\n{'test' if test else 'train'}, by {SCORES[score]}: ρ = {rank}", fontsize=8)
                axis.set_ylabel("example, easiest first")
                what = {"setting": name, "data": "test" if test else "train", "score": SCORES[score]}
                speed = prediction(it.speeds(test, setting), it.memory(test, setting)) if score != "speed" else None
                rows.append({"panel": it.title, **what, **how.row(speed)})
                lines_drawn += matrix_rows(it.title, what, lines)
        files += [write_csv(Path(f"{stem}.csv"), rows), write_csv(Path(f"{stem}_lines.csv"), lines_drawn)]
        files.append(write_csv(Path(f"{stem}_tasks.csv"), [row for it in found for row in by_task(it, setting, name)]))
        files += write_tables(stem, [(f"what is forgotten of the first task, by score, {name}", table(rows))])
    return files
