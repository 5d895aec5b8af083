"""The report: one page with every run, to read and to filter; needs neither network nor JavaScript."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import KINDS, glyphs
from mammoth_sbs.figures.bars import Chart, Comparisons, comparisons, palette, with_pooled
from mammoth_sbs.figures.results import (
    METHODS,
    OF_THE_SETTING,
    SETTINGS,
    Measure,
    Run,
    arms,
    check_alike,
    group,
    in_order,
    measures,
    text,
)
from mammoth_sbs.figures.statistics import POOLED, Mean, probability
from mammoth_sbs.files import partial_folder

TEMPLATE = Path(__file__).with_name("report.html")
Panel = tuple[Callable[[Run], Hashable], Callable[[list[Run]], bool]]
PANELS: dict[str, Panel] = {  # one picture for runs with the same key, if they are fit for it
    "heatmap": (lambda run: (run.dataset, run.method, run.buffer),
                lambda runs: len({run.band for run in runs if run.args.get("sampler") == "speed"}) > 2),
    "samplers": (lambda run: (run.dataset, run.method, run.buffer),
                 lambda runs: len({run.args["sampler"] for run in runs if "sampler" in run.args}) > 2)}

TITLES = {"heatmap": "Heat maps: the difference to the uniform buffer over q and s", "samplers": "Samplers"}


@dataclass
class Cell:
    """Of a table: what it says (as HTML), and what it is sorted by."""

    title: str
    content: str
    value: float | str | None = None
    kind: str = "number"

    def html(self) -> str:
        value = "" if self.value is None else html.escape(str(self.value))
        title = html.escape(self.title)
        return f'<td data-label="{title}" data-value="{value}" class="{self.kind}">{self.content}</td>'


@dataclass
class Row:
    """Of a table: what the filters look at, and the cells."""

    dataset: str
    method: str
    arm: str
    cells: list[Cell] = field(default_factory=list)

    def html(self) -> str:
        cells = "".join(cell.html() for cell in self.cells)
        return f"<tr {attributes(self.dataset, self.method, self.arm)}>{cells}</tr>"


def attributes(dataset: str, method: str, arm: str) -> str:
    """What the filters look at; nothing fits all."""
    names = ("dataset", dataset), ("method", method), ("arm", arm)
    return " ".join(f'data-{name}="{html.escape(value)}"' for name, value in names)


def number(title: str, value: float | None, digits: int = 2, kind: str = "number") -> Cell:
    return Cell(title, "–" if value is None else f"{value:.{digits}f}", value, kind)


def word(title: str, value: str, kind: str = "name") -> Cell:
    return Cell(title, html.escape(value), value, kind)


def commands(lines: Iterable[str]) -> Cell:
    """The command that makes each number again, out of the way until it is asked for; no line ends within a flag."""
    said = re.sub(r"(?<!\S)-\S+", r"<i>\g<0></i>", html.escape("\n".join(lines)))
    return Cell("", f"<details><summary>command</summary><code>{said}</code></details>", kind="command")


def table(name: str, rows: Sequence[Row]) -> str:
    """All rows, whether or not a script is there to sort and filter them."""
    head = "".join(f'<th scope="col" class="{cell.kind}">{html.escape(cell.title)}</th>' for cell in rows[0].cells)
    return (f'<table id="{name}"><thead><tr>{head}</tr></thead>\n<tbody>\n'
            + "\n".join(row.html() for row in rows) + "\n</tbody></table>")


def page(runs: list[Run], selection: str, common: bool = False, metric: str = "final") -> str:
    """The whole HTML text; `selection` is what follows `mammoth-sbs figure KIND` to draw its figures again."""
    datasets = len({run.dataset for run in runs})
    seen = Content(runs, common, metric)
    pictures = figures(seen.all, selection, common, metric)
    again = html.escape(f"mammoth-sbs figure bars {selection} -o figures")
    content = {
        "MEANS": table("means", seen.means()), "TASKS": table("tasks", seen.tasks()),
        "RUNS": table("runs", seen.runs()),
        "METRIC": html.escape(" and ".join(measure.title for measure in measures(metric))),
        "BARS": f"<p>As a figure, with tables: <code>{again}</code></p>" if seen.references else "",
        "NOTES": "\n".join(f"<p class=note>{html.escape(note)}</p>" for note in dict.fromkeys(seen.notes)),
        "FIGURES": "\n".join(pictures) or "<p>No heat map and no table of samplers fits these runs.</p>",
        "SUMMARY": html.escape(f"{len(runs)} run{'s' * (len(runs) > 1)} of {datasets} data set{'s' * (datasets > 1)}, "
                               f"code {', '.join(sorted({run.record['version'] for run in runs}))}"),
    }
    return re.sub(r"\{\{([A-Z]+)}}", lambda match: content[match[1]], TEMPLATE.read_text(encoding="utf-8"))


class Content:
    """The rows of the tables. Runs are averaged that agree in everything but the seed."""

    def __init__(self, runs: list[Run], common: bool, metric: str) -> None:
        self.measures, self.common = measures(metric), common
        self.notes: list[str] = []
        hidden = unseen(runs)
        self.other = {run.id: flags(run, hidden) for run in runs}
        apart = {run.id: [repr(run.args.get(key)) for key in hidden] for run in runs}  # "0.1" is not 0.1
        names = list(in_order({run.arm: {} for run in runs}))
        self.colours = palette(names)
        self.all = sorted(runs, key=lambda run: (*place(run), apart[run.id], names.index(run.arm), run.seed))
        self.parts = [Part(members, self) for members in group(self.all, lambda run: (
            run.dataset, run.args.get("buffer_size"), *apart[run.id])).values()]
        self.references = list(dict.fromkeys(other for part in self.parts for pairs in part.changes
                                             for _, other in pairs))
        self.scales = [glyphs.Scale([end for part in self.parts for changes in part.changes[i].values()
                                     for change in changes.values() for end in (change.mean, change.low, change.high)
                                     if end is not None]) for i in range(len(self.measures))]
        self.heights = [glyphs.Scale([mean.mean for part in self.parts for mean in part.means(i).values()])
                        for i in range(len(self.measures))]

    def names(self, run: Run, method: str) -> Row:
        """The first cells of every row: what a run is."""
        cells = [word("data set", run.dataset), number("buffer", run.args.get("buffer_size"), 0),
                 word("method", method), word("filled by", run.arm, "text")]
        if any(self.other.values()):
            cells.append(word("other flags", self.other[run.id], "text"))
        for cell in cells:
            cell.kind += " what"
        return Row(run.dataset, method, run.arm, cells)

    def means(self) -> list[Row]:
        """A row per mean over seeds with its differences; the methods together after those of their data set."""
        lines = []
        for part in self.parts:
            means = [part.means(i) for i in range(len(self.measures))]
            for (method, arm), members in part.members.items():
                row = self.names(members[0], method)
                row.cells.append(number("seeds", means[0][method, arm].seeds, 0, "number what"))
                for i, measure in enumerate(self.measures):
                    value = means[i][method, arm]
                    rivals = {other: mean.mean for other, mean in means[i].items() if other[0] == method}
                    best = len(rivals) > 1 and (method, arm) in measure.best(rivals)
                    said = f"<strong>{value.text()}</strong>" if best else f"<span>{value.text()}</span>"
                    drawn = glyphs.bar(value, self.heights[i], self.colours[arm])
                    row.cells.append(Cell(short(measure), said + drawn, value.mean))
                    row.cells += [self.difference(i, part, method, arm, other, value.seeds)
                                  for other in self.references]
                row.cells.append(commands(run.record["volatile"]["command"] for run in members))
                lines.append(row)
        return lines

    def difference(self, i: int, part: Part, method: str, arm: str, other: str, seeds: int) -> Cell:
        """How much an arm is above another, how surely, and drawn."""
        title = f"{SETTINGS[self.measures[i].setting]} − {other}"
        change = part.changes[i].get((arm, other), {}).get(method)
        if change is None:
            return Cell(title, "–", kind="number none")
        sure = [] if change.low is None else [
            change.span(), f"p {probability(change.p)}" + (f", Holm {probability(change.holm)}" if change.holm else "")]
        sure += [f"{change.seeds} seeds"] if change.seeds != seeds else []
        drawn = glyphs.point(change, self.scales[i], self.colours[arm])
        below = "".join(f"<small>{line}</small>" for line in sure)
        return Cell(title, f"<span>{change.mean:+.2f}</span>{drawn}{below}", change.mean)

    def tasks(self) -> list[Row]:
        """A row per mean over seeds: each task's accuracy at the end and at its best, and what that comes to."""
        lines = []
        for members in group(self.all, lambda run: run.all_but_the_seed).values():
            row = self.names(members[0], members[0].method)
            for setting, title in SETTINGS.items():
                matrices = [run.record["results"][setting]["matrix"] for run in members]
                last = [fmean(column) for column in zip(*(matrix[-1] for matrix in matrices), strict=True)]
                best = [fmean(max(line[j] for line in matrix if len(line) > j) for matrix in matrices)
                        for j in range(len(last))]
                drawn = glyphs.tasks(best, last, self.colours[members[0].arm], title)
                row.cells.append(Cell(f"{title}, by task", drawn, kind="drawn"))
                for metric in ("average_incremental", "forgetting"):
                    value = Mean.of([Measure(setting, metric).of(run) for run in members])
                    row.cells.append(Cell(f"{title} {metric.replace('_', ' ')}", value.text(), value.mean))
            if any(map(training_accuracy, self.all)):
                known = [fmean(found) for run in members if (found := training_accuracy(run))]
                row.cells.append(number("training accuracy", fmean(known) if known else None, 1))
            lines.append(row)
        return lines

    def runs(self) -> list[Row]:
        """A row per run: what came out, and the command to see it again."""
        wanted = [*measures("final"), Measure("task_il", "average_incremental"), Measure("task_il", "forgetting")]
        wanted += [measure for measure in self.measures if measure not in wanted]
        lines = []
        for run in self.all:
            row, volatile = self.names(run, run.method), run.record["volatile"]
            row.cells += [number("seed", run.seed, 0), *(number(short(measure), measure.of(run)) for measure in wanted),
                          number("min", volatile["wall_time"] / 60, 1), commands([volatile["command"]])]
            lines.append(row)
        return lines


