"""Do other settings want other buffers? (the paper's App. D): a heat map over (q, s) for each, with the share of pairs
that are above uniform, and how alike it ranks them to the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.agreement import agreement, share_above
from mammoth_sbs.figures.heatmap import UNIFORM, Maps, Pair, collect, fixed, write_maps
from mammoth_sbs.figures.output import columns, write_csv, write_tables
from mammoth_sbs.figures.recorded import word as flag_in_words
from mammoth_sbs.figures.results import Measure, Run, group, measures, text
from mammoth_sbs.figures.statistics import paired, probability

REFERENCE = "reference"
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad"}
COMES_WITH = {"optimizer": ("lr", "optim_wd", "optim_mom"), "backbone": ("num_filters",)}  # and is not named beside it
DEFAULT: Pair = (0.2, 0.2)  # "consistently outperforms random sampling", the paper says of it


def setting(run: Run) -> dict[str, Any]:
    """All but what makes a map."""
    return {name: value for name, value in run.args.items() if name not in ("seed", "sbs_q", "sbs_s")}


def titles(runs: Sequence[Run]) -> dict[str, str]:
    """By setting, as JSON: in what it differs from the reference, which is the one nearest to all others."""
    settings = [json.loads(key) for key in group(runs, lambda run: json.dumps(setting(run), sort_keys=True))]
    names = sorted({name for one in settings for name in one})

    def distance(one: dict[str, Any]) -> tuple[int, bool, str]:
        differ = sum(one.get(name) != other.get(name) for other in settings for name in names)
        return differ, one.get("optimizer", "sgd") != "sgd", json.dumps(one, sort_keys=True)

    nobody: dict[str, Any] = {}
    reference, out = min(settings, key=distance, default=nobody), {}
    for one in settings:
        changed = [name for name in names if one.get(name) != reference.get(name)]
        tied = {name for flag in changed for name in COMES_WITH.get(flag, ())}
        out[json.dumps(one, sort_keys=True)] = ", ".join(word(name, one.get(name)) for name in changed
                                                         if name not in tied) or REFERENCE
    return out


def word(name: str, value: Any) -> str:
    """A changed flag as a title has it."""
    known: dict[str, Callable[[], str]] = {
        "optimizer": lambda: OPTIMIZERS[value], "n_epochs": lambda: f"{value} epochs",
        "optim_wd": lambda: f"weight decay {value:g}" if value else "no weight decay",
        "lr": lambda: f"learning rate {value:g}", "lr_later": lambda: f"second task's rate {text(value)}",
        "custom_class_order": lambda: "another split",
        "head_hidden": lambda: f"hidden layer of {value}" if value else "no hidden layer"}
    return known[name]() if name in known else flag_in_words(name, value) or f"{name} off"


def write(runs: Sequence[Run], out: Path, common: bool = False, metric: str = "final") -> list[Path]:
    """For Task-IL and Class-IL: the maps, and a line for each in CSV, Markdown and LaTeX."""
    members = fixed(runs)
    if len(datasets := {run.dataset for run in members}) > 1:
        raise UserError(f"robustness: the runs are of {', '.join(sorted(datasets))}; pick one with --where")
    of = titles(members)
    files: list[Path] = []
    for measure in measures(metric):
        maps = collect(members, measure, common, lambda run: of[json.dumps(setting(run), sort_keys=True)])
        maps = dict(sorted(maps.items(), key=lambda item: (item[0] != REFERENCE, item[0])))
        lines = [line(title, maps, measure) for title in maps]
        stem = out / f"robustness_{measure.name}"
        files += write_maps(maps, measure, stem,
                            {str(row["setting"]): f"{row['above']} of {row['pairs']} above uniform" for row in lines})
        files.append(write_csv(Path(f"{stem}_shares.csv"), lines))
        files += write_tables(stem, [(f"pairs (q, s) above uniform, {measure.title}", table(lines))])
    return files


def line(title: str, maps: Maps, measure: Measure) -> dict[str, Any]:
    """What is said of one setting."""
    found = maps[title]
    share = share_above(found, UNIFORM, measure.higher)
    changes = {pair: paired(seeds, found[UNIFORM]) for pair, seeds in found.items() if pair != UNIFORM}
    row: dict[str, Any] = {
        "setting": title, "accuracy": measure.setting, "metric": measure.metric, "seeds": len(found[UNIFORM]),
        "pairs": len(changes), "above": sum((c.mean > 0) == measure.higher and c.mean != 0 for c in changes.values()),
        "share": share.value, "share_low": share.low, "share_high": share.high}
    if DEFAULT in changes:
        row |= columns("default_pair", changes[DEFAULT])
    if REFERENCE in maps and title != REFERENCE:
        row |= {f"reference_{name}": value for name, value in agreement(found, maps[REFERENCE]).row().items()}
    return row


def table(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]], frozenset[tuple[int, int]]]:
    """A row per setting, for a text."""
    def span(row: dict[str, Any], value: str, low: str, high: str, form: str) -> str:
        numbers = [row.get(name) for name in (value, low, high)]
        if numbers[0] is None:
            return "–"
        first = format(numbers[0], form)
        return first if numbers[1] is None else f"{first} ({numbers[1]:{form}} to {numbers[2]:{form}})"

    head = ["setting", "seeds", "above uniform", "share, 95% interval", "q = s = .2, points", "p",
            "rank correlation with the reference"]
    return head, [[row["setting"], str(row["seeds"]), f"{row['above']} of {row['pairs']}",
                   span(row, "share", "share_low", "share_high", ".0%"),
                   span(row, "default_pair", "default_pair_low", "default_pair_high", "+.2f"),
                   probability(row.get("default_pair_p")),
                   span(row, "reference_rank_correlation", "reference_low", "reference_high", "+.2f")]
                  for row in lines], frozenset()
