"""Networks that differ in the seed alone, with their records: what they learned of a task, and what they kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.correlation import Correlation, correlation
from mammoth_sbs.figures.results import METHODS, Run, group, text

NETWORKS = {"resnet18": "ResNet-18", "small-resnet18": "Small ResNet", "tiny-resnet18": "Tiny ResNet",
            "vgg16": "VGG-16"}
TELLING = ("backbone", "num_filters", "buffer_size", "model", "sampler")  # what tells settings apart, if it does
LINES = 200  # of a drawn M: more examples are averaged, fewer are themselves
WRONG, RIGHT = "#f4f0e8", "#1f4e79"


class Networks:
    """Runs of one setting with their records, all of the same examples."""

    def __init__(self, title: str, runs: Sequence[Run]) -> None:
        self.title, self.runs = title, sorted(runs, key=lambda run: run.seed)
        self.records = [open_record(run) for run in self.runs]
        first = self.records[0]
        for run, record in zip(self.runs, self.records, strict=True):
            same = np.array_equal(record.epochs, first.epochs) and all(
                np.array_equal(record[name], first[name]) for name in ("task1_indices", "task1_indices_test"))
            if not same:
                raise UserError(f"{title}: the records of seeds {self.runs[0].seed} and {run.seed} are of other "
                                "examples or epochs; with --permute_classes each seed has its own tasks")

    def __len__(self) -> int:
        return len(self.records)

    @property
    def tasks(self) -> int:
        return self.records[0].tasks

    def matrices(self, test: bool, setting: str, task: int = 1) -> np.ndarray:
        """M of each: networks x epochs x examples."""
        return np.stack([record.matrix(task, test, setting) for record in self.records])

    def speeds(self, test: bool, setting: str) -> np.ndarray:
        """Learning speed in the first task: networks x examples."""
        return np.stack([record.speed(1, test, setting) for record in self.records])

    def known(self, after: int, test: bool, setting: str) -> np.ndarray:
        """What of the first task was right at the end of a task: networks x examples."""
        return np.stack([record.known(1, after, test, setting) for record in self.records])

    def memory(self, test: bool, setting: str, after: int | None = None) -> Memory:
        """What they learned of the first task and kept to the end of a task, the last if none is named."""
        return Memory(self.speeds(test, setting), self.known(1, test, setting),
                      self.known(after or self.tasks, test, setting))

    def edges(self, task: int = 1) -> np.ndarray:
        """Where the epochs of a task's M begin and end, counted from the beginning of the first task."""
        epochs = self.records[0].epochs
        length = epochs[:, 1].max()
        ends = (epochs[:, 0] - 1) * length + epochs[:, 1]
        return np.concatenate([[(task - 1) * length], ends[epochs[:, 0] >= task]])

    def switches(self) -> list[int]:
        """After how many epochs the next task began."""
        return [int(self.records[0].epochs[:, 1].max()) * task for task in range(1, self.tasks)]


@dataclass(frozen=True)
class Memory:
    """Of networks x examples: learning speed, right at the end of the own task, and right at the end of the last."""

    speed: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def remembered(self) -> np.ndarray:
        """The paper's word: right at the end of both."""
        return self.first & self.last

    @cached_property
    def mean_speed(self) -> np.ndarray:
        """Of each example, over networks."""
        return self.speed.mean(0)

    @property
    def share(self) -> np.ndarray:
        """Of networks that remember an example."""
        return self.remembered.mean(0)

    @property
    def kept(self) -> np.ndarray:
        """Of the networks that knew an example when its task ended, the share that still does; nan if none did."""
        knew = self.first.sum(0)
        return np.where(knew > 0, self.remembered.sum(0) / np.maximum(knew, 1), np.nan)

    def groups(self) -> list[tuple[float, float, int]]:
        """Examples remembered by equally many networks: that share, their mean learning speed, how many they are."""
        count, speed = self.remembered.sum(0), self.mean_speed
        return [(k / len(self.first), float(speed[count == k].mean()), int((count == k).sum()))
                for k in range(len(self.first) + 1) if (count == k).any()]

    def correlations(self) -> dict[str, Correlation]:
        """Of learning speed with being remembered: over the paper's groups, over single examples, and among what was
        known when the task ended, so that what was never learned does not count as forgotten."""
        shares, speeds, _ = zip(*self.groups(), strict=True)
        return {"groups": correlation(speeds, shares), "examples": correlation(self.mean_speed, self.share),
                "known examples": correlation(self.mean_speed, self.kept)}