class Part:
    """Runs of one data set, buffer and other flags: what may be compared. Why something may not, is a note."""

    def __init__(self, runs: list[Run], content: Content) -> None:
        self.measures = content.measures
        self.members = group(runs, lambda run: (run.method, run.arm))
        methods = group(runs, lambda run: run.method)
        self.charts: list[Chart] = []
        for measure in self.measures:
            chart: Chart = {}
            for method, members in methods.items():
                try:
                    chart[method] = arms(f"{members[0].dataset}, {method}", members, measure.of, content.common)
                except UserError as e:
                    content.notes.append(str(e))
            self.charts.append(chart)
        self.changes: list[Comparisons] = [comparisons(chart) if chart else {} for chart in self.charts]
        try:
            check_alike(runs[0].dataset, runs, only=OF_THE_SETTING)
            together = with_pooled(self.charts[0]).get(POOLED, {})
        except UserError as e:
            content.notes.append(str(e))
            together = {}
        self.members |= {(POOLED, arm): [run for run in runs if run.arm == arm] for arm in together}

    def means(self, i: int) -> dict[tuple[str, str], Mean]:
        """By method and arm."""
        pooled = with_pooled(self.charts[i]).get(POOLED, {})
        return {(method, arm): Mean.of((pooled[arm] if method == POOLED else
                                        {run.seed: self.measures[i].of(run) for run in members}).values())
                for (method, arm), members in self.members.items()}


