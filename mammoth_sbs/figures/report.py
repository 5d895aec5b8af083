"""The report: one page with every run; needs no network."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures import KINDS
from mammoth_sbs.figures.results import METHODS, STOCK, Mean, Run, group, text
from mammoth_sbs.files import partial_folder

TEMPLATE = Path(__file__).with_name("report.html")
FITS = {"bars": lambda runs: any(run.arm == "stock" for run in runs) and any(run.arm != "stock" for run in runs),
        "heatmap": lambda runs: len({run.band for run in runs if run.args.get("sampler") == "speed"}) > 2,
        "samplers": lambda runs: len({run.args["sampler"] for run in runs if "sampler" in run.args}) > 2}


def page(runs: list[Run], selection: str, common: bool = False) -> str:
    """The whole HTML text; `selection` is what follows `mammoth-sbs figure KIND` to draw its figures again."""
    datasets = len({run.dataset for run in runs})
    content = {
        "DATA": json.dumps(data(runs)).replace("<", "\\u003c"),
        "FIGURES": "\n".join(figures(runs, selection, common)) or "<p>No figure fits these runs.</p>",
        "SUMMARY": html.escape(f"{len(runs)} run{'s' * (len(runs) > 1)} of {datasets} data set{'s' * (datasets > 1)}, "
                               f"code {', '.join(sorted({run.record['version'] for run in runs}))}"),
    }
    return re.sub(r"\{\{([A-Z]+)}}", lambda match: content[match[1]], TEMPLATE.read_text(encoding="utf-8"))


def data(runs: list[Run]) -> dict[str, list[dict[str, Any]]]:
    """The rows of both tables. Runs are averaged that agree in everything but the seed."""
    hidden = unseen(runs)
    labels = {run.id: label(run, hidden) for run in runs}
    runs = sorted(runs, key=lambda run: (*place(run), labels[run.id]["other"], run.seed))
    index = {run.id: i for i, run in enumerate(runs)}
    means = []
    for members in group(runs, lambda run: run.all_but_the_seed).values():
        line: dict[str, Any] = {**labels[members[0].id], "seeds": len({run.seed for run in members})}
        for key, setting in (("task", "task_il"), ("class", "class_il")):
            value = Mean.of({run.seed: run.final(setting) for run in members}.values())
            line |= {key: value.mean, f"{key}_error": value.error}
        means.append(line | {"runs": [index[run.id] for run in members]})
    return {"runs": [{**labels[run.id], **numbers(run)} for run in runs], "means": means}


def place(run: Run) -> tuple[Any, ...]:
    """Methods as the paper has them; stock first, SBS last, as in the bar charts."""
    known = list(METHODS.values())
    method = known.index(run.method) if run.method in known else len(known)
    return (run.dataset, run.args.get("buffer_size") or 0, method, run.method, run.arm != STOCK,
            run.arm.startswith("SBS"), run.arm)


def unseen(runs: list[Run]) -> list[str]:
    """The flags, beside the seed, in which some runs differ that all other columns show as the same."""
    found: set[str] = set()
    for members in group(runs, lambda run: tuple(label(run).values())).values():
        for key in set().union(*(run.args for run in members)) - found - {"seed"}:
            if len({repr(run.args[key]) if key in run.args else "" for run in members}) > 1:
                found.add(key)
    return sorted(found)


def label(run: Run, hidden: Sequence[str] = ()) -> dict[str, Any]:
    """What a run is, as the columns say it."""
    return {"dataset": run.dataset, "buffer": run.args.get("buffer_size"), "method": run.method, "arm": run.arm,
            "other": " ".join(f"--{key} {text(run.args[key])}" for key in hidden if key in run.args)}


def numbers(run: Run) -> dict[str, Any]:
    """What came out, and the command to see it again."""
    volatile = run.record["volatile"]
    return {"seed": run.seed, "task": run.final("task_il"), "class": run.final("class_il"),
            "forgetting": run.record["results"]["task_il"]["forgetting"], "minutes": volatile["wall_time"] / 60,
            "command": volatile["command"], "id": run.id}


def figures(runs: list[Run], selection: str, common: bool) -> list[str]:
    """Each kind of figure that the runs are fit for, with the command that draws it; why not, if it cannot be drawn."""
    sections = []
    for kind, module in KINDS.items():
        if not FITS[kind](runs):
            continue
        with partial_folder() as folder:
            try:
                files = module.write(runs, folder, common)
            except UserError as e:
                sections.append(f"<p class=note>{kind}: {html.escape(str(e))}</p>")
                continue
            pictures = "".join(picture(file) for file in files if file.suffix == ".png")
        command = html.escape(f"mammoth-sbs figure {kind} {selection} -o figures")
        sections.append(f"<section><h3>{kind}</h3><figure>{pictures}</figure><code>{command}</code></section>")
    return sections


def picture(file: Path) -> str:
    """An element that holds the PNG itself: its text about as large as the page's, and never too small to read."""
    content = file.read_bytes()
    width = int.from_bytes(content[16:20], "big")  # the place is fixed by the format
    return (f'<img alt="{html.escape(file.stem)}" width={width * 2 // 3} style="min-width: {width // 2}px" '
            f'src="data:image/png;base64,{base64.b64encode(content).decode()}">')