def open_record(run: Run) -> Record:
    """The record that a sweep has left beside the run's result."""
    name = run.record.get("sbs_record")
    if name is None:
        raise UserError(f"{run.folder}, run {run.id}: has no record, which this figure is drawn from; put "
                        "sbs-record: records/{id}.npz into the config and sweep again")
    if not (run.folder / name).is_file():
        raise UserError(f"{run.folder / name}: the record of run {run.id} is missing; the same sweep makes it again")
    return Record(run.folder / name)


def networks(runs: Sequence[Run]) -> list[Networks]:
    """The runs by setting, each with a title that tells it from the others."""
    def place(run: Run) -> tuple[Any, ...]:
        backbone = run.args["backbone"]
        return (run.dataset, list(NETWORKS).index(backbone) if backbone in NETWORKS else len(NETWORKS),
                -(run.args.get("num_filters") or 0), run.args.get("buffer_size") or 0)

    settings = sorted(group(runs, lambda run: run.all_but_the_seed).values(), key=lambda members: place(members[0]))
    return [Networks(title, members) for title, members in zip(titles([s[0] for s in settings]), settings, strict=True)]


def titles(runs: Sequence[Run]) -> list[str]:
    """The data set, and of the rest what is needed to tell them apart."""
    out = []
    for run in runs:
        alike = [other for other in runs if other.dataset == run.dataset]
        words = [run.dataset]
        for name in (*TELLING, *sorted(set().union(*(other.args for other in runs)) - {"seed", *TELLING})):
            same = [other for other in alike if other.args.get(name) == run.args.get(name)]
            if len(same) < len(alike):
                words.append(word(name, run.args.get(name)))
            alike = same
        out.append(", ".join(filter(None, words)))
    return out


def word(name: str, value: Any) -> str:
    """A flag as a title has it."""
    if name == "backbone":
        return NETWORKS.get(value, value)
    if name == "buffer_size":
        return f"buffer {value}" if value else "no buffer"
    if name == "model":
        return METHODS.get(value.replace("_", "-").removesuffix("-sbs"), value)
    if name == "num_filters":
        return f"{value} filters"
    return "" if value is None else f"{name} {text(value)}"


# ---- what is drawn


def majority(matrices: np.ndarray) -> np.ndarray:
    """The vote of all networks: epochs x examples."""
    return matrices.mean(0) > 0.5


def sorted_lines(matrix: np.ndarray, score: np.ndarray, lines: int = LINES) -> tuple[np.ndarray, np.ndarray]:
    """M with its examples from the highest score to the lowest, and where each line begins and ends.

    Neighbours share a line, drawn as their mean, if there are more examples than lines.
    """
    order = np.argsort(-score, kind="stable")
    parts = np.array_split(matrix[:, order], min(lines, len(order)), axis=1)
    edges = np.cumsum([0, *(part.shape[1] for part in parts)])
    return np.stack([part.mean(1) for part in parts]), edges


def draw_matrix(axis: Any, edges: np.ndarray, lines: tuple[np.ndarray, np.ndarray], switches: Sequence[int]) -> None:
    """M as the paper draws it: quick examples at the top, epochs to the right, a dashed line where a task begins."""
    from matplotlib.colors import LinearSegmentedColormap

    values, places = lines
    axis.pcolormesh(edges, places, values, vmin=0, vmax=1, rasterized=True,
                    cmap=LinearSegmentedColormap.from_list("right", [WRONG, RIGHT]))
    axis.invert_yaxis()
    for switch in switches:
        axis.axvline(switch, color="black", linestyle="--", linewidth=1)
    axis.set_xlabel("epoch")


def matrix_rows(title: str, what: dict[str, Any], lines: tuple[np.ndarray, np.ndarray]) -> list[dict[str, Any]]:
    """The same for a CSV file: a row per line, per cent right in each epoch that was recorded."""
    values, places = lines
    return [{"panel": title, **what, "from": int(places[i]) + 1, "to": int(places[i + 1]),
             "right_percent": " ".join(str(round(100 * value)) for value in values[i])} for i in range(len(values))]