def training_accuracy(run: Run) -> list[float]:
    tasks = run.record.get("sbs", {}).get("tasks", [])
    return [task["train_accuracy"] for task in tasks if "train_accuracy" in task]


def short(measure: Measure) -> str:
    """As the title of a column."""
    return f"{SETTINGS[measure.setting]} %" if measure.metric == "final" else measure.title.removesuffix(" accuracy")


def place(run: Run) -> tuple[Any, ...]:
    """Methods as the paper has them."""
    known = list(METHODS.values())
    method = known.index(run.method) if run.method in known else len(known)
    return run.dataset, run.args.get("buffer_size") or 0, method, run.method


def unseen(runs: list[Run]) -> list[str]:
    """The flags, beside the seed, in which some runs differ that all other columns show as the same."""
    found: set[str] = set()
    for members in group(runs, lambda run: (run.dataset, run.args.get("buffer_size"), run.method, run.arm)).values():
        for key in set().union(*(run.args for run in members)) - found - {"seed"}:
            if len({repr(run.args[key]) if key in run.args else "" for run in members}) > 1:
                found.add(key)
    return sorted(found)


def flags(run: Run, names: Sequence[str]) -> str:
    return " ".join(f"--{key} {text(run.args[key])}" for key in names if key in run.args)


# ---- pictures


def figures(runs: list[Run], selection: str, common: bool, metric: str) -> list[str]:
    """Heat maps and tables of samplers, one picture each, with the command that draws them; why not, if they cannot."""
    sections = []
    for kind, (key, fits) in PANELS.items():
        panels = [members for members in group(runs, key).values() if kind in KINDS and fits(members)]
        pictures = []
        for members in panels:
            with partial_folder() as folder:
                try:
                    files = KINDS[kind].write(members, folder, common, metric)
                except UserError as e:
                    pictures.append(f"<p class=note>{kind}: {html.escape(str(e))}</p>")
                    continue
                pictures += [picture(file, members[0]) for file in files
                             if file.suffix == ".png" and not file.stem.endswith("_errors")]
        if pictures:
            command = html.escape(f"mammoth-sbs figure {kind} {selection} -o figures")
            sections.append(f"<section><h3>{TITLES[kind]}</h3><div class=pictures>{''.join(pictures)}</div>"
                            f"<code>{command}</code></section>")
    return sections


def picture(file: Path, run: Run) -> str:
    """An element that holds the PNG itself, with what it says of itself as its alternative text."""
    from PIL import Image

    with Image.open(file) as image:
        width, said = image.width, image.info["Description"]
    content = base64.b64encode(file.read_bytes()).decode()
    return (f'<figure {attributes(run.dataset, run.method, "")}><img alt="{html.escape(said)}" '
            f'width="{width * 2 // 3}" src="data:image/png;base64,{content}"></figure>')
