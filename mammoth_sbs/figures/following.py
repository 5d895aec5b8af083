"""Does the best buffer depend on the task that follows? (the paper's Fig. 5 and App. E): heat maps of one first task
followed by different ones, and how alike two of them rank the pairs (q, s), which is the claim."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.agreement import Agreement, agreement
from mammoth_sbs.figures.heatmap import Maps, collect, fixed, write_maps
from mammoth_sbs.figures.output import drawing, note_below, panels, write_csv
from mammoth_sbs.figures.results import Measure, Run, group, measures

CLASSES = {"seq-cifar10": 10, "seq-cifar100": 100, "seq-tinyimg": 200, "seq-mnist": 10, "seq-digits": 10}
LONGEST = 24  # characters of a list of classes
ARROW = " → "


def tasks(run: Run) -> tuple[str, str]:
    """The first task and what follows it: `0-9` and `10-19`, `0-9 rotated`, `10-19, random labels`."""
    if len(run.record["results"]["task_il"]["matrix"]) != 2:
        raise UserError(f"following: run {run.id} is of {run.dataset}; this figure is of one task that follows another")
    order, count = run.args.get("custom_class_order"), run.args.get("max_classes")
    first = listed(order) if order else [str(i) for i in range(count or CLASSES.get(run.args["dataset"], 0))]
    a, b = named(first[: len(first) // 2]), named(first[len(first) // 2 :])
    kind = run.args.get("second_task")
    return a, {None: b, "rotations": f"{a} rotated"}.get(kind, f"{b}, {str(kind).replace('-', ' ')}")


def listed(order: str) -> list[str]:
    """The classes of `--custom_class_order`, ranges one by one."""
    found: list[str] = []
    for word in order.split(",") if "," in order else order.split("-"):
        ends = re.fullmatch(r"(\d+)-(\d+)", word.strip())
        low, high = map(int, ends.groups()) if ends else (0, 0)
        step = 1 if high >= low else -1
        found += [str(i) for i in range(low, high + step, step)] if ends else [word.strip()]
    return found


def named(classes: Sequence[str]) -> str:
    """Runs of numbers as ranges; a list that gets too long as how many they are and how it begins."""
    parts: list[list[str]] = []
    for name in classes:
        follows = parts and name.isdigit() and parts[-1][-1].isdigit() and int(name) == int(parts[-1][-1]) + 1
        parts[-1].append(name) if follows else parts.append([name])
    text = " ".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
    return text if len(text) <= LONGEST else f"{len(classes)} classes ({text[: LONGEST - 14].rsplit(' ', 1)[0]} ...)"


def title(run: Run) -> str:
    return ARROW.join(tasks(run))


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the maps and their errors, and which two rank the pairs alike."""
    members = fixed(runs)
    firsts = {first: {title(run) for run in of} for first, of in group(members, lambda run: tasks(run)[0]).items()}
    for name in ("dataset", "method", "buffer"):
        if len(found := {getattr(run, name) for run in members}) > 1:
            raise UserError(f"following: the runs are of {', '.join(sorted(found))}; pick one with --where")
    families = [of_one for of_one in firsts.values() if len(of_one) > 1]
    if members and not families:
        alone = "; ".join(sorted(title(run) for run in {tasks(run): run for run in members}.values()))
        raise UserError(f"following: every first task is followed by one task only ({alone}); give the runs of another "
                        "too, to compare them with")
    files: list[Path] = []
    for measure in measures(metric):
        stem = out / f"following_{measure.name}"
        maps = dict(sorted(collect(members, measure, common, title).items()))
        files += write_maps(maps, measure, stem)
        files += write_agreements(maps, families, measure, Path(f"{stem}_agreement"))
    return files


def write_agreements(maps: Maps, families: Sequence[set[str]], measure: Measure, stem: Path) -> list[Path]:
    """Each two maps of one first task, and each with itself; as a picture and as a CSV."""
    found = [{(a, b): agreement(maps[a], maps[b])
              for a, b in combinations_with_replacement([name for name in maps if name in of_one], 2)}
             for of_one in families]
    files: list[Path] = []
    words = "; ".join(f"{a} and {b}: {it.rank_correlation.text()}"
                      for family in found for (a, b), it in family.items() if a != b)
    widths = [len({a for a, _ in family}) for family in found]
    with drawing(stem, 2.2 + sum(1.0 + 1.45 * n for n in widths), 1.9 + 1.05 * max(widths), files,
                 f"Rank correlation of maps over q and s, {measure.title}. {words}") as figure:
        for axis, family in zip(panels(figure, len(found), len(found), width_ratios=widths), found, strict=True):
            image = draw(axis, family)
        figure.colorbar(image, ax=figure.axes, shrink=0.8, label="rank correlation")
        figure.suptitle(f"how alike two maps rank the pairs, {measure.title}", fontsize=10)
        note_below(figure, "Above the diagonal: rank correlation of two maps, with its 95% interval over seeds. Below "
                           "and on it: between maps of different seeds; on it of a map with itself, which noise "
                           "limits.")
    rows = [{"one": a, "other": b, "setting": measure.setting, "metric": measure.metric, **it.row()}
            for family in found for (a, b), it in family.items()]
    for row in rows:
        if row["one"] == row["other"]:  # of a map with itself it would be 1
            row.update(rank_correlation=None, low=None, high=None)
    return [*files, write_csv(Path(f"{stem}.csv"), rows)]


def draw(axis: Any, family: Mapping[tuple[str, str], Agreement]) -> Any:
    """A square of all pairs of maps; the image, for its colours."""
    names = list(dict.fromkeys(a for a, _ in family))
    cells = [[float("nan")] * len(names) for _ in names]
    for (a, b), it in family.items():
        i, j = names.index(a), names.index(b)
        for line, column, value in {(i, j, it.rank_correlation.value if i != j else it.other_seeds),
                                    (j, i, it.other_seeds)}:
            cells[line][column] = float("nan") if value is None else value
            own = it.rank_correlation.text().replace(" (", "\n(") if column > line else \
                "–" if value is None else f"{value:+.2f}"
            axis.text(column, line, own.replace("-", "−"), ha="center", va="center", fontsize=8,
                      color="white" if abs(cells[line][column]) > 0.7 else "black")
    image = axis.imshow(cells, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    follows = [name.partition(ARROW)[2] for name in names]
    axis.set_xticks(range(len(names)), [text.replace(", ", ",\n") for text in follows], fontsize=8)
    axis.set_yticks(range(len(names)), follows, fontsize=8)
    axis.set_title(f"{names[0].partition(ARROW)[0]} followed by", fontsize=9)
    return image
